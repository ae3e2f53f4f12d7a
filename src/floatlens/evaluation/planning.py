"""Plan batches: decide which prompts are decoded together, before decoding starts.

Batches are planned from all questions, whether they are already answered or not. So a question is always decoded in the same
batch, also in a run that was interrupted and resumed, and with any number of workers. Batches hold prompts of similar
length, which saves padding and does not change answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from floatlens.data.prompt import Prompt, build, fit, trim_passages
from floatlens.data.sample import Sample
from floatlens.data.template import DEFAULT
from floatlens.errors import FloatLensError
from floatlens.options import Data, Sampling

if TYPE_CHECKING:
    from floatlens.lens import Lens

OPEN, CLOSED = "open-book", "closed-book"
SHORT = "short"  # also without passages, for traces of short questions, whose answers may have a different length
WITHOUT_PASSAGES = (CLOSED, SHORT)
WINDOW = 64  # number of batches whose prompts are sorted by length together; bounds the memory
T = TypeVar("T")
Key = tuple[str, ...]  # of a result in the run folder, such as (model, data, condition, id of the question)


def build_prompt(
    lens: Lens, sample: Sample | Prompt, sampling: Sampling = Sampling(), reading: Data = Data(), condition: str = OPEN
) -> Prompt:
    """Build the prompt of a sample, or raise FloatLensError with the reason why there is none. A `Prompt` is used unchanged.

    Passages are left out under closed book and for short questions, and required under open book. Those that do not fit
    the context are dropped. `lens` needs its tokenizer and its context length, not its weights.
    """
    if isinstance(sample, Prompt):
        return sample
    if sample.infill or sample.continuation:
        return _text_prompt(lens, sample, sampling)
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
        order=reading.order,
        template=reading.template or DEFAULT,
        chat=reading.chat,
    )
    if lens.context_length:
        room = lens.context_length - sampling.max_new_tokens - (lens.block_length or 0)  # blocks are written whole
        prompt = fit(prompt, lens.tokenizer, room)
    return replace(prompt, dropped=prompt.dropped + len(passages) - len(shown), sample_id=sample.id)


def _text_prompt(lens: Lens, sample: Sample, sampling: Sampling) -> Prompt:
    """Build the prompt of a text with masks or to continue, under any condition: it has no passages."""
    prompt = lens.infill_prompt(sample.question) if sample.infill else lens.text_prompt(sample.question)
    written = len(prompt.tail or ()) if sample.infill else sampling.max_new_tokens
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
