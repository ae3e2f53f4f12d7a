"""The loop of every experiment: plan batches, skip what is there, compute, write, report progress.

`floatlens eval`, `trace`, `stress`, `ablate`, the study and `fl.evaluate` differ in their experiments: which cases a sample
makes, and how a batch of cases is computed. Runs are durable: results that the run folder has are not computed again, each
one that a worker returns is written, and the engine replaces workers that die. A batch that runs out of memory is halved,
and a sample that fails is isolated, so that the others get their results.
"""

from __future__ import annotations

import gc
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
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

T = TypeVar("T")
R = TypeVar("R")
Checksums = Mapping[str, str]  # of traces, by their names in the run folder
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
    labels: dict[str, Any] = field(default_factory=dict)  # further columns of the answers, such as stress and level
    recording: Recording | None = None  # to keep also the trace of every answer
    interventions: tuple[str, ...] = ()  # texts of the active ones

    @property
    def count(self) -> int | None:
        """The number of results, if it is known before the samples are read."""
        return len(self.samples) if isinstance(self.samples, Sized) else None

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
        saved = {} if folder is None else folder.save_trace(record.name, made, detail=self.recording.detail)
        return record.with_answer(Generation.from_trace(lens, made)), saved


# By model, prompt and settings: the first question that asks it, and its experiment.
FirstAsked = dict[tuple[str, str, str], tuple[Key, Experiment]]


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

    def __call__(self, batch: Batch) -> tuple[list[tuple[AnswerRecord, Checksums]], float]:
        """Compute a batch, and save its traces; returns the missing results, each with the checksums of its traces, and
        the time in seconds without loading the model."""
        experiment, lens = batch.experiment, self.lens(batch.experiment.model)
        began = time.perf_counter()
        found: list[tuple[AnswerRecord, Checksums]] = []
        made: list[Any] = self.retry(lambda cases: experiment.decode(self, cases), batch.cases)
        for (record, _), result in zip(batch.cases, made, strict=True):
            if record.key not in batch.missing:
                continue
            if isinstance(result, BaseException):
                found.append((replace(record, error=error_reason(result)), {}))
            else:
                found.append(experiment.finish(lens, record, result, batch.folder))
        return found, time.perf_counter() - began

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


