"""Prompts: text, tokens and regions, built together.

Regions come from where the builder puts each part, never from a search for its text. A passage that repeats the question
or another passage, or that looks like the chat template, still has its own region. The chat-templated text is tokenised
once; a token belongs to the region that most of its non-blank characters come from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from floatlens.data.chat_template import render
from floatlens.data.sample import Passage
from floatlens.data.template import DEFAULT, Segment, Template
from floatlens.data.tokenize import Token, tokenise
from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from floatlens.data.sequences import Script

CUE = "\nAnswer:"  # ends the prompt of a model without a chat template
LONGEST = 64  # maximum number of characters per token, outside of runs of blanks


@dataclass(frozen=True)
class Region:
    """A named span of token positions, or of the characters that become tokens; `end` is exclusive."""

    name: str
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Prompt:
    """The input of a model, and the regions of its parts. Made by `Lens.prompt`."""

    text: str  # all of it, including the chat template
    ids: list[int]
    regions: list[Region] = field(default_factory=list)
    question: str = ""  # this and the next ones are the arguments from which the prompt was built
    passages: tuple[Passage, ...] = ()
    gold: list[int] = field(default_factory=list)  # indices of the gold passages, from 0
    answers: list[str] = field(default_factory=list)
    order: str = "last"
    template: Template = DEFAULT
    chat: bool = True
    dropped: int = 0  # passages that `fit` left out because the prompt was too long
    sample_id: str = ""  # stored in the trace
    script: Script | None = None  # a given text that is replayed after the prompt; None: the model writes its own
    # Tokens of a text from its first mask on, whose masks the model fills; None: it writes `max_new_tokens` tokens.
    tail: tuple[int, ...] | None = None

    @classmethod
    def from_ids(cls, ids: Sequence[int]) -> Prompt:
        """Return a prompt of raw token ids, without regions."""
        return cls(text="", ids=[int(id_) for id_ in ids])

    def __len__(self) -> int:
        return len(self.ids)

    def region(self, name: str) -> Region:
        """Return the region of that name."""
        for region in self.regions:
            if region.name == name:
                return region
        names = ", ".join(r.name for r in self.regions) or "none"
        raise FloatLensError(f"region {name!r} is not in the prompt; its regions are: {names}")


def build(
    tokenizer: PreTrainedTokenizerBase,
    question: str,
    passages: str | Passage | Sequence[str | Passage] = (),
    *,
    gold: int | Sequence[int] | None = None,
    answers: Sequence[str] = (),
    order: str = "last",
    template: Template = DEFAULT,
    chat: bool = True,
) -> Prompt:
    """Build the prompt of a question.

    Parameters
    ----------
    passages: strings or `Passage`, or a single one; none means closed book.
    gold: index or indices of the gold passages, from 0; by default those marked `gold`.
    order: position of the question: `last`, `first`, or on `both` sides of the passages.
    template: the text around them (`floatlens.data.template`).
    chat: apply the tokenizer's chat template. Without one, the text is followed by a cue to answer.

    Regions: `bos` (position 0 if that is a special token), `instruction`, `query` (and `query1`, the first, if the
    question occurs twice), `doc1` … `docN`. A part without tokens, such as an empty passage, has no region.
    """
    if not clean(question):
        raise FloatLensError(
            f"the question {question!r} is empty; ask something, or continue raw text with text_prompt"
        )
    given = [passages] if isinstance(passages, str | Passage) else passages
    each = [Passage(passage) if isinstance(passage, str) else passage for passage in given]
    indices = [gold] if isinstance(gold, int) else gold
    indices = sorted({i for i, passage in enumerate(each) if passage.gold} if indices is None else set(indices))
    for index in indices:
        if not 0 <= index < len(each):
            raise FloatLensError(
                f"gold passage {index} is out of range; there are {len(each)} passages, counted from 0"
            )
    shown = tuple(Passage(clean(p.text), clean(p.title), i in indices) for i, p in enumerate(each))
    text, ids, regions = _encode(tokenizer, template.segments(clean(question), shown, order), chat)
    return Prompt(text, ids, regions, question, shown, indices, list(answers), order, template, chat)


def fit(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, limit: int) -> Prompt:
    """Drop passages from the end until the prompt has at most `limit` tokens; `dropped` counts them.

    The question is never cut: FloatLensError if it does not fit without any passage.
    """
    fitted, kept = prompt, len(prompt.passages)
    while len(fitted.ids) > limit and kept:
        excess = len(fitted.ids) - limit
        while kept and excess > 0:  # the regions give the length of each passage, so one rebuild is usually enough
            excess -= sum(len(r) for r in fitted.regions if r.name == f"doc{kept}") or 1
            kept -= 1
        shown, gold = prompt.passages[:kept], [index for index in prompt.gold if index < kept]
        segments = prompt.template.segments(clean(prompt.question), shown, prompt.order)
        text, ids, regions = _encode(tokenizer, segments, prompt.chat)
        dropped = prompt.dropped + len(prompt.passages) - kept
        fitted = replace(prompt, text=text, ids=ids, regions=regions, passages=shown, gold=gold, dropped=dropped)
    if len(fitted.ids) > limit:
        raise FloatLensError(
            f"the prompt has {len(fitted.ids)} tokens without any passage, but only {limit} fit; "
            f"shorten the question, or use fewer new tokens"
        )
    return fitted


def trim_passages(question: str, passages: Sequence[Passage], context: int | None) -> list[Passage]:
    """Cut the passages where no more text can fit in the context; FloatLensError if the question alone does not fit.

    This is decided by length, before a tokenizer spends minutes and gigabytes on a text that is far too long.
    """
    if context is None:
        return list(passages)
    room = context * LONGEST
    if len(question) > room:
        raise FloatLensError(
            f"the question has {len(question):,} characters, too long for {context} tokens; shorten the question"
        )
    kept: list[Passage] = []
    for passage in passages:
        if room < 0:
            break
        kept.append(Passage(passage.text[: room + 1], passage.title[: room + 1], passage.gold))
        room -= len(passage.text) + len(passage.title)
    return kept


def clean(text: str) -> str:
    """Return text that any tokenizer accepts: lone surrogates replaced, outer white space removed as chat templates do."""
    return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text).strip()


def regions_of(tokens: Sequence[Token], text: str, spans: Sequence[Region]) -> list[Region]:
    """Return the regions of tokens from those of characters, which are in order and disjoint.

    A token belongs to the span with most of its non-blank characters. White space between two tokens of a span belongs to
    the span.
    """
    owner: list[int] = [-1] * len(text)
    for index, span in enumerate(spans):
        owner[span.start : span.end] = [index] * len(span)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, token in enumerate(tokens):
        index = _owner(token, text, owner)
        if index >= 0:
            first.setdefault(index, position)
            last[index] = position
    return [Region(spans[i].name, first[i], last[i] + 1) for i in sorted(first)]


def _owner(token: Token, text: str, owner: Sequence[int]) -> int:
    """Return the index of the span with most of a token's non-blank characters, or -1; on a tie a span wins over none."""
    start, end = token.start, token.end
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    if start == end:
        return -1
    if owner[start] == owner[end - 1] != -1:
        return owner[start]  # spans are contiguous, so everything in between belongs to it as well
    votes = Counter(owner[i] for i in range(start, end) if not text[i].isspace())
    return max(votes, key=lambda i: (votes[i], i >= 0))


