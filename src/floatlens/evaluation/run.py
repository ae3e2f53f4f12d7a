"""The evaluation loop: run the questions of jobs through models.

It is used by `floatlens eval`, `trace`, `stress`, `ablate`, the study, and `fl.evaluate`, which differ in their jobs
(`jobs.py`, `ablate/job.py`). Runs are durable: the journal skips results that the run folder already has and writes
each one that a worker returns, and an engine replaces workers that die.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from floatlens.data.sample import Sample
from floatlens.data.template import DEFAULT, Template, parse
from floatlens.errors import FloatLensError
from floatlens.evaluation.answers import AnswerRecord, answers_table
from floatlens.evaluation.jobs import AnswerJob, EvaluationJob, ModelBatch, ModelWorker, ResultRecord
from floatlens.evaluation.planning import CLOSED, OPEN, Asking, Key, SharedPrompts
from floatlens.store.engine import Engine, JobFailure, ProgressCallback
from floatlens.store.folder import Claim, RunFolder
from floatlens.store.local import LocalEngine

if TYPE_CHECKING:
    from floatlens.lens import Lens


class Journal:
    """Results by key, read from the run folder if there is one.

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

    @property
    def claim(self) -> Claim | None:
        """The claim of the run folder, for workers."""
        return self.folder.claim if self.folder is not None else None

    def add(self, record: ResultRecord, checksums: Mapping[str, str] | None = None) -> None:
        """Write a result; an error is also listed in errors.jsonl. `checksums` are those of its traces."""
        self.found[record.key] = record
        if self.folder is not None:
            self.folder.put(record.key, record.value(), checksums)
            if record.error:
                self.folder.record_error(record.name, record.error)


@dataclass
class LoopResult:
    """The results of all jobs, in the order of their questions.

    `seconds` of work per job are shared by all workers; `computed` are the results that this work made, without those that
    the run had already.
    """

    records: list[Any] = field(default_factory=list)
    seconds: dict[Key, float] = field(default_factory=dict)
    computed: Counter[Key] = field(default_factory=Counter)

    def per_second(self) -> dict[Key, float | None]:
        """Return the number of results per second of each job; None if all were there already."""
        return {key: round(self.computed[key] / took, 2) if took else None for key, took in self.seconds.items()}


def run_jobs(
    jobs: Iterable[EvaluationJob],
    worker: ModelWorker,
    journal: Journal | None = None,
    *,
    engine: Engine | None = None,
    watch: ProgressCallback | None = None,
) -> LoopResult:
    """Run jobs and return their results; results that the journal already has are not computed again.

    Parameters
    ----------
    jobs: taken one by one, each when its batches are planned.
    engine: hands batches to workers; default: this process.
    watch: called with the name and the number of results of each job; returns a function that is called per result.
    """
    journal, engine, result = journal or Journal(), engine or LocalEngine(), LoopResult()
    planned: list[tuple[EvaluationJob, list[str]]] = []
    advance: dict[Key, Callable[[], None]] = {}
    copies: list[tuple[AnswerRecord, Key]] = []
    if journal.shared is not None:
        journal.shared.forget_missing(journal.found)

    def batches() -> Iterator[ModelBatch]:
        for job in jobs:
            ids: list[str] = []
            planned.append((job, ids))
            result.seconds.setdefault(job.key, 0.0)
            advance[job.key] = watch(", ".join(job.key), job.count) if watch else lambda: None
            lens = worker.planning_lens(job.model, engine.in_process)
            for part in job.plan(lens, journal):
                ids += part.ids
                for record in part.refused:  # the question cannot be asked: the reason is stored as its result
                    journal.add(record)
                for _ in range(part.done + len(part.refused)):
                    advance[job.key]()
                copies.extend(part.copies)
                yield from part.batches

    for batch, made in engine.run(worker, batches()):
        if isinstance(made, JobFailure):  # no worker survived it
            for record in batch.lost(made.reason):
                journal.add(record)
                advance[batch.job]()
            continue
        records, seconds = made
        result.seconds[batch.job] += seconds / engine.workers
        result.computed[batch.job] += len(records)
        for record, checksums in records:
            journal.add(record, checksums)
            advance[batch.job]()
    for record, origin in copies:
        journal.add(record.with_answer_of(journal.found[origin]))
        advance[record.key[:-1]]()
    result.records = [journal.found[key] for job, ids in planned for key in job.keys(ids)]
    return result


def ask_models(
    jobs: Iterable[AnswerJob],
    worker: ModelWorker,
    folder: RunFolder | None = None,
    *,
    engine: Engine | None = None,
    watch: ProgressCallback | None = None,
    retry_errors: bool = False,
) -> tuple[pd.DataFrame, dict[Key, float | None]]:
    """Answer the questions of jobs; returns the table of answers, also written to the run folder, and answers per second."""
    result = run_jobs(jobs, worker, Journal(folder, retry_errors=retry_errors), engine=engine, watch=watch)
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
    asking = Asking(
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
    job = AnswerJob(lens.name, str(name), CLOSED if closed_book else OPEN, _distinct(samples), asking)
    worker = ModelWorker(lambda name: lens)
    return ask_models([job], worker)[0]


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
