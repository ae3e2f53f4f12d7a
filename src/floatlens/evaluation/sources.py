"""The data sets of an evaluation, with the passages of each sample.

Importing this module does not import torch, so that errors in the data are reported immediately.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from floatlens.data.read import FULL_LIST, Problems, expand, label, named_data, read
from floatlens.data.sample import Sample, first_passages, gold_among, move_gold
from floatlens.errors import FloatLensError
from floatlens.evaluation.planning import CLOSED, OPEN
from floatlens.options import Data

if TYPE_CHECKING:
    from floatlens.data.retrieval import Index
    from floatlens.store.folder import RunFolder

HELD = 64 * 2**20  # bytes of a data file below which its questions are kept in memory
RETRIEVED = 5  # default number of passages per question from a retriever
PEEK = 100  # number of questions that are checked before a data set is reported to have no passages


class DataSource:
    """One data set: kept in memory if it is small or limited, otherwise read again for each model.

    `reading` selects its questions and their passages; under the condition `OPEN`, it must have passages.
    """

    def __init__(
        self, name: str, reading: Data = Data(), conditions: Sequence[str] = (OPEN,), index: Index | None = None
    ) -> None:
        self.name, self.reading, self.conditions, self.index = name, reading, conditions, index
        self.label = label(name)
        self.count: int | None = reading.limit
        self.problems = Problems()
        self.asked = self.gold_dropped = 0  # questions, and those whose gold passage max_passages left out
        path = Path(name)
        small = path.is_file() and path.stat().st_size < HELD
        self._holds = reading.limit is not None or small or named_data(name) is not None
        self._held: list[Sample] | None = None

    @property
    def held(self) -> bool:
        """Whether the questions are in memory."""
        return self._held is not None

    def samples(self) -> Iterable[Sample]:
        """Return the questions with their passages."""
        if not self._holds:
            return self._prepare()
        if self._held is None:
            self._held = list(self._prepare())
            self.count = len(self._held)
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
            raise FloatLensError(f"{self.name} has no passages; use --closed-book, or --retriever bm25 --corpus FILE")
        for sample in chain(peeked, stream):
            if passages is not None and named_data(self.name) is None:
                sample = gold_among(sample, passages)
            if how.max_passages is not None:
                whole, sample = sample, first_passages(sample, how.max_passages)
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
        first = next(iter(source.samples()))
        for sample in source.samples() if source.held else [first]:
            for position in reading.gold_at or ():
                place_gold(sample, position)
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
