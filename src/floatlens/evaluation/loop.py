"""The loop of every experiment: plan batches, skip what is there, compute, write, report progress.

`floatlens eval`, `trace`, `stress`, `ablate`, the study and `fl.evaluate` differ in their experiments: which cases a sample
makes, and how a batch of cases is computed. Runs are durable: results that the run folder has are not computed again, each
one that a worker returns is written, and the engine replaces workers that die. A batch that runs out of memory is halved,
and a sample that fails is isolated, so that the others get their results.
"""

from __future__ import annotations

import gc
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple, TypeVar, Unpack

import pandas as pd
import torch

from floatlens.data.prompt import Prompt
from floatlens.data.sample import Sample
from floatlens.data.template import parse
from floatlens.errors import FloatLensError, NotANumber
from floatlens.evaluation.answers import AnswerRecord, answers_table
from floatlens.evaluation.sources import CLOSED, OPEN, WINDOW, Key, build_prompt, plan_batches
from floatlens.keywords import EvaluateKeywords
from floatlens.lens import Generation, Lens, limit_threads
from floatlens.options import Data, Load, Recording, Run, Sampling, make
from floatlens.store.engine import Engine, ProgressCallback, WorkerDied
from floatlens.store.folder import RunFolder
from floatlens.store.storage import hash_bytes

T = TypeVar("T")
R = TypeVar("R")
Checksums = Mapping[str, str]  # of traces, by their names in the run folder
PROMPT = "prompt"  # the hash of a result's prompt, beside the fields of its record
# Errors of a single sample. Other FloatLensErrors are about settings and OSErrors about the disk: these stop the run.
SAMPLE_ERRORS = (RuntimeError, MemoryError, ValueError, IndexError, NotANumber)


class Case(NamedTuple):
    """One result to compute: its record, without the answer, and its prompt; a record with an error has none."""

    record: AnswerRecord
    prompt: Prompt | None


@dataclass(frozen=True)
class Experiment:
    """Questions for one model under one condition. Without data and condition, questions are asked as they are."""

    model: str
    data: str
    condition: str
    samples: Iterable[Sample | Prompt]  # a `Prompt` is used unchanged
    sampling: Sampling = Sampling()
    reading: Data = Data()  # the words in which questions are put
    batch_size: int = Run.batch_size
    count: int | None = None  # number of results, if known
    labels: dict[str, Any] = field(default_factory=dict)  # further columns of the answers, such as stress and level
    recording: Recording | None = None  # to keep also the trace of every answer
    interventions: tuple[str, ...] = ()  # texts of the active ones

    @property
    def key(self) -> Key:
        """The start of the keys of its results."""
        return tuple(part for part in (self.model, self.data, self.condition) if part)

    def cases(self, lens: Lens, sample: Sample | Prompt) -> list[Case]:
        """Return the cases that a sample makes. `lens` needs no weights."""
        prompt, error = None, None
        try:
            prompt = build_prompt(lens, sample, self.sampling, self.reading, self.condition)
        except FloatLensError as reason:
            error = str(reason)
        if isinstance(sample, Prompt):
            sample = Sample(sample.sample_id, sample.question, sample.answers)
        return [Case(record, prompt) for record in self.records(lens, sample, prompt, error)]

    def records(self, lens: Lens, sample: Sample, prompt: Prompt | None, error: str | None) -> Sequence[AnswerRecord]:
        """Return the records of a sample before they are computed."""
        names = {"model": self.model, "data": self.data, "condition": self.condition, "kind": lens.family.kind}
        return [AnswerRecord.before(sample, prompt, error, **names, **self.labels)]

    def divide(self, cases: list[Case]) -> list[list[Case]]:
        """Return the parts of a batch that may be computed by different workers."""
        return [cases]

    def compute(self, worker: ModelWorker, batch: Batch) -> Iterator[tuple[Any, Checksums]]:
        """Yield each missing result of a batch, and the checksums of the traces that were saved for it."""
        made: list[Any] = worker.retry(lambda cases: self.decode(worker, cases), batch.cases)
        for (record, _), result in zip(batch.cases, made, strict=True):
            if record.key not in batch.missing:
                continue
            if isinstance(result, BaseException):
                yield replace(record, error=error_reason(result)), {}
            else:
                yield self.finish(worker.lens(self.model), record, result, batch.folder)

    def decode(self, worker: ModelWorker, cases: list[Case]) -> Sequence[Any]:
        """Run the prompts of some cases together, and return what each makes."""
        lens, prompts = worker.lens(self.model), [case.prompt for case in cases if case.prompt is not None]
        with lens.intervene(*self.interventions) if self.interventions else nullcontext():
            if self.recording is None:
                return lens.generate(prompts, stop_when_answered=True, **vars(self.sampling))
            ids = [case.record.trace_id for case in cases]
            return lens.traces(prompts, sample_ids=ids, **vars(self.recording), **vars(self.sampling))

    def finish(
        self, lens: Lens, record: AnswerRecord, made: Any, folder: RunFolder | None
    ) -> tuple[AnswerRecord, Checksums]:
        """Return the record with what `decode` made, and the checksum of its trace, which is saved."""
        if self.recording is None:
            return record.with_answer(made), {}
        answered, how = record.with_answer(Generation.from_trace(lens, made)), self.recording
        return answered, {} if folder is None else folder.save_trace(record.name, made, detail=how.detail)


