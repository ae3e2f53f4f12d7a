"""Plan batches: decide which prompts are decoded together, before decoding starts.

Batches are planned from all questions, whether they are already answered or not. So a question is always decoded in the same
batch, also in a run that was interrupted and resumed, and with any number of workers. Batches hold prompts of similar
length, which saves padding and does not change answers. A prompt that was already answered is not run again: its answer is
copied.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from floatlens.data.prompt import Prompt, build, fit, trim_passages
from floatlens.data.sample import Sample
from floatlens.data.template import DEFAULT, Template
from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    from floatlens.lens import Lens

OPEN, CLOSED = "open-book", "closed-book"
SHORT = "short"  # also without passages, for traces of short questions, whose answers may have a different length
WITHOUT_PASSAGES = (CLOSED, SHORT)
WINDOW = 64  # number of batches whose prompts are sorted by length together; bounds the memory
T = TypeVar("T")
Key = tuple[str, ...]  # of a result in the run folder, such as (model, data, condition, id of the question)


@dataclass(frozen=True)
class AnswerSettings:
    """How questions are asked: the same for all models of a comparison, and recorded with the answers.

    Parameters
    ----------
    max_new_tokens, steps, seed, sampler: settings of the sampler; `sampler` has those that only some samplers know.
    batch_size: number of questions decoded together.
    order: position of the question: `last`, `first`, or on `both` sides of the passages.
    template, chat: the text around the question, and whether it goes into the model's chat template.
    """

    max_new_tokens: int = 32
    steps: int | None = None
    batch_size: int = 16
    seed: int = 0
    order: str = "last"
    template: Template = DEFAULT
    chat: bool = True
    sampler: dict[str, Any] = field(default_factory=dict)

    def generation(self) -> dict[str, Any]:
        """Return the settings of the sampler."""
        own = dict(self.sampler)
        shared = {name: own.pop(name) for name in ("block_length", "temperature") if own.get(name) is not None}
        known = {"max_new_tokens": self.max_new_tokens, "steps": self.steps, "seed": self.seed}
        return known | shared | {"sampler": own}

    def recorded(self) -> dict[str, Any]:
        """Return everything as JSON-able values, for the manifest."""
        return {**asdict(self), "template": self.template.text}


def build_prompt(lens: Lens, sample: Sample | Prompt, asking: AnswerSettings, condition: str = OPEN) -> Prompt:
    """Build the prompt of a sample, or raise FloatLensError with the reason why there is none. A `Prompt` is used unchanged.

    Passages are left out under closed book and for short questions, and required under open book. Those that do not fit
    the context are dropped. `lens` needs its tokenizer and its context length, not its weights.
    """
    if isinstance(sample, Prompt):
        return sample
    if sample.infill or sample.continuation:
        return _text_prompt(lens, sample, asking)
    passages = [] if condition in WITHOUT_PASSAGES else sample.passages
    if condition == OPEN and not passages:
        retrieved = "answer_recall" in sample.meta
        raise FloatLensError(
            "no passage was retrieved for the question" if retrieved else "the question has no passages"
        )
    if lens.tokenizer is None:
        raise FloatLensError(f"{lens.name} has no tokenizer, so it cannot read text; add its tokenizer files")
    shown = trim_passages(sample.question, passages, lens.context_length)
    prompt = build(
        lens.tokenizer,
        sample.question,
        shown,
        answers=sample.answers,
        order=asking.order,
        template=asking.template,
        chat=asking.chat,
    )
    if lens.context_length:
        room = lens.context_length - asking.max_new_tokens - (lens.block_length or 0)  # blocks are written whole
        prompt = fit(prompt, lens.tokenizer, room)
    return replace(prompt, dropped=prompt.dropped + len(passages) - len(shown), sample_id=sample.id)


def _text_prompt(lens: Lens, sample: Sample, asking: AnswerSettings) -> Prompt:
    """Build the prompt of a text with masks or to continue, under any condition: it has no passages."""
    prompt = lens.infill_prompt(sample.question) if sample.infill else lens.text_prompt(sample.question)
    written = len(prompt.tail or ()) if sample.infill else asking.max_new_tokens
    length, context = len(prompt.ids) + written, lens.context_length
    if context is not None and length > context:
        raise FloatLensError(f"the text has {length} tokens, but the model's context is {context}; shorten the text")
    return replace(prompt, answers=list(sample.answers), sample_id=sample.id)


def plan_batches(prompts: Mapping[T, Prompt], size: int) -> list[list[T]]:
    """Return what is decoded together, the longest prompts first: if memory runs out, it does so early.

    Texts to replay or to fill need equal numbers of tokens and of steps.
    """
    groups: dict[object, list[T]] = {}
    for item, prompt in sorted(prompts.items(), key=lambda entry: len(entry[1].ids), reverse=True):
        script, tail = prompt.script, prompt.tail
        key = (script and (len(script.ids), script.steps), tail and (len(tail), tail.count(tail[0])))
        groups.setdefault(key, []).append(item)
    return [group[i : i + size] for group in groups.values() for i in range(0, len(group), size)]


class SharedPrompts:
    """Remembers which question has each prompt first. For runs without interventions.

    An answer depends only on the tokens of the prompt and the settings of the sampler, whether greedy or seeded. So the
    stress levels that equal the default (the gold passage at its original index, the default number of masks, the question
    at its default position) reuse the answers of Table 1, and traced questions reuse their traces. Which question is first
    is decided when batches are planned, so it does not depend on interruptions or workers.
    """

    def __init__(self) -> None:
        self.first: dict[tuple[object, ...], tuple[Key, object]] = {}

    def forget_missing(self, have: Container[Key]) -> None:
        """Forget the questions without a result: the work on them failed."""
        self.first = {about: one for about, one in self.first.items() if one[0] in have}

    def origin(
        self, key: Key, prompt: Prompt, asking: AnswerSettings, experiment: object, *, ask_all: bool
    ) -> Key | None:
        """Return the key of the result with the answer to the same prompt, or None if the question is to be asked.

        Called for the questions of an experiment in their order. With `ask_all` every prompt is run, because more than its
        answer is needed.
        """
        settings = json.dumps(asking.generation(), sort_keys=True, default=str)
        about = (key[0], tuple(prompt.ids), prompt.script, prompt.tail, settings)
        first, of = self.first.setdefault(about, (key, experiment))
        return None if ask_all or (first == key and of is experiment) else first


def windows(samples: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the samples in lists of `size`; they are planned together."""
    window: list[T] = []
    for sample in samples:
        window.append(sample)
        if len(window) == size:
            yield window
            window = []
    if window:
        yield window
