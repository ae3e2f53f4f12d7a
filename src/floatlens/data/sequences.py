"""Raw sequences: plain text or token ids with custom regions, texts with masks to fill, and texts to replay.

No template is applied to the sequence; the tokenizer adds its usual special tokens (bos, or [CLS] and [SEP]). Special tokens
that are written in the text count as such. Regions come from spans, or from marks in the text: `[[query: Who?]]` is the text
`Who?` as the region `query`.

A prompt with a script is replayed: the model runs step by step as if it wrote the given text, and nothing is sampled.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from floatlens.data.prompt import Prompt, Region, regions_of
from floatlens.data.tokenize import Token, tokenise
from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEXT, ANSWER, BOS = "text", "answer", "bos"
MARKS: Literal["marks"] = "marks"
MASK_MARK = "[MASK]"  # a mask in any text, regardless of the model's own mask token
MARK = re.compile(r"\[\[([A-Za-z]\w*): ?(.*?)\]\](?!\])", re.DOTALL)
UNKNOWN_SHARE = 0.2  # above it, the tokenizer is probably not made for this text

LEFT_TO_RIGHT, RANDOM = "left-to-right", "random"
GIVEN = -1  # step of a token that is visible from the start

Order: TypeAlias = str | Sequence[int | Sequence[int]]
Spans: TypeAlias = Mapping[str, tuple[int, int]]
Regions: TypeAlias = "Spans | Literal['marks'] | None"


def read_marks(text: str) -> tuple[str, list[Region]]:
    """Return a text without its marks, and its regions in characters.

    >>> read_marks("[[doc1: Ada lives in Rusk.]] Where?")
    ('Ada lives in Rusk. Where?', [Region(name='doc1', start=0, end=18)])
    """
    plain, spans, last = "", [], 0
    for mark in MARK.finditer(text):
        plain += text[last : mark.start()]
        spans.append(Region(mark[1], len(plain), len(plain) + len(mark[2])))
        plain, last = plain + mark[2], mark.end()
    if not spans:
        raise FloatLensError("the text has no marks; write a region as [[name: its text]]")
    return plain + text[last:], spans


def find_spans(text: str, regions: Regions) -> tuple[str, list[Region]]:
    """Return the plain text and its regions in characters; all of it is the region `text` if none are given."""
    if regions == MARKS:
        return read_marks(text)
    if regions is None:
        return text, [Region(TEXT, 0, len(text))]
    return text, check_spans(regions, len(text), "characters")


def check_spans(regions: Spans, length: int, of: str) -> list[Region]:
    """Return the spans in order; raise an error if one is empty, overlaps another or is out of range."""
    spans, before = [Region(name, int(start), int(end)) for name, (start, end) in regions.items()], 0
    spans.sort(key=lambda span: (span.start, span.end, span.name))
    for span in spans:
        inside = 0 <= span.start < span.end <= length
        if not inside or span.start < before:
            why = "overlaps another" if inside else f"should lie in 0:{length}"
            raise FloatLensError(f"region {span.name!r} has the span {span.start}:{span.end} in {of}, which {why}")
        before = span.end
    return spans


def text_prompt(tokenizer: PreTrainedTokenizerBase, text: str, regions: Regions = None) -> Prompt:
    """Return the prompt of a raw text, to be continued; see `Lens.text_prompt`."""
    plain, spans = find_spans(text, regions)
    tokens = tokenise(tokenizer, plain, special=True)
    warn_if_unknown(tokenizer, tokens, plain)
    return Prompt(plain, [t.id for t in tokens], _named(tokens, plain, spans), question=plain, chat=False)


def infill_prompt(tokenizer: PreTrainedTokenizerBase, text: str, mask_id: int, regions: Regions = None) -> Prompt:
    """Return the prompt of a text with masks, written as [MASK] or as the model's own mask token.

    Each mask is one token. A space before a mask belongs to it, as in the words of most tokenizers. The masks are the region
    `answer`; `regions` are those of the rest, see `text_prompt`.
    """
    plain, spans = find_spans(text, regions)
    own = str(tokenizer.convert_ids_to_tokens(mask_id))
    ready, moved = _spell_masks(plain, spans, own)
    tokens = _drop_spaces(_infill_tokens(tokenizer, ready, mask_id, own), ready, mask_id)
    ids = [token.id for token in tokens]
    if mask_id not in ids:
        raise FloatLensError("the text has no mask to fill; write [MASK] where the model should write, once per token")
    warn_if_unknown(tokenizer, tokens, ready)
    owner = {at: region.name for region in _named(tokens, ready, moved) for at in range(region.start, region.end)}
    owner |= {at: ANSWER for at, id_ in enumerate(ids) if id_ == mask_id}
    everything: list[Region] = []
    for at, name in sorted(owner.items()):
        last = everything[-1] if everything else None
        if last is not None and (last.name, last.end) == (name, at):
            everything[-1] = Region(name, last.start, at + 1)
        else:
            everything.append(Region(name, at, at + 1))
    P = ids.index(mask_id)
    return Prompt(plain, ids[:P], everything, question=plain, chat=False, tail=tuple(ids[P:]))


def _spell_masks(text: str, spans: Sequence[Region], own: str) -> tuple[str, list[Region]]:
    """Replace each [MASK] by the model's own mask token, and adjust the spans."""
    more = len(own) - len(MASK_MARK)

    def moved(at: int) -> int:
        return at + more * text.count(MASK_MARK, 0, at)

    return text.replace(MASK_MARK, own), [Region(span.name, moved(span.start), moved(span.end)) for span in spans]


