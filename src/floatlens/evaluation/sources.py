"""The data sets of an evaluation, with the passages of each sample.

Importing this module does not import torch, so that errors in the data are reported immediately.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floatlens.data.read import expand, label, read
from floatlens.data.readers.problems import Problems
from floatlens.data.readers.registry import named_data
from floatlens.data.sample import Sample, first_passages, gold_among
from floatlens.data.template import DEFAULT
from floatlens.errors import FloatLensError
from floatlens.evaluation.planning import CLOSED, OPEN, AnswerSettings
from floatlens.options import Data, Run, Sampling

if TYPE_CHECKING:
    from floatlens.data.retrieval import Index
    from floatlens.store.folder import RunFolder

HELD = 64 * 2**20  # bytes of a data file below which its questions are kept in memory
RETRIEVED = 5  # default number of passages per question from a retriever
PEEK = 100  # number of questions that are checked before a data set is reported to have no passages


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """The data and models of an evaluation, as one value that is stored in the manifest.

    Parameters
    ----------
    passages: number of passages per question, including the gold one.
    max_passages: maximum number of passages per question, the first ones of a ranked list.
    corpus: file of passages; those of a question are retrieved from it with BM25.
    split, limit, seed, layout, columns, strict: as for `floatlens.read`.
    """

    models: tuple[str, ...]
    data: tuple[str, ...]
    conditions: tuple[str, ...] = (OPEN,)
    asking: AnswerSettings = field(default_factory=AnswerSettings)
    split: str | None = None
    limit: int | None = None
    seed: int | None = None
    passages: int | None = None
    max_passages: int | None = None
    corpus: str | None = None
    layout: str | None = None
    columns: Mapping[str, str] | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        for name in ("passages", "max_passages"):
            value = getattr(self, name)
            if value is not None and value < 1:
                option = f"--{name.replace('_', '-')}"
                raise FloatLensError(f"{option} {value} is not a positive number; for no passages use --closed-book")

    def recorded(self) -> dict[str, Any]:
        """Return all fields, for the manifest."""
        return {**asdict(self), "asking": self.asking.recorded(), "columns": dict(self.columns or {})}


def plan_of(
    models: Sequence[str], data: Sequence[str], reading: Data, asking: AnswerSettings, **changes: Any
) -> EvaluationPlan:
    """Return the evaluation plan of models and data by the options of the command line."""
    names = ("split", "limit", "seed", "max_passages", "corpus", "columns", "layout", "strict")
    given: dict[str, Any] = {name: getattr(reading, name) for name in names}
    given |= {"models": tuple(dict.fromkeys(models)), "data": tuple(dict.fromkeys(data)), "asking": asking}
    return EvaluationPlan(**{**given, "passages": reading.passages or None, **changes})


def asking_of(sampling: Sampling, reading: Data, run: Run, order: str = "last") -> AnswerSettings:
    """Return how questions are asked by the options of the command line."""
    shared = {"block_length": sampling.block_length, "temperature": sampling.temperature}
    return AnswerSettings(
        max_new_tokens=sampling.max_new_tokens,
        steps=sampling.steps,
        batch_size=run.batch_size,
        seed=sampling.seed or 0,
        order=order,
        template=reading.template or DEFAULT,
        sampler={**shared, **(sampling.sampler or {})},
    )


class DataSource:
    """One data set of a plan: kept in memory if it is small or limited, otherwise read again for each model."""

    def __init__(self, name: str, plan: EvaluationPlan, index: Index | None = None) -> None:
        self.name, self.plan, self.index = name, plan, index
        self.label = label(name)
        self.count: int | None = plan.limit
        self.problems = Problems()
        path = Path(name)
        small = path.is_file() and path.stat().st_size < HELD
        self._holds = plan.limit is not None or small or named_data(name) is not None
        self._held: list[Sample] | None = None

    def samples(self) -> Iterable[Sample]:
        """Return the questions with the passages that the plan selects."""
        if not self._holds:
            return self._prepare()
        if self._held is None:
            self._held = list(self._prepare())
            self.count = len(self._held)
        return self._held

    def _read(self) -> Iterator[Sample]:
        plan = self.plan
        stream = read(
            self.name,
            split=plan.split,
            limit=plan.limit,
            seed=plan.seed,
            layout=plan.layout,
            columns=plan.columns,
            passages=plan.passages,
            strict=plan.strict,
        )
        self.problems = stream.problems
        return iter(stream)

    def _prepare(self) -> Iterator[Sample]:
        plan, stream = self.plan, self._read()
        if all(condition == CLOSED for condition in plan.conditions):
            yield from stream
            return
        if self.index is not None:
            from floatlens.data.retrieval import retrieve

            wanted = plan.passages or plan.max_passages or RETRIEVED
            yield from (retrieve(sample, self.index, wanted) for sample in stream)
            return
        peeked = list(islice(stream, PEEK))
        if OPEN in plan.conditions and peeked and not any(s.passages or s.infill or s.continuation for s in peeked):
            raise FloatLensError(f"{self.name} has no passages; use --closed-book, or --retriever bm25 --corpus FILE")
        for sample in chain(peeked, stream):
            if plan.passages is not None and named_data(self.name) is None:
                sample = gold_among(sample, plan.passages)
            if plan.max_passages is not None:
                sample = first_passages(sample, plan.max_passages)
            yield sample


def open_sources(plan: EvaluationPlan) -> list[DataSource]:
    """Open the data sets of a plan; raises an error if one cannot be read or has no questions, before a model is loaded."""
    index = None
    if plan.corpus:
        from floatlens.data.retrieval import index_of

        index = index_of(plan.corpus)
    sources = [DataSource(part, plan, index) for name in plan.data for part in expand(name)]
    for source in sources:
        next(iter(source.samples()))
    return sources


def problems_of(sources: Sequence[DataSource]) -> dict[str, str]:
    """Return one sentence per data set on what was skipped."""
    return {source.label: text for source in sources if (text := source.problems.summary())}


def write_problems(folder: RunFolder, sources: Sequence[DataSource]) -> None:
    """Write the full list of problems to the run folder: one line per skipped line of the data."""
    folder.write_problems(line for source in sources for line in source.problems.to_records())
