"""From data sets to batches: the samples with their passages, their prompts, and which are decoded together.

Batches are planned from all questions, whether they are already answered or not. So a question is always decoded in the same
batch, also in a run that was interrupted and resumed, and with any number of workers. Batches hold prompts of similar
length, which saves padding and does not change answers.

Importing this module does not import torch, so that errors in the data are reported immediately.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from floatlens.data.prompt import Prompt, build, fit, trim_passages
from floatlens.data.read import FULL_LIST, Problems, expand, label, named_data, read
from floatlens.data.sample import Sample, gold_among, move_gold
from floatlens.data.template import DEFAULT
from floatlens.errors import FloatLensError
from floatlens.options import Data, Sampling

if TYPE_CHECKING:
    from floatlens.data.retrieval import Index
    from floatlens.lens import Lens
    from floatlens.store.folder import RunFolder

OPEN, CLOSED = "open-book", "closed-book"
SHORT = "short"  # also without passages, for traces of short questions, whose answers may have a different length
WITHOUT_PASSAGES = (CLOSED, SHORT)
WINDOW = 64  # number of batches whose prompts are sorted by length together; bounds the memory
HELD = 64 * 2**20  # bytes of a data file below which its questions are kept in memory
RETRIEVED = 5  # default number of passages per question from a retriever
PEEK = 100  # number of questions that are checked before a data set is reported to have no passages
Key = tuple[str, ...]  # of a result in the run folder, such as (model, data, condition, id of the question)


class DataSource:
    """One data set: kept in memory if it is small or limited, otherwise read again for each model.

    `reading` selects its questions and their passages; under the condition `OPEN`, it must have passages.
    """

    def __init__(
        self, name: str, reading: Data = Data(), conditions: Sequence[str] = (OPEN,), index: Index | None = None
    ) -> None:
        self.name, self.reading, self.conditions, self.index = name, reading, conditions, index
        self.label = label(name)
        self.problems = Problems()
        self.asked = self.gold_dropped = 0  # questions, and those whose gold passage max_passages left out
        path = Path(name)
        small = path.is_file() and path.stat().st_size < HELD
        self._holds = reading.limit is not None or small or named_data(name) is not None
        self._held: list[Sample] | None = None

    def samples(self) -> Iterable[Sample]:
        """Return the questions with their passages."""
        if not self._holds:
            return self._prepare()
        if self._held is None:
            self._held = list(self._prepare())
        return self._held

    def _prepare(self) -> Iterator[Sample]:
        how, passages = self.reading, self.reading.passages or None
        self.asked = self.gold_dropped = 0
        chosen = {name: getattr(how, name) for name in ("split", "limit", "seed", "layout", "columns", "strict")}
        samples = read(self.name, passages=passages, **chosen)
        self.problems, stream = samples.problems, iter(samples)
        if how.closed_book or set(self.conditions) == {CLOSED}:
            yield from (sample.with_passages([]) if how.closed_book else sample for sample in stream)
            return
        if self.index is not None:
            from floatlens.data.retrieval import retrieve

            wanted = passages or how.max_passages or RETRIEVED
            yield from (retrieve(sample, self.index, wanted) for sample in stream)
            return
        peeked = list(islice(stream, PEEK))
        if OPEN in self.conditions and peeked and not any(s.passages or s.infill or s.continuation for s in peeked):
            raise FloatLensError(f"{self.name} has no passages; use --closed-book, or --corpus FILE")
        for sample in chain(peeked, stream):
            if passages is not None and named_data(self.name) is None:
                sample = gold_among(sample, passages)
            if how.max_passages is not None:
                whole, sample = sample, sample.with_passages(sample.passages[: how.max_passages])
                self.asked, self.gold_dropped = self.asked + 1, self.gold_dropped + (len(sample.gold) < len(whole.gold))
            yield sample

    def summary(self) -> str:
        """Return in one line what was skipped, and whether gold passages were left out."""
        most = self.reading.max_passages
        lost = f"--max-passages {most} left out the gold passage of {self.gold_dropped} of {self.asked} questions; "
        texts = [self.problems.summary(), f"{lost}--passages {most} keeps it" if self.gold_dropped else ""]
        return "; ".join(text for text in texts if text)


def open_sources(data: Sequence[str], reading: Data = Data(), conditions: Sequence[str] = (OPEN,)) -> list[DataSource]:
    """Open data sets; raises an error if one cannot be read or has no questions, before a model is loaded."""
    index = None
    if reading.corpus:
        from floatlens.data.retrieval import index_of

        index = index_of(reading.corpus)
    names = [part for name in dict.fromkeys(data) for part in expand(name)]
    sources = [DataSource(name, reading, conditions, index) for name in names]
    for source in sources:
        samples = source.samples()
        first = next(iter(samples))
        list(
            with_gold_at(samples if isinstance(samples, list) else [first], reading.gold_at)
        )  # an error now, not later
    return sources


def place_gold(sample: Sample, position: int) -> Sample:
    """Return the question with its gold passage at a position, counted from 1, among its other passages.

    This is the question of `stress position` at the level `position - 1`.
    """
    count = len(sample.passages)
    if not sample.gold:
        raise FloatLensError(f"--gold-at needs a gold passage, and question {sample.id[:80]!r} has none")
    if not 1 <= position <= count:
        raise FloatLensError(
            f"--gold-at {position} is not possible for question {sample.id[:80]!r} with {count} passages; use 1 to {count}"
        )
    return move_gold(sample, position - 1, count)


def with_gold_at(samples: Iterable[Sample], positions: Sequence[int] | None) -> Iterator[Sample]:
    """Yield each question once per position of its gold passage, with the position in its id; or as it is."""
    for sample in samples:
        if not positions:
            yield sample
        for position in positions or ():
            yield replace(place_gold(sample, position), id=f"{sample.id} (gold at {position})")


def problems_of(sources: Sequence[DataSource]) -> dict[str, str]:
    """Return one sentence per data set on what was skipped."""
    return {source.label: text for source in sources if (text := source.summary())}


def write_problems(folder: RunFolder, sources: Sequence[DataSource]) -> None:
    """Write the full list of problems to the run folder: one line per skipped line of the data."""
    folder.write_lines(FULL_LIST, (line for source in sources for line in source.problems.to_records()))


# --- prompts and batches -----------------------------------------------------------------------------------------------


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
        raise FloatLensError("no passage was retrieved" if retrieved else "the question has no passages")
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


def plan_batches(prompts: Mapping[str, Prompt], size: int) -> list[list[str]]:
    """Return what is decoded together, the longest prompts first: if memory runs out, it does so early.

    Texts to replay or to fill need equal numbers of tokens and of steps.
    """
    groups: dict[object, list[str]] = {}
    for item, prompt in sorted(prompts.items(), key=lambda entry: len(entry[1].ids), reverse=True):
        script, tail = prompt.script, prompt.tail
        key = (script and (len(script.ids), script.steps), tail and (len(tail), tail.count(tail[0])))
        groups.setdefault(key, []).append(item)
    return [group[i : i + size] for group in groups.values() for i in range(0, len(group), size)]