def _infill_tokens(tokenizer: PreTrainedTokenizerBase, text: str, mask_id: int, own: str) -> list[Token]:
    """Tokenise a complete text with masks; piece by piece if the tokenizer does not read its mask token from text."""
    tokens = tokenise(tokenizer, text, special=True, ends=True)
    if sum(token.id == mask_id for token in tokens) == text.count(own):
        return tokens
    spliced: list[Token] = []
    at = 0
    for index, piece in enumerate(text.split(own)):
        if index:
            spliced.append(Token(mask_id, at, at + len(own)))
            at += len(own)
        spliced += [Token(t.id, at + t.start, at + t.end) for t in tokenise(tokenizer, piece, special=not index)]
        at += len(piece)
    return spliced


def _drop_spaces(tokens: Sequence[Token], text: str, mask_id: int) -> list[Token]:
    """Leave out tokens that are only the space before a mask; some tokenizers put two there."""
    kept: list[Token] = []
    for token in reversed(tokens):
        if not (kept and kept[-1].id == mask_id and text[token.start : token.end] == " "):
            kept.append(token)
    return kept[::-1]


def answer_tokens(
    tokenizer: PreTrainedTokenizerBase, text: str, regions: Regions = None
) -> tuple[list[int], list[Region]]:
    """Return the tokens of a text that follows a prompt, and its regions, counted from its first token."""
    plain, spans = find_spans(text, regions)
    tokens = tokenise(tokenizer, plain)
    warn_if_unknown(tokenizer, tokens, plain)
    return [t.id for t in tokens], [] if regions is None else regions_of(tokens, plain, spans)


def warn_if_unknown(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[Token], text: str) -> None:
    """Warn if more than a fifth of the tokens of a text are unknown to the tokenizer."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    own = [token for token in tokens if token.start < token.end]
    share = sum(token.id == unknown for token in own) / max(1, len(own))
    if unknown is not None and share > UNKNOWN_SHARE:
        shown = text if len(text) <= 40 else text[:37] + "..."
        warnings.warn(
            f"{share:.0%} of the tokens of {shown!r} are unknown to the tokenizer ({tokenizer.unk_token}); "
            f"write the sequence as the model's training data does",
            stacklevel=3,
        )


def _named(tokens: Sequence[Token], text: str, spans: Sequence[Region]) -> list[Region]:
    """Return the regions of the spans, with `bos` for a first token that the tokenizer added."""
    regions = regions_of(tokens, text, spans)
    if tokens and tokens[0].start == tokens[0].end:
        regions.insert(0, Region(BOS, 0, 1))
    return regions


@dataclass(frozen=True)
class Script:
    """Tokens that follow a prompt, and when they are revealed."""

    ids: tuple[int, ...]
    at: tuple[int, ...]  # the step that reveals each of them; -1 for a token that is visible from the start
    steps: int  # number of forward passes
    order: str = LEFT_TO_RIGHT  # or random, or list

    @property
    def in_sequence(self) -> bool:
        """Whether each step reveals the next token, as an autoregressive model writes."""
        return self.at == tuple(range(len(self.ids))) and self.steps == len(self.ids)


def write_script(
    ids: Sequence[int], order: Order = LEFT_TO_RIGHT, *, seed: int = 0, given: Sequence[bool] | None = None
) -> Script:
    """Return the script that reveals `ids` in an order; see `Lens.replay`. An empty list in it is a step without a token.

    Tokens that are `given` are visible from the start and not part of the order.

    >>> write_script([7, 8, 9], [2, [0, 1]]).at
    (1, 1, 0)
    """
    hidden = [index for index in range(len(ids)) if given is None or not given[index]]
    if not hidden:
        raise FloatLensError("the text to replay has no tokens; it needs at least one")
    name = order if isinstance(order, str) else "list"
    steps = _steps(order, hidden, seed)
    at = [GIVEN] * len(ids)
    for step, together in enumerate(steps):
        for index in together:
            at[index] = step
    return Script(tuple(int(id_) for id_ in ids), tuple(at), len(steps), name)


def _steps(order: Order, hidden: list[int], seed: int) -> list[list[int]]:
    if isinstance(order, str):
        if order not in (LEFT_TO_RIGHT, RANDOM):
            raise FloatLensError(
                f"unknown order {order!r}; use {LEFT_TO_RIGHT}, {RANDOM}, or a list of indices such as [2, 0, 1]"
            )
        shuffled = hidden if order == LEFT_TO_RIGHT else random.Random(seed).sample(hidden, len(hidden))
        return [[index] for index in shuffled]
    steps = [[step] if isinstance(step, int) else [int(index) for index in step] for step in order]
    listed = sorted(index for step in steps for index in step)
    if listed != hidden:
        wrong = next((i for i in listed if i not in hidden or listed.count(i) > 1), None)
        what = f"names {wrong} wrongly or twice" if wrong is not None else f"lacks {min(set(hidden) - set(listed))}"
        raise FloatLensError(
            f"the order {what}; it must name each of the {len(hidden)} tokens to reveal exactly once, "
            f"by its index from {hidden[0]} to {hidden[-1]}"
        )
    return steps