@dataclass(frozen=True)
class Batch:
    """Cases that a worker computes together; `experiment` has no samples here.

    Cases that are not `missing` have a result already; they are kept so that the composition of the batch stays the same.
    """

    experiment: Experiment
    cases: list[Case]
    missing: frozenset[Key]
    folder: RunFolder | None = None

    def split(self) -> list[Batch]:
        """Return the batch in its smallest parts, to find the one that kills its worker: by question, or by case."""
        by_id: dict[str, list[Case]] = {}
        for case in self.cases:
            by_id.setdefault(case.record.id, []).append(case)
        parts = list(by_id.values()) if len(by_id) > 1 else [[case] for case in self.cases]
        return [replace(self, cases=part) for part in parts if any(case.record.key in self.missing for case in part)]

    def lost(self, error: str) -> list[AnswerRecord]:
        """Return the missing results of a batch that no worker survived."""
        return [replace(case.record, error=error) for case in self.cases if case.record.key in self.missing]


class ModelWorker:
    """Computes batches in its process: keeps one model at a time, saves traces, and returns the results.

    `load` is how models are loaded, or a function that returns the lens of a model's name; it is used once per model, in
    the process that needs the lens.

    >>> def run(batch):
    ...     if len(batch) > 2:
    ...         raise MemoryError
    ...     return [10 // n for n in batch]
    >>> ModelWorker().retry(run, [5, 1, 2])
    [2, 10, 5]
    """

    def __init__(self, load: Load | Callable[[str], Lens] = Load()) -> None:
        self.load = load
        self.held: tuple[str, Lens] | None = None
        self.largest: int | None = None  # number of samples that fit the memory, once it ran out
        self.notes: dict[str, Any] = {}  # results that a batch keeps for the next one with the same model

    def __reduce__(self) -> tuple[Any, ...]:
        return ModelWorker, (self.load,)  # a model stays in its process

    def __call__(self, batch: Batch) -> tuple[list[tuple[Any, Checksums]], float]:
        """Compute a batch; returns its results, and the time in seconds without loading the model."""
        self.lens(batch.experiment.model)
        began = time.perf_counter()
        return list(batch.experiment.compute(self, batch)), time.perf_counter() - began

    def lens(self, model: str) -> Lens:
        """Return the lens of a model; the lens of another model is freed first."""
        if self.held is None or self.held[0] != model:
            self.held, self.notes, self.largest = None, {}, None
            gc.collect()
            if isinstance(self.load, Load):
                lens = limit_threads(Lens.find(model, self.load))
                _ = lens.model  # loads the weights
            else:
                lens = self.load(model)
            self.held = model, lens
        return self.held[1]

    def planning_lens(self, model: str, inside: bool) -> Lens:
        """Return a lens to plan with: the model's own if it is used in this process, otherwise one without weights."""
        if inside or not isinstance(self.load, Load):
            return self.lens(model)
        return Lens.find(model, self.load)

    def retry(self, run: Callable[[list[T]], Sequence[R]], items: Sequence[T]) -> list[R | BaseException]:
        """Call a function with a batch, and return the result of each item, or the error that it raises when run alone.

        When memory runs out, the batch is halved, and later ones have at most that size.
        """
        left: list[T] = list(items)
        done: list[R | BaseException] = []
        while left:
            batch = left[: self.largest or len(left)]
            try:
                done += run(batch)
            except SAMPLE_ERRORS as error:
                if is_out_of_memory(error) and len(batch) > 1:
                    self.largest = len(batch) // 2
                    if torch.cuda.is_available():
                        torch.cuda.empty_cache()
                    continue
                done += [error] if len(batch) == 1 else [self.retry(run, [item])[0] for item in batch]
            left = left[len(batch) :]
        return done


