"""The ablation job: the same questions with and without interventions, each with its matched random control.

A worker answers a batch without interventions first, and keeps that for the next conditions on the same questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pandas as pd

from floatlens.data.sample import Sample, normalise
from floatlens.errors import FloatLensError
from floatlens.evaluation.ablate.condition import MEASURES, PLAIN, SEEDS, Condition, conditions, standard
from floatlens.evaluation.ablate.replay import Baseline
from floatlens.evaluation.answers import AnswerRecord, answers_table
from floatlens.evaluation.jobs import ModelWorker, PlannedPart
from floatlens.evaluation.planning import Asking, Key, Question, plan_windows
from floatlens.evaluation.run import Journal, run_jobs
from floatlens.interventions.intervention import Intervention
from floatlens.interventions.run import holding
from floatlens.lens import Generation, Lens
from floatlens.options import Load
from floatlens.store.engine import Engine, ProgressCallback
from floatlens.store.folder import Claim, RunFolder
from floatlens.store.local import LocalEngine
from floatlens.store.oom_retry import SAMPLE_ERRORS, error_reason

EACH = 4  # minimum number of batches per worker, so that none is idle for long


@dataclass
class AblationRecord(AnswerRecord):
    """One question under one condition.

    agreement    1 if the answer is the one without interventions, after normalisation
    kl           mean KL(without interventions ‖ this) over the tokens of the answer without interventions, in nats, each at
                 the step that committed it, along the trajectory without interventions
    gold_nll     mean negative log probability of the gold answer's tokens, revealed from left to right, in nats
    ended        1 if an end token was written
    well_formed  1 if the answer ended, is not empty, has no special token, and repeats no word three times in a row
    """

    role: str = PLAIN
    group: str = ""
    dose: float | None = None
    control_seed: int | None = None
    agreement: float | None = None
    kl: float | None = None
    gold_nll: float | None = None
    ended: float | None = None
    well_formed: float | None = None

    NUMBERS: ClassVar[tuple[str, ...]] = (*MEASURES, "dose", "recall", "answer_recall", "x")
    COUNTS: ClassVar[tuple[str, ...]] = ("steps", "control_seed")

    def with_measures(self, answer: Generation, measures: Mapping[str, Any], special: Sequence[int]) -> AblationRecord:
        """Return the record with an answer, its scores, and the measures of `Baseline.under`."""
        form: dict[str, Any] = {"ended": float(answer.ended), "well_formed": float(well_formed(answer, special))}
        return replace(self.with_answer(answer), **measures, **form)


def well_formed(answer: Generation, special: Sequence[int] = ()) -> bool:
    """Return whether an answer ended, is not empty, has no special token, and repeats no word three times in a row.

    >>> well_formed(Generation("in Paris", [5, 6], 2, 0.9, True)), well_formed(Generation("no no no", [7] * 3, 3, 0.9, True))
    (True, False)
    """
    words = normalise(answer.text).split()
    stutters = any(words[i] == words[i + 1] == words[i + 2] for i in range(len(words) - 2))
    return answer.ended and bool(words) and not stutters and not set(answer.ids) & set(special)


@dataclass(frozen=True)
class AblationBatch:
    """Questions under some conditions. `missing` are the results that are wanted, as (condition, question).

    Other questions are already answered; they are kept so that the batch composition stays the same.
    """

    job: Key  # model, data
    claim: Claim | None
    questions: list[Question]
    conditions: list[Condition]
    missing: frozenset[tuple[str, str]]
    asking: Asking
    kind: str

    def split(self) -> list[AblationBatch]:
        """Return one batch per question; of a single question, one per condition."""
        if len(self.questions) > 1:
            wanted = [q for q in self.questions if any((c.name, q.id) in self.missing for c in self.conditions)]
            return [replace(self, questions=[question]) for question in wanted]
        return [replace(self, conditions=[condition]) for condition in self.conditions]

    def lost(self, error: str) -> list[AblationRecord]:
        every = [self.record(q, c) for c in self.conditions for q in self.questions]
        return [replace(record, error=error) for record in every if (record.condition, record.id) in self.missing]

    def run(self, worker: ModelWorker, folder: RunFolder | None) -> Iterator[tuple[AblationRecord, None]]:
        lens = worker.lens(self.job[0])
        for part in self._baseline(worker, lens):
            for condition in self.conditions:
                for record in self._under(lens, part, condition):
                    if (record.condition, record.id) in self.missing:
                        yield record, None

    def record(self, question: Question, condition: Condition) -> AblationRecord:
        """Return the record of a question before it is asked."""
        record = AblationRecord.from_question(
            question,
            model=self.job[0],
            data=self.job[1],
            condition=condition.name,
            kind=self.kind,
            intervention="" if condition.role == PLAIN else condition.name,
            role=condition.role,
            group=condition.group,
            dose=condition.dose,
            of=condition.of,
            control_seed=condition.seed,
        )
        return replace(record, recall=None, answer_recall=None)

    def _baseline(self, worker: ModelWorker, lens: Lens) -> list[Baseline | FailedQuestion]:
        about = (self.job, [(q.id, q.prompt.ids) for q in self.questions if q.prompt is not None], self.asking)
        if worker.notes.get("baseline of") != about:
            worker.notes.clear()
            worker.notes["baseline"] = list(run_baseline(lens, self.questions, self.asking))
            worker.notes["baseline of"] = about
        found: list[Baseline | FailedQuestion] = worker.notes["baseline"]
        return found

    def _under(self, lens: Lens, part: Baseline | FailedQuestion, condition: Condition) -> Iterator[AblationRecord]:
        """Yield the records of all questions; a batch that fails is halved until the failing question is found."""
        if isinstance(part, FailedQuestion):
            yield replace(self.record(part.question, condition), error=part.reason)
            return
        try:
            found = part.under(condition.interventions)
        except (*SAMPLE_ERRORS, FloatLensError) as error:
            if len(part.questions) == 1:
                yield replace(self.record(part.questions[0], condition), error=error_reason(error))
                return
            for half in halves(part.questions):
                for smaller in run_baseline(lens, half, self.asking):
                    yield from self._under(lens, smaller, condition)
            return
        for question, (answer, measures) in zip(part.questions, found, strict=True):
            yield self.record(question, condition).with_measures(answer, measures, lens.special_ids)


@dataclass(frozen=True)
class FailedQuestion:
    """A question that cannot be answered even without interventions."""

    question: Question
    reason: str


def run_baseline(lens: Lens, questions: Sequence[Question], asking: Asking) -> Iterator[Baseline | FailedQuestion]:
    """Run a batch without interventions; if it fails, it is halved until the failing question is found.

    Rows that would wait for each other run alone: conditions are compared step by step.
    """
    if lens.rows_wait and len(questions) > 1:
        for question in questions:
            yield from run_baseline(lens, [question], asking)
        return
    try:
        with holding(lens):
            whole = Baseline.run(lens, questions, asking)
    except SAMPLE_ERRORS as error:
        if len(questions) == 1:
            yield FailedQuestion(questions[0], error_reason(error))
            return
        for half in halves(questions):
            yield from run_baseline(lens, half, asking)
    else:
        yield whole


def halves(questions: Sequence[Question]) -> tuple[Sequence[Question], Sequence[Question]]:
    return questions[: len(questions) // 2], questions[len(questions) // 2 :]


@dataclass(frozen=True)
class AblationJob:
    """Questions for one model under several conditions. `workers` is the number of processes that share it."""

    model: str
    data: str
    samples: Sequence[Sample]
    conditions: list[Condition]
    asking: Asking
    workers: int = 1

    @property
    def key(self) -> Key:
        return self.model, self.data

    @property
    def count(self) -> int:
        return len(self.samples) * len(self.conditions)

    def keys(self, ids: Sequence[str]) -> list[Key]:
        return [(*self.key, condition.name, id_) for condition in self.conditions for id_ in ids]

    def plan(self, lens: Lens, journal: Journal) -> Iterator[PlannedPart]:
        for window in plan_windows(lens, self.samples, self.asking, condition="ablation"):
            keys = self.keys([question.id for question in window.questions])
            missing = frozenset((key[2], key[3]) for key in keys if key not in journal.found)
            whole = AblationBatch(
                self.key, journal.claim, window.questions, self.conditions, missing, self.asking, lens.family.kind
            )
            count = len(self.conditions)
            if self.workers > 1:
                count = -(-EACH * self.workers // max(1, len(window.batches)))
            yield PlannedPart(
                ids=[question.id for question in window.questions],
                done=len(keys) - len(missing),
                refused=[
                    record
                    for question in window.questions
                    if question.error is not None
                    for condition in self.conditions
                    if (record := whole.record(question, condition)).key not in journal.found
                ],
                batches=[
                    part
                    for questions in window.batches
                    for part in share_conditions(_restrict(whole, questions), count)
                ],
            )


def _restrict(batch: AblationBatch, questions: list[Question]) -> AblationBatch:
    ids = {question.id for question in questions}
    return replace(batch, questions=questions, missing=frozenset(one for one in batch.missing if one[1] in ids))


def share_conditions(batch: AblationBatch, count: int) -> list[AblationBatch]:
    """Divide a batch into at most `count` parts by its conditions; those without a missing result are left out.

    The result of a condition does not depend on the others, so any division gives the same results.
    """
    todo = [c for c in batch.conditions if any((c.name, q.id) in batch.missing for q in batch.questions)]
    size = -(-len(todo) // max(1, count)) or 1
    return [replace(batch, conditions=todo[start : start + size]) for start in range(0, len(todo), size)]


def ablate(
    models: Iterable[str | Lens],
    samples: Sequence[Sample] | Mapping[str, Sequence[Sample]],
    interventions: Sequence[str | Intervention] | None = None,
    *,
    doses: Sequence[float] | None = None,
    seeds: Sequence[int] = SEEDS,
    asking: Asking | None = None,
    folder: RunFolder | None = None,
    watch: ProgressCallback | None = None,
    load: Load = Load(),
    engine: Engine | None = None,
    worker: ModelWorker | None = None,
    retry_errors: bool = False,
) -> pd.DataFrame:
    """Answer each question with each model under each intervention, dose and control; the finding `causes` reads the table.

    Parameters
    ----------
    models: names, or lenses; `load` is how models are loaded.
    samples: questions, or several data sets by name.
    interventions: by default those that the claims need.
    doses, seeds: values of {n} in the interventions; seeds of the controls.
    engine, worker: by default this process. Other processes need names, since a lens stays in its process.
    """
    named = samples if isinstance(samples, Mapping) else {"data": samples}
    asking, engine, worker = asking or Asking(), engine or LocalEngine(), worker or ModelWorker(load)

    def jobs() -> Iterator[AblationJob]:
        for model in models:
            name = model if isinstance(model, str) else model.name
            if not isinstance(model, str):
                if not engine.in_process:
                    raise FloatLensError(
                        f"pass the name of the model ({name}) instead of a lens to use several workers"
                    )
                worker.hold(name, model)
            lens = worker.planning_lens(name, engine.in_process)
            chosen = conditions(interventions or standard(lens.shape["layers"] or 1), doses, seeds)
            for data, questions in named.items():
                yield AblationJob(name, data, questions, chosen, asking, 1 if engine.in_process else engine.workers)

    journal = Journal(folder, retry_errors=retry_errors, kind=AblationRecord)
    result = run_jobs(jobs(), worker, journal, engine=engine, watch=watch)
    answers = answers_table(result.records, AblationRecord)
    if folder is not None:
        folder.write_table("answers", answers)
    return answers
