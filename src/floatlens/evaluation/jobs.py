"""Jobs for the loop in `run.py`: how questions are grouped into batches, and how a worker processes a batch.

`AnswerJob` answers the questions of `floatlens eval`, `stress` and the study, `TraceJob` records the traces of
`floatlens trace`; the job of `floatlens ablate` is in `ablate/job.py`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from floatlens.data.prompt import Prompt
from floatlens.data.sample import Sample
from floatlens.evaluation.answers import AnswerRecord
from floatlens.evaluation.planning import Asking, Key, Question, plan_windows
from floatlens.lens import Lens, limit_threads
from floatlens.options import Load, Recording
from floatlens.store.folder import Claim, RunFolder
from floatlens.store.oom_retry import BatchRetry, error_reason

if TYPE_CHECKING:
    from floatlens.evaluation.run import Journal
    from floatlens.lens import Generation
    from floatlens.trace.trace import Trace

Checksums = Mapping[str, str]  # of traces, by their names in the run folder


class ResultRecord(Protocol):
    """The result of one question: its key and value in the run folder; `name` is used in errors.jsonl."""

    error: str | None

    @property
    def key(self) -> Key: ...

    @property
    def name(self) -> str: ...

    def value(self) -> dict[str, Any]: ...


class ModelBatch(Protocol):
    """Questions that one worker processes together, in any process.

    `job` is the key of the job, which begins with the model; `claim` is that of the run folder, if there is one.
    """

    @property
    def job(self) -> Key: ...

    @property
    def claim(self) -> Claim | None: ...

    def split(self) -> Sequence[ModelBatch]:
        """Return the batch in its smallest parts, to find the question that kills its worker."""
        ...

    def run(self, worker: ModelWorker, folder: RunFolder | None) -> Iterator[tuple[ResultRecord, Checksums | None]]:
        """Yield each missing result, and the checksums of the traces that were saved for it."""
        ...

    def lost(self, error: str) -> Sequence[ResultRecord]:
        """Return the missing results of a batch that no worker survived."""
        ...


@dataclass(frozen=True)
class PlannedPart:
    """A part of a job's plan: the ids of its questions, and where each result comes from.

    `done` is the number of results that the run already has, `refused` are the results of questions that cannot be asked,
    `copies` those of questions with the same prompt as another one, with its key; `batches` produce the other results.
    """

    ids: list[str]
    done: int
    refused: Sequence[ResultRecord]
    batches: Sequence[ModelBatch]
    copies: Sequence[tuple[AnswerRecord, Key]] = ()


class EvaluationJob(Protocol):
    """The work on one model and data set. `key` identifies it; `count` is the number of results, if known."""

    @property
    def model(self) -> str: ...

    @property
    def key(self) -> Key: ...

    @property
    def count(self) -> int | None: ...

    def plan(self, lens: Lens, journal: Journal) -> Iterator[PlannedPart]:
        """Plan the batches, from all questions. `lens` needs no weights."""
        ...

    def keys(self, ids: Sequence[str]) -> list[Key]:
        """Return the keys of the results of these questions, in the order of the final table."""
        ...


@dataclass
class ModelWorker:
    """Processes batches: keeps one model at a time, saves traces, and returns the results.

    `load` is how models are loaded, or a function that returns the lens of a model's name; it is used once per model, in
    the process that needs the lens.
    """

    load: Load | Callable[[str], Lens] = Load()

    def __post_init__(self) -> None:
        self.held: tuple[str, Lens] | None = None
        self.retry: BatchRetry[Any, Any] = BatchRetry(
            lambda items: []
        )  # remembers the largest batch that fits in memory
        self.notes: dict[str, Any] = {}  # results that a batch keeps for the next one with the same model

    def __getstate__(self) -> dict[str, Any]:
        return {"load": self.load}  # a model stays in its process

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.load = state["load"]
        self.__post_init__()

    def __call__(self, batch: ModelBatch) -> tuple[list[tuple[ResultRecord, Checksums | None]], float]:
        """Process a batch; returns its results, and the time in seconds without loading the model."""
        self.lens(batch.job[0])
        began = time.perf_counter()
        folder = RunFolder.of_owner(batch.claim) if batch.claim is not None else None
        return list(batch.run(self, folder)), time.perf_counter() - began

    def lens(self, model: str) -> Lens:
        """Return the lens of a model; the lens of another model is freed first."""
        if self.held is None or self.held[0] != model:
            self.held, self.notes = None, {}
            gc.collect()
            self.hold(model, self._load(model))
        assert self.held is not None
        return self.held[1]

    def hold(self, model: str, lens: Lens) -> None:
        """Use a lens that is already loaded."""
        self.held, self.notes, self.retry = (model, lens), {}, BatchRetry(lambda items: [])

    def planning_lens(self, model: str, inside: bool) -> Lens:
        """Return a lens to plan with: the model's own if it is used in this process, otherwise one without weights."""
        if inside or not isinstance(self.load, Load):
            return self.lens(model)
        return Lens.find(model, self.load)

    def _load(self, model: str) -> Lens:
        if not isinstance(self.load, Load):
            return self.load(model)
        lens = limit_threads(Lens.find(model, self.load))
        _ = lens.model
        return lens