def error_reason(error: BaseException) -> str:
    """An error in one line, for a row."""
    text = "out of memory with a batch of one" if is_out_of_memory(error) else str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a smaller batch may help."""
    texts = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(text in str(error).lower() for text in texts)


class Journal:
    """The results of a run by key, read from the run folder if there is one, and written to it.

    Results that are errors are dropped, so that they are tried again, and a result counts for its own prompt only: the
    passages of a stress test, for example, depend on all questions that are asked. `kind` is the class of the records; with
    `share_prompts`, a prompt that several questions share is answered only once.
    """

    def __init__(
        self, folder: RunFolder | None = None, *, kind: type[AnswerRecord] = AnswerRecord, share_prompts: bool = False
    ) -> None:
        self.folder, self.share_prompts = folder, share_prompts
        self.found: dict[Key, Any] = {}
        self.prompts: dict[Key, str] = {}  # the hash of the prompt of each result
        self.first: dict[tuple[object, ...], tuple[Key, Experiment]] = {}  # the question that has each prompt first
        if folder is not None:
            results = folder.results()
            folder.forget(result for result in results if result.value.get("error"))
            kept = [result for result in results if not result.value.get("error")]
            values = {result.key: dict(result.value) for result in kept}
            self.prompts = {key: str(value.pop(PROMPT)) for key, value in values.items() if PROMPT in value}
            self.found = {key: kind.from_result(key, value) for key, value in values.items()}

    def add(self, record: AnswerRecord, checksums: Checksums | None = None) -> None:
        """Write a result. `checksums` are those of its traces."""
        self.found[record.key] = record
        if self.folder is not None:
            self.folder.put(record.key, record.value() | {PROMPT: self.prompts.get(record.key, "")}, checksums)

    def expect(self, key: Key, prompt: Prompt | None) -> None:
        """Drop the result of another prompt."""
        digest = "" if prompt is None else hash_bytes(repr((prompt.ids, prompt.script, prompt.tail)).encode())[:16]
        if self.prompts.setdefault(key, digest) != digest:
            self.prompts[key] = digest
            self.found.pop(key, None)

    def origin(self, key: Key, prompt: Prompt, experiment: Experiment) -> Key | None:
        """Return the key of the result with the answer to the same prompt, or None if the question is to be asked.

        An answer depends only on the tokens of the prompt and the settings of the sampler, whether greedy or seeded. So the
        stress levels that equal the default reuse the answers of Table 1, and traced questions reuse their traces. Which
        question is first is decided when batches are planned, so it does not depend on interruptions or workers.
        """
        if not self.share_prompts or experiment.interventions:
            return None
        settings = json.dumps(vars(experiment.sampling), sort_keys=True, default=str)
        about = (key[0], tuple(prompt.ids), prompt.script, prompt.tail, settings)
        first, of = self.first.setdefault(about, (key, experiment))
        traced = experiment.recording is not None  # more than the answer is needed
        return None if traced or (first == key and of is experiment) else first


def run_experiments(
    experiments: Iterable[Experiment],
    worker: ModelWorker,
    journal: Journal | None = None,
    *,
    engine: Engine | None = None,
    watch: ProgressCallback | None = None,
) -> tuple[list[Any], dict[Key, float | None]]:
    """Run experiments; return their records in the order of the questions, and the results per second of each.

    Results that the journal already has are not computed again, and do not count for the rate, which is None without any.

    Parameters
    ----------
    experiments: taken one by one, each when its batches are planned.
    engine: hands batches to workers; default: this process.
    watch: called with the name and the number of results of each; returns a function that is called per result.
    """
    journal = journal or Journal()
    keys: list[Key] = []  # of all results
    advance: dict[Key, Callable[[], None]] = {}  # by experiment
    copies: list[tuple[AnswerRecord, Key]] = []  # results of a prompt that another question has, and that one's key
    seconds: defaultdict[Key, float] = defaultdict(float)  # of work, by experiment; all workers share it
    computed: Counter[Key] = Counter()
    journal.first = {about: one for about, one in journal.first.items() if one[0] in journal.found}  # others failed

    def batches() -> Iterator[Batch]:
        for experiment in experiments:
            advance[experiment.key] = watch(", ".join(experiment.key), experiment.count) if watch else lambda: None
            lens = worker.planning_lens(experiment.model, engine is None)
            samples = iter(experiment.samples)
            while window := list(islice(samples, experiment.batch_size * WINDOW)):
                cases = {each[0].record.id: each for each in (experiment.cases(lens, sample) for sample in window)}
                keys.extend(case.record.key for several in cases.values() for case in several)
                yield from _plan(experiment, lens, cases, journal, copies, advance[experiment.key])

    planned = batches()
    for batch, made in engine.run(worker, planned) if engine else ((each, worker(each)) for each in planned):
        key = batch.experiment.key
        if isinstance(made, WorkerDied):  # no worker survived it
            found: list[tuple[Any, Checksums]] = [(record, {}) for record in batch.lost(str(made))]
        else:
            found, took = made
            seconds[key] += took / (engine.workers if engine is not None else 1)
            computed[key] += len(found)
        for record, checksums in found:
            journal.add(record, checksums)
            advance[key]()
    for record, origin in copies:
        journal.add(record.with_answer_of(journal.found[origin]))
        advance[record.key[:-1]]()
    rates = {key: round(computed[key] / seconds[key], 2) if seconds[key] else None for key in advance}
    return [journal.found[key] for key in keys], rates


def _plan(
    experiment: Experiment,
    lens: Lens,
    cases: dict[str, list[Case]],
    journal: Journal,
    copies: list[tuple[AnswerRecord, Key]],
    advance: Callable[[], None],
) -> Iterator[Batch]:
    """Plan the batches of some questions from all their cases, whether these have a result already or not."""
    every = [case for several in cases.values() for case in several]
    for record, prompt in every:
        journal.expect(record.key, prompt)
    missing = frozenset(case.record.key for case in every if case.record.key not in journal.found)
    for record, _ in every:
        if record.key in missing and record.error is not None:  # it cannot be asked: the reason is its result
            journal.add(record)
        elif record.key in missing:
            continue
        advance()
    prompts = {}
    for id_, [(record, prompt), *_] in cases.items():
        if prompt is None:
            continue
        origin = journal.origin(record.key, prompt, experiment)
        if origin is None:
            prompts[id_] = prompt
        elif record.key in missing:
            copies.append((record, origin))
    sent = replace(experiment, samples=())
    for ids in plan_batches(prompts, experiment.batch_size if lens.batched else 1):
        for part in experiment.divide([case for id_ in ids for case in cases[id_]]):
            if wanted := missing & {case.record.key for case in part}:
                yield Batch(sent, part, wanted, journal.folder)


def answer_all(
    experiments: Iterable[Experiment],
    worker: ModelWorker,
    folder: RunFolder | None = None,
    *,
    kind: type[AnswerRecord] = AnswerRecord,
    engine: Engine | None = None,
    watch: ProgressCallback | None = None,
) -> tuple[pd.DataFrame, dict[Key, float | None]]:
    """Return the table of answers of experiments, also written to the run folder, and the answers per second of each."""
    records, rates = run_experiments(experiments, worker, Journal(folder, kind=kind), engine=engine, watch=watch)
    answers = answers_table(records, kind)
    if folder is not None:
        folder.write_table("answers", answers)
    return answers, rates


def evaluate(
    lens: Lens,
    samples: Iterable[Sample],
    *,
    closed_book: bool = False,
    data: str | None = None,
    **options: Unpack[EvaluateKeywords],
) -> pd.DataFrame:
    """Answer the questions of samples with a model and score the answers; `floatlens eval` runs the same code.

    `samples` are those of `fl.read("nq.jsonl")`, say; their ids must differ. Unless `closed_book`, a question without
    passages has an error in its row. `data` names the data set in the table. The options are the fields of
    `floatlens.options.Sampling`, `batch_size`, and of `Data` the fields `order`, `template` (or its text) and `chat`.

    Returns one row per question with `id`, `question`, `answer`, `gold`, the scores `em`, `accuracy`, `accuracy_words` and
    `f1`, `confidence`, `steps`, and `error` if the question could not be answered.

    >>> answers = fl.evaluate(fl.load("tiny-mdm"), fl.read("world:fresh", limit=50))      # doctest: +SKIP
    >>> answers["accuracy"].mean()                                                       # doctest: +SKIP
    """
    given: dict[str, Any] = dict(options)
    words = {name: given.pop(name) for name in ("order", "template", "chat") if name in given}
    if isinstance(words.get("template"), str):
        words["template"] = parse(words["template"])
    batch_size = given.pop("batch_size", Run.batch_size)
    [sampling] = make(given, Sampling)
    name = data if data is not None else str(getattr(samples, "name", "data"))
    condition = CLOSED if closed_book else OPEN
    experiment = Experiment(lens.name, name, condition, _distinct(samples), sampling, Data(**words), batch_size)
    return answer_all([experiment], ModelWorker(lambda name: lens))[0]


def _distinct(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield the samples; raise an error if an id occurs twice, because results are stored by id."""
    seen = set()
    for sample in samples:
        if sample.id in seen:
            raise FloatLensError(f"the id {sample.id[:80]!r} occurs twice among the samples; give each its own")
        seen.add(sample.id)
        yield sample
