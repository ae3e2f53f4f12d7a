"""The loop of every experiment: plan batches, skip what is there, compute, write, report progress.

`floatlens eval`, `trace`, `stress`, `ablate`, the study and `fl.evaluate` differ in their experiments: which cases a sample
makes, and how a batch of cases is computed. Runs are durable: results that the run folder has are not computed again, each
one that a worker returns is written, and the engine replaces workers that die.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pandas as pd

from floatlens.data.prompt import Prompt
from floatlens.data.sample import Sample
from floatlens.data.template import DEFAULT, Template, parse
from floatlens.errors import FloatLensError
from floatlens.evaluation.answers import AnswerRecord, TraceRecord, answers_table
from floatlens.evaluation.planning import (
    CLOSED,
    OPEN,
    WINDOW,
    AnswerSettings,
    Key,
    SharedPrompts,
    build_prompt,
    plan_batches,
    windows,
)
from floatlens.evaluation.retry import BatchRetry, error_reason
from floatlens.lens import Generation, Lens, limit_threads
from floatlens.options import Load, Recording
from floatlens.store.engine import Engine, JobFailure, ProgressCallback
from floatlens.store.folder import Claim, RunFolder
from floatlens.store.local import LocalEngine
from floatlens.trace.trace import Trace

Checksums = Mapping[str, str]  # of traces, by their names in the run folder


class Case(NamedTuple):
    """One result to compute: its record, without the answer, and its prompt; a record with an error has none."""

    record: Any  # AnswerRecord or TraceRecord
    prompt: Prompt | None


@dataclass(frozen=True)
class Experiment:
    """Questions for one model under one condition.

    Parameters
    ----------
    samples: the questions; a `Prompt` is used unchanged.
    count: number of results, if known.
    labels: further columns of the answers, such as stress and level.
    recording: also keep the trace of every answer.
    interventions: texts of the active interventions.
    """

    model: str
    data: str
    condition: str
    samples: Iterable[Sample | Prompt]
    asking: AnswerSettings
    count: int | None = None
    labels: dict[str, Any] = field(default_factory=dict)
    recording: Recording | None = None
    interventions: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        """The start of the keys of its results."""
        return self.model, self.data, self.condition

    def keys(self, ids: Sequence[str]) -> list[Key]:
        """Return the keys of the results of these questions, in the order of the table."""
        return [(*self.key, id_) for id_ in ids]

    def cases(self, lens: Lens, sample: Sample | Prompt) -> list[Case]:
        """Return the cases that a sample makes. `lens` needs no weights."""
        prompt, error = None, None
        try:
            prompt = build_prompt(lens, sample, self.asking, self.condition)
        except FloatLensError as reason:
            error = str(reason)
        if isinstance(sample, Prompt):
            sample = Sample(sample.sample_id, sample.question, sample.answers)
        return [Case(record, prompt) for record in self.records(lens, sample, prompt, error)]

    def records(self, lens: Lens, sample: Sample, prompt: Prompt | None, error: str | None) -> list[Any]:
        """Return the records of a sample before they are computed."""
        names = {"model": self.model, "data": self.data, "condition": self.condition, "kind": lens.family.kind}
        return [AnswerRecord.before(sample, prompt, error, **names, **self.labels)]

    def divide(self, cases: list[Case], missing: frozenset[Key], batches: int) -> list[list[Case]]:
        """Return the parts of a batch, one of `batches`, that may be computed by different workers."""
        return [cases]

    def compute(self, worker: ModelWorker, batch: Batch, folder: RunFolder | None) -> Iterator[tuple[Any, Checksums]]:
        """Yield each missing result of a batch, and the checksums of the traces that were saved for it."""
        lens = worker.lens(self.model)
        made: list[Any] = worker.retry(lambda cases: self._decode(lens, cases), batch.cases)
        for (record, _), result in zip(batch.cases, made, strict=True):
            if record.key not in batch.missing:
                continue
            if isinstance(result, BaseException):
                yield replace(record, error=error_reason(result)), {}
            elif self.recording is None:
                yield record.with_answer(result), {}
            else:
                how = self.recording
                save = folder.save_trace if folder is not None else lambda *_: {}
                yield record.with_trace(lens, result), save(record.name, result, how.trace_dtype, how.detail)

    def _decode(self, lens: Lens, cases: Sequence[Case]) -> Sequence[Generation | Trace]:
        prompts = [case.prompt for case in cases if case.prompt is not None]
        settings = self.asking.generation()
        with lens.intervene(*self.interventions) if self.interventions else nullcontext():
            if self.recording is None:
                return lens.generate(prompts, stop_when_answered=True, **settings)
            ids = [case.record.trace_id for case in cases]
            return lens.traces(prompts, sample_ids=ids, **vars(self.recording), **settings)


@dataclass(frozen=True)
class TraceExperiment(Experiment):
    """Questions to be traced with one model: the run folder keeps one trace per question, and no table of answers."""

    @property
    def key(self) -> Key:
        return (self.model,)

    def records(self, lens: Lens, sample: Sample, prompt: Prompt | None, error: str | None) -> list[Any]:
        return [TraceRecord(sample.id, self.model, error)]


@dataclass(frozen=True)
class Batch:
    """Cases that a worker computes together; `experiment` has no samples here, and `claim` is that of the run folder.

    Cases that are not `missing` have a result already; they are kept so that the composition of the batch stays the same.
    """

    experiment: Experiment
    cases: list[Case]
    missing: frozenset[Key]
    claim: Claim | None = None

    def split(self) -> list[Batch]:
        """Return the batch in its smallest parts, to find the one that kills its worker: by question, or by case."""
        by_id: dict[str, list[Case]] = {}
        for case in self.cases:
            by_id.setdefault(case.record.id, []).append(case)
        parts = list(by_id.values()) if len(by_id) > 1 else [[case] for case in self.cases]
        return [replace(self, cases=part) for part in parts if any(case.record.key in self.missing for case in part)]

    def lost(self, error: str) -> list[Any]:
        """Return the missing results of a batch that no worker survived."""
        return [replace(case.record, error=error) for case in self.cases if case.record.key in self.missing]


@dataclass
class ModelWorker:
    """Computes batches: keeps one model at a time, saves traces, and returns the results.

    `load` is how models are loaded, or a function that returns the lens of a model's name; it is used once per model, in
    the process that needs the lens.
    """

    load: Load | Callable[[str], Lens] = Load()

    def __post_init__(self) -> None:
        self.held: tuple[str, Lens] | None = None
        self.retry = BatchRetry()
        self.notes: dict[str, Any] = {}  # results that a batch keeps for the next one with the same model

    def __getstate__(self) -> dict[str, Any]:
        return {"load": self.load}  # a model stays in its process

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.load = state["load"]
        self.__post_init__()

    def __call__(self, batch: Batch) -> tuple[list[tuple[Any, Checksums]], float]:
        """Compute a batch; returns its results, and the time in seconds without loading the model."""
        self.lens(batch.experiment.model)
        began = time.perf_counter()
        folder = RunFolder.of_owner(batch.claim) if batch.claim is not None else None
        return list(batch.experiment.compute(self, batch, folder)), time.perf_counter() - began

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
        self.held, self.notes, self.retry = (model, lens), {}, BatchRetry()

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


class Journal:
    """The results of a run by key, read from the run folder if there is one, and written to it.

    Parameters
    ----------
    retry_errors: drop the results that are errors, so that they are tried again.
    kind: the class of the records.
    share_prompts: answer a prompt only once if several questions share it.
    """

    def __init__(
        self,
        folder: RunFolder | None = None,
        *,
        retry_errors: bool = False,
        kind: type[Any] = AnswerRecord,
        share_prompts: bool = False,
    ) -> None:
        self.folder = folder
        self.shared = SharedPrompts() if share_prompts else None
        self.found: dict[Key, Any] = {}
        if folder is None:
            return
        results = folder.results()
        if retry_errors:
            folder.forget(result for result in results if result.value.get("error"))
            results = [result for result in results if not result.value.get("error")]
        self.found = {result.key: kind.from_result(result.key, result.value) for result in results}
        folder.write_errors((record.name, record.error) for record in self.found.values() if record.error)

    def add(self, record: Any, checksums: Checksums | None = None) -> None:
        """Write a result; an error is also listed in errors.jsonl. `checksums` are those of its traces."""
        self.found[record.key] = record
        if self.folder is not None:
            self.folder.put(record.key, record.value(), checksums)
            if record.error:
                self.folder.record_error(record.name, record.error)


@dataclass
class LoopResult:
    """The results of all experiments, in the order of their questions.

    `seconds` of work per experiment are shared by all workers; `computed` are the results that this work made, without
    those that the run had already.
    """

    records: list[Any] = field(default_factory=list)
    seconds: dict[Key, float] = field(default_factory=dict)
    computed: Counter[Key] = field(default_factory=Counter)

    def per_second(self) -> dict[Key, float | None]:
        """Return the number of results per second of each experiment; None if all were there already."""
        return {key: round(self.computed[key] / took, 2) if took else None for key, took in self.seconds.items()}


def run_experiments(
    experiments: Iterable[Experiment],
    worker: ModelWorker,
    journal: Journal | None = None,
    *,
    engine: Engine | None = None,
    watch: ProgressCallback | None = None,
) -> LoopResult:
    """Run experiments and return their results; results that the journal already has are not computed again.

    Parameters
    ----------
    experiments: taken one by one, each when its batches are planned.
    engine: hands batches to workers; default: this process.
    watch: called with the name and the number of results of each; returns a function that is called per result.
    """
    journal, engine, result = journal or Journal(), engine or LocalEngine(), LoopResult()
    planned: list[tuple[Experiment, list[str]]] = []
    advance: dict[Key, Callable[[], None]] = {}
    copies: list[tuple[AnswerRecord, Key]] = []  # results of a prompt that another question has, and that one's key
    if journal.shared is not None:
        journal.shared.forget_missing(journal.found)

    def batches() -> Iterator[Batch]:
        for experiment in experiments:
            ids: list[str] = []
            planned.append((experiment, ids))
            result.seconds.setdefault(experiment.key, 0.0)
            advance[experiment.key] = watch(", ".join(experiment.key), experiment.count) if watch else lambda: None
            lens = worker.planning_lens(experiment.model, engine.in_process)
            for window in windows(experiment.samples, experiment.asking.batch_size * WINDOW):
                cases = {each[0].record.id: each for each in (experiment.cases(lens, sample) for sample in window)}
                ids += cases
                yield from _plan(experiment, lens, cases, journal, copies, advance[experiment.key], engine)

    for batch, made in engine.run(worker, batches()):
        key = batch.experiment.key
        if isinstance(made, JobFailure):  # no worker survived it
            found: list[tuple[Any, Checksums]] = [(record, {}) for record in batch.lost(made.reason)]
        else:
            found, seconds = made
            result.seconds[key] += seconds / engine.workers
            result.computed[key] += len(found)
        for record, checksums in found:
            journal.add(record, checksums)
            advance[key]()
    for record, origin in copies:
        journal.add(record.with_answer_of(journal.found[origin]))
        advance[record.key[:-1]]()
    result.records = [journal.found[key] for experiment, ids in planned for key in experiment.keys(ids)]
    return result


def _plan(
    experiment: Experiment,
    lens: Lens,
    cases: dict[str, list[Case]],
    journal: Journal,
    copies: list[tuple[AnswerRecord, Key]],
    advance: Callable[[], None],
    engine: Engine,
) -> Iterator[Batch]:
    """Plan the batches of some questions from all their cases, whether these have a result already or not."""
    every = [case for several in cases.values() for case in several]
    missing = frozenset(case.record.key for case in every if case.record.key not in journal.found)
    for record, _ in every:
        if record.key in missing and record.error is not None:  # it cannot be asked: the reason is its result
            journal.add(record)
        elif record.key in missing:
            continue
        advance()
    prompts = {id_: several[0].prompt for id_, several in cases.items() if several[0].prompt is not None}
    if journal.shared is not None and not experiment.interventions:
        ask_all = experiment.recording is not None
        for id_, prompt in list(prompts.items()):
            record = cases[id_][0].record
            origin = journal.shared.origin(record.key, prompt, experiment.asking, experiment, ask_all=ask_all)
            if origin is not None:
                del prompts[id_]
                if record.key in missing:
                    copies.append((record, origin))
    batches = plan_batches(prompts, experiment.asking.batch_size if lens.batched else 1)
    sent = replace(experiment, samples=())
    claim = journal.folder.claim if journal.folder is not None else None
    for ids in batches:
        for part in experiment.divide([case for id_ in ids for case in cases[id_]], missing, len(batches)):
            wanted = missing & {case.record.key for case in part}
            if wanted:
                yield Batch(sent, part, wanted, claim)


def answer_all(
    experiments: Iterable[Experiment],
    worker: ModelWorker,
    folder: RunFolder | None = None,
    *,
    engine: Engine | None = None,
    watch: ProgressCallback | None = None,
    retry_errors: bool = False,
) -> tuple[pd.DataFrame, dict[Key, float | None]]:
    """Return the table of answers of experiments, also written to the run folder, and the answers per second of each."""
    result = run_experiments(
        experiments, worker, Journal(folder, retry_errors=retry_errors), engine=engine, watch=watch
    )
    answers = answers_table(result.records)
    if folder is not None:
        folder.write_table("answers", answers)
    return answers, result.per_second()


def evaluate(
    lens: Lens,
    samples: Iterable[Sample],
    *,
    closed_book: bool = False,
    max_new_tokens: int = 32,
    steps: int | None = None,
    seed: int = 0,
    sampler: Mapping[str, Any] | None = None,
    batch_size: int = 16,
    order: str = "last",
    template: Template | str = DEFAULT,
    chat: bool = True,
    data: str | None = None,
) -> pd.DataFrame:
    """Answer the questions of samples with a model and score the answers; `floatlens eval` runs the same code.

    Parameters
    ----------
    samples: such as `fl.read("nq.jsonl")`; their ids must differ.
    closed_book: ask without passages. Otherwise, a question without passages has an error in its row.
    max_new_tokens, steps, seed, sampler: settings of the sampler; `sampler` has further ones, such as temperature.
    batch_size: number of questions decoded together. When memory runs out, batches are halved.
    order: position of the question: `last`, `first`, or on `both` sides of the passages.
    template: the text around the question, with the slots {passages} and {question}.
    chat: put the text into the model's chat template.
    data: name of the data set in the table.

    Returns
    -------
    One row per question with `id`, `question`, `answer`, `gold`, the scores `em`, `accuracy`, `accuracy_words` and `f1`,
    `confidence`, `steps`, and `error` if the question could not be answered.

    >>> answers = fl.evaluate(fl.load("tiny-mdm"), fl.read("world:fresh", limit=50))      # doctest: +SKIP
    >>> answers["accuracy"].mean()                                                       # doctest: +SKIP
    """
    asking = AnswerSettings(
        max_new_tokens=max_new_tokens,
        steps=steps,
        batch_size=batch_size,
        seed=seed,
        order=order,
        template=parse(template) if isinstance(template, str) else template,
        chat=chat,
        sampler=dict(sampler or {}),
    )
    name = data if data is not None else getattr(samples, "name", "data")
    experiment = Experiment(lens.name, str(name), CLOSED if closed_book else OPEN, _distinct(samples), asking)
    return answer_all([experiment], ModelWorker(lambda name: lens))[0]


def _distinct(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield the samples; raise an error if an id occurs twice, because results are stored by id."""
    seen = set()
    for sample in samples:
        if sample.id in seen:
            raise FloatLensError(
                f"the id {sample.id[:80]!r} occurs twice among the samples; give each sample a unique id"
            )
        seen.add(sample.id)
        yield sample