def _encode(
    tokenizer: PreTrainedTokenizerBase, segments: Sequence[Segment], chat: bool
) -> tuple[str, list[int], list[Region]]:
    content = "".join(text for text, _ in segments)
    templated = chat and bool(getattr(tokenizer, "chat_template", None))
    before, after = frame(tokenizer) if templated else ("", CUE)
    text = before + content + after
    tokens = tokenise(tokenizer, text, special=not templated, data=(len(before), len(before) + len(content)))
    spans, at = [], len(before)
    for piece, region in segments:
        if region:
            spans.append(Region(region, at, at + len(piece)))
        at += len(piece)
    ids = [token.id for token in tokens]
    regions = regions_of(tokens, text, spans)
    if ids and ids[0] in tokenizer.all_special_ids and all(region.start > 0 for region in regions):
        regions.insert(0, Region("bos", 0, 1))
    return text, ids, regions


def frame(tokenizer: PreTrainedTokenizerBase) -> tuple[str, str]:
    """Return the text that the chat template puts before and after a single user message.

    A placeholder message is rendered, so that data cannot change the behaviour of the template.
    """
    mark = "\ue000floatlens\ue001"
    try:
        rendered = render(tokenizer, [{"role": "user", "content": mark}], add_generation_prompt=True)
    except ValueError as error:
        raise FloatLensError(f"the chat template cannot render a user message ({error}); use chat=False") from error
    before, shown, after = rendered.rpartition(mark)
    if not shown:
        raise FloatLensError("the chat template does not show the user's message; use chat=False")
    return before.replace(mark, ""), after
