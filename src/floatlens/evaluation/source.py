"""A data set as a plan wants it: its questions, with the passages that they are to be shown with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

from floatlens.data import passage_choice as choose
from floatlens.data.readers import registry
from floatlens.data.retrieval import Index, retrieve
from floatlens.data.sample import Sample
from floatlens.errors import FloatLensError
from floatlens.evaluation.evaluate import OPEN
from floatlens.evaluation.plan import Plan

HELD = 64 * 2**20  # bytes of a data file below which its questions are kept in memory
RETRIEVED = 5  # passages a question gets from a retriever, unless told otherwise
PEEK = 100  # questions looked at before a data set is said to have no passages


class Source:
    """One data set: held in memory if it is small or limited, read again for each model if not."""

    def __init__(self, name: str, plan: Plan, index: Index | None) -> None:
        self.name, self.plan, self.index = name, plan, index
        self.label = registry.label(name)
        self.count: int | None = plan.limit
        self.problems = ""
        path = Path(name)
        small = path.is_file() and path.stat().st_size < HELD
        self._holds = plan.limit is not None or small or name.startswith("world")
        self._held: list[Sample] | None = None

    def samples(self) -> Iterable[Sample]:
        """The questions, with their passages unless every book of the plan is closed."""
        if not self._holds:
            return self._questions()
        if self._held is None:
            self._held = list(self._questions())
            self.count = len(self._held)
        return self._held

    def _questions(self) -> Iterator[Sample]:
        return self._prepared() if OPEN in self.plan.conditions else self._read()

    def _read(self) -> Iterator[Sample]:
        plan = self.plan
        reading = registry.read(
            self.name,
            split=plan.split,
            limit=plan.limit,
            seed=plan.seed,
            layout=plan.layout,
            names=plan.names,
            passages=plan.passages,
            strict=plan.strict,
        )
        yield from reading
        self.problems = reading.problems.summary()

    def _prepared(self) -> Iterator[Sample]:
        """Samples with the passages that the plan wants."""
        plan, stream = self.plan, self._read()
        if self.index is not None:
            wanted = plan.passages or plan.max_passages or RETRIEVED
            yield from (retrieve(sample, self.index, wanted) for sample in stream)
            return
        peeked = list(islice(stream, PEEK))
        if peeked and not any(sample.passages for sample in peeked):
            raise FloatLensError(f"{self.name} has no passages; use --closed-book, or --retriever bm25 --corpus FILE")
        for sample in chain(peeked, stream):
            if plan.passages is not None and not self.name.startswith("world"):
                sample = choose.gold_among(sample, plan.passages)
            if plan.max_passages is not None:
                sample = choose.first(sample, plan.max_passages)
            yield sample