@dataclass(frozen=True)
class AnswerJob:
    """Questions for one model under one condition.

    Parameters
    ----------
    samples: the questions; a `Prompt` is used unchanged.
    labels: further columns of the answers, such as stress and level.
    recording: also keep the trace of every answer.
    interventions: texts of the active interventions.
    """

    model: str
    data: str
    condition: str
    samples: Iterable[Sample | Prompt]
    asking: Asking
    count: int | None = None
    labels: dict[str, Any] = field(default_factory=dict)
    recording: Recording | None = None
    interventions: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        return self.model, self.data, self.condition

    def keys(self, ids: Sequence[str]) -> list[Key]:
        return [(*self.key, id_) for id_ in ids]

    def record(self, question: Question, kind: str) -> Any:
        """Return the record of a question before it is answered."""
        names = {"model": self.model, "data": self.data, "condition": self.condition, "kind": kind}
        return AnswerRecord.from_question(question, **names, **self.labels)

    def plan(self, lens: Lens, journal: Journal) -> Iterator[PlannedPart]:
        shared = {}
        if journal.shared is not None and not self.interventions:
            shared["origin"] = journal.shared.origins(self.key, self.asking, ask_all=self.recording is not None)
        for window in plan_windows(lens, self.samples, self.asking, self.condition, **shared):
            records = {q.id: self.record(q, lens.family.kind) for q in window.questions}
            missing = {id_: record.key not in journal.found for id_, record in records.items()}
            batches = []
            for questions in window.batches:
                wanted = [missing[q.id] for q in questions]
                if any(wanted):
                    made, prompts = (
                        [records[q.id] for q in questions],
                        [q.prompt for q in questions if q.prompt is not None],
                    )
                    batches.append(
                        QuestionBatch(
                            self.key,
                            journal.claim,
                            made,
                            prompts,
                            wanted,
                            self.asking.generation(),
                            self.recording,
                            self.interventions,
                        )
                    )
            yield PlannedPart(
                ids=list(records),
                done=sum(not each for each in missing.values()),
                refused=[record for id_, record in records.items() if missing[id_] and record.error is not None],
                batches=batches,
                copies=[(records[id_], key) for id_, key in window.origins.items() if missing[id_]],
            )


@dataclass(frozen=True)
class TraceJob(AnswerJob):
    """Questions to be traced with one model: the run folder keeps one trace per question, and no table of answers."""

    @property
    def key(self) -> Key:
        return (self.model,)

    def record(self, question: Question, kind: str) -> TraceRecord:
        return TraceRecord(question.id, self.model, question.error)


@dataclass
class TraceRecord:
    """A traced question: its trace is in the run folder, unless there is an error."""

    id: str
    model: str
    error: str | None = None

    @classmethod
    def from_result(cls, key: Key, value: Mapping[str, Any]) -> TraceRecord:
        return cls(key[1], key[0], value.get("error"))

    @property
    def key(self) -> Key:
        return self.model, self.id

    @property
    def name(self) -> str:
        return self.id

    @property
    def trace_id(self) -> str:
        return self.id

    def value(self) -> dict[str, Any]:
        return {"error": self.error}

    def with_trace(self, lens: Lens, trace: Trace) -> TraceRecord:
        return self


@dataclass(frozen=True)
class QuestionBatch:
    """Questions that are decoded together.

    Questions that are not `missing` already have a result; they are decoded again so that the batch composition stays the
    same.
    """

    job: Key
    claim: Claim | None
    records: list[Any]  # AnswerRecord or TraceRecord
    prompts: list[Prompt]
    missing: list[bool]
    settings: dict[str, Any]
    recording: Recording | None = None
    interventions: tuple[str, ...] = ()

    def split(self) -> list[QuestionBatch]:
        parts = zip(self.records, self.prompts, self.missing, strict=True)
        return [replace(self, records=[r], prompts=[p], missing=[m]) for r, p, m in parts if m]

    def lost(self, error: str) -> list[ResultRecord]:
        return [replace(r, error=error) for r, missing in zip(self.records, self.missing, strict=True) if missing]

    def run(self, worker: ModelWorker, folder: RunFolder | None) -> Iterator[tuple[ResultRecord, Checksums | None]]:
        lens = worker.lens(self.job[0])
        worker.retry.run = lambda pairs: self._decode(lens, pairs)
        pairs = list(zip(self.records, self.prompts, strict=True))
        for record, missing, made in zip(self.records, self.missing, worker.retry(pairs), strict=True):
            if not missing:
                continue
            if isinstance(made, BaseException):
                yield replace(record, error=error_reason(made)), None
            elif self.recording is None:
                yield record.with_answer(made), None
            else:
                how = self.recording
                saved = (
                    folder.save_trace(record.name, made, how.trace_dtype, how.detail) if folder is not None else None
                )
                yield record.with_trace(lens, made), saved

    def _decode(self, lens: Lens, pairs: Sequence[tuple[Any, Prompt]]) -> Sequence[Generation | Trace]:
        prompts = [prompt for _, prompt in pairs]
        with lens.intervene(*self.interventions) if self.interventions else nullcontext():
            if self.recording is None:
                return lens.generate(prompts, stop_when_answered=True, **self.settings)
            ids = [record.trace_id for record, _ in pairs]
            return lens.traces(prompts, sample_ids=ids, **vars(self.recording), **self.settings)