def run_experiments(
    experiments: Iterable[Experiment],
    worker: ModelWorker,
    folder: RunFolder | None = None,
    *,
    engine: Engine | None = None,
    watch: ProgressCallback | None = None,
    first: FirstAsked | None = None,
) -> tuple[list[AnswerRecord], dict[Key, float | None]]:
    """Run experiments; return their records in the order of the questions, and the results per second of each.

    Results that the run folder has for the same prompts are not computed again, and do not count for the rate, which is None
    without any. (The passages of a stress test, for example, depend on all questions that are asked.)

    Parameters
    ----------
    experiments: taken one by one, each when its batches are planned.
    engine: hands batches to workers; default: this process.
    watch: called with the name and the number of results of each; returns a function that is called per result.
    first: to answer a prompt that several questions share only once; keep it for the next experiments in the folder.
    """
    there = folder.results() if folder is not None else []
    found = {result.key: AnswerRecord.from_result(result.key, result.value) for result in there}
    keys: list[Key] = []  # of all results
    advance: dict[Key, Callable[[], None]] = {}  # by experiment
    copies: list[tuple[AnswerRecord, Key]] = []  # results of a prompt that another question has, and that one's key
    seconds: defaultdict[Key, float] = defaultdict(float)  # of work, by experiment; all workers share it
    computed: Counter[Key] = Counter()
    if first is not None:
        for about in [about for about, (key, _) in first.items() if key not in found]:  # work that was lost
            del first[about]

    def add(record: AnswerRecord, checksums: Checksums | None = None) -> None:
        found[record.key] = record
        if folder is not None:
            folder.put(record.key, asdict(record), checksums)

    def origin(record: AnswerRecord, experiment: Experiment) -> Key | None:
        """Return the key of the result with the answer to the same prompt, or None if the question is to be asked.

        An answer depends only on the tokens of the prompt and the settings of the sampler, whether greedy or seeded. So the
        stress levels that equal the default reuse the answers of Table 1, and traced questions reuse their traces. Which
        question is first is decided here, so it does not depend on interruptions or workers.
        """
        if first is None or experiment.interventions:
            return None
        about = record.model, record.prompt, repr(experiment.sampling)
        key, of = first.setdefault(about, (record.key, experiment))
        traced = experiment.recording is not None  # more than the answer is needed
        return None if traced or (key == record.key and of is experiment) else key

    def batches() -> Iterator[Batch]:
        """Plan the batches from all questions, whether these have a result already or not."""
        for experiment in experiments:
            done = advance[experiment.key] = (
                watch(", ".join(experiment.key), experiment.count) if watch else lambda: None
            )
            lens = worker.planning_lens(experiment.model, engine is None)
            sent, samples = replace(experiment, samples=()), iter(experiment.samples)
            while window := list(islice(samples, experiment.batch_size * WINDOW)):
                cases = {each[0].record.id: each for each in (experiment.cases(lens, sample) for sample in window)}
                missing, prompts = set[Key](), dict[str, Prompt]()
                for record, prompt in (case for several in cases.values() for case in several):
                    keys.append(record.key)
                    known, copied = found.get(record.key), None if prompt is None else origin(record, experiment)
                    if prompt is not None and copied is None:
                        prompts[record.id] = prompt
                    if known is not None and known.prompt == record.prompt:
                        done()
                    elif prompt is None:  # it cannot be asked: the reason is its result
                        add(record)
                        done()
                    elif copied is None:
                        missing.add(record.key)
                    else:
                        copies.append((record, copied))
                for ids in plan_batches(prompts, experiment.batch_size if lens.batched else 1):
                    for part in experiment.divide([case for id_ in ids for case in cases[id_]]):
                        if wanted := missing & {case.record.key for case in part}:
                            yield Batch(sent, part, frozenset(wanted), folder)

    planned = batches()
    for batch, made in engine.run(worker, planned) if engine else ((each, worker(each)) for each in planned):
        key = batch.experiment.key
        if isinstance(made, WorkerDied):  # no worker survived it
            lost = [record for record, _ in batch.cases if record.key in batch.missing]
            made = [(replace(record, error=str(made)), {}) for record in lost], 0.0
        results, took = made
        seconds[key] += took / (engine.workers if engine is not None else 1)
        computed[key] += len(results) if took else 0
        for record, checksums in results:
            add(record, checksums)
            advance[key]()
    for record, copied in copies:
        add(record.with_answer_of(found[copied]))
        advance[record.key[:-1]]()
    rates = {key: round(computed[key] / seconds[key], 2) if seconds[key] else None for key in advance}
    return [found[key] for key in keys], rates


def answer_all(
    experiments: Iterable[Experiment],
    worker: ModelWorker,
    folder: RunFolder | None = None,
    *,
    engine: Engine | None = None,
    watch: ProgressCallback | None = None,
) -> tuple[pd.DataFrame, dict[Key, float | None]]:
    """Return the table of answers of experiments, also written to the run folder, and the answers per second of each."""
    records, rates = run_experiments(experiments, worker, folder, engine=engine, watch=watch)
    answers = answers_table(records)
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
    name, asked = data if data is not None else str(getattr(samples, "name", "data")), list(samples)
    if twice := [id_ for id_, times in Counter(sample.id for sample in asked).items() if times > 1]:
        raise FloatLensError(f"the id {twice[0][:80]!r} occurs twice among the samples; give each its own")
    condition = CLOSED if closed_book else OPEN
    experiment = Experiment(lens.name, name, condition, asked, sampling, Data(**words), batch_size)
    return answer_all([experiment], ModelWorker(lambda name: lens))[0]
