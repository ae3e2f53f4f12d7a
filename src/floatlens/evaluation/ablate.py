"""Ablations: the same questions with and without interventions, each with its matched random control.

A worker answers a batch without interventions first, and keeps that for the next conditions on the same questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from floatlens import stats
from floatlens.data.prompt import Prompt
from floatlens.data.sample import Sample, normalise
from floatlens.errors import FloatLensError
from floatlens.evaluation.answers import AnswerRecord, answers_table
from floatlens.evaluation.conditions import CHANGED, CONTROL, MEASURES, PLAIN, SEEDS, Condition, conditions, standard
from floatlens.evaluation.loop import Batch, Case, Experiment, Journal, run_experiments
from floatlens.evaluation.replay import Baseline
from floatlens.evaluation.sources import Key
from floatlens.evaluation.summary import difference, values_and_intervals
from floatlens.evaluation.worker import SAMPLE_ERRORS, Checksums, ModelWorker, error_reason
from floatlens.interventions.intervention import Intervention, parse_intervention
from floatlens.interventions.run import holding
from floatlens.lens import Generation, Lens
from floatlens.options import Data, Run, Sampling
from floatlens.store.engine import Engine, LocalEngine, ProgressCallback
from floatlens.store.folder import RunFolder

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
    """Return whether an answer ended, is not empty, has no special token, and repeats no word three times in a row."""
    words = normalise(answer.text).split()
    stutters = any(words[i] == words[i + 1] == words[i + 2] for i in range(len(words) - 2))
    return answer.ended and bool(words) and not stutters and not set(answer.ids) & set(special)


@dataclass(frozen=True)
class Ablation(Experiment):
    """Questions for one model under several conditions. `workers` is the number of processes that share them."""

    conditions: tuple[Condition, ...] = ()
    workers: int = 1

    @property
    def key(self) -> Key:
        return self.model, self.data

    def keys(self, ids: Sequence[str]) -> list[Key]:
        return [(*self.key, condition.name, id_) for condition in self.conditions for id_ in ids]

    def records(self, lens: Lens, sample: Sample, prompt: Prompt | None, error: str | None) -> list[AblationRecord]:
        names = {"model": self.model, "data": self.data, "kind": lens.family.kind}
        found = [
            AblationRecord.before(
                sample,
                prompt,
                error,
                **names,
                condition=condition.name,
                intervention="" if condition.role == PLAIN else condition.name,
                role=condition.role,
                group=condition.group,
                dose=condition.dose,
                of=condition.of,
                control_seed=condition.seed,
            )
            for condition in self.conditions
        ]
        return [replace(record, recall=None, answer_recall=None) for record in found]

    def divide(self, cases: list[Case], missing: frozenset[Key], batches: int) -> list[list[Case]]:
        """Divide a batch by its conditions, those without a missing result left out.

        The result of a condition does not depend on the others, so any division gives the same results.
        """
        todo = [several for several in _by_condition(cases) if any(case.record.key in missing for case in several)]
        count = len(todo) if self.workers == 1 else -(-EACH * self.workers // max(1, batches))
        size = -(-len(todo) // max(1, count)) or 1
        parts = [todo[start : start + size] for start in range(0, len(todo), size)]
        return [[case for several in part for case in several] for part in parts]

    def compute(self, worker: ModelWorker, batch: Batch, folder: RunFolder | None) -> Iterator[tuple[Any, Checksums]]:
        lens, by_condition = worker.lens(self.model), _by_condition(batch.cases)
        for part, failure in self._baseline(worker, lens, by_condition[0]):
            for cases in by_condition:
                records: dict[str, Any] = {case.record.id: case.record for case in cases}
                if isinstance(part, Baseline):
                    found = self._under(lens, part, records)
                else:
                    found = iter([replace(records[part], error=failure)])
                yield from ((record, {}) for record in found if record.key in batch.missing)

    def _baseline(self, worker: ModelWorker, lens: Lens, cases: Sequence[Case]) -> list[tuple[Baseline | str, str]]:
        about = (self.key, [(case.record.id, case.prompt and case.prompt.ids) for case in cases], self.sampling)
        if worker.notes.get("baseline of") != about:
            worker.notes.clear()
            worker.notes["baseline"] = list(run_baseline(lens, cases, self.sampling))
            worker.notes["baseline of"] = about
        found: list[tuple[Baseline | str, str]] = worker.notes["baseline"]
        return found

    def _under(self, lens: Lens, part: Baseline, records: Mapping[str, AblationRecord]) -> Iterator[AblationRecord]:
        """Yield the records of all questions; a batch that fails is halved until the failing question is found."""
        intervention = next(iter(records.values())).intervention
        try:
            found = part.under([parse_intervention(intervention)] if intervention else [])
        except (*SAMPLE_ERRORS, FloatLensError) as error:
            if len(part.cases) == 1:
                yield replace(records[part.cases[0].record.id], error=error_reason(error))
                return
            for half in halves(part.cases):
                for smaller, failure in run_baseline(lens, half, self.sampling):
                    if isinstance(smaller, Baseline):
                        yield from self._under(lens, smaller, records)
                    else:
                        yield replace(records[smaller], error=failure)
            return
        for case, (answer, measures) in zip(part.cases, found, strict=True):
            yield records[case.record.id].with_measures(answer, measures, lens.special_ids)


def _by_condition(cases: Sequence[Case]) -> list[list[Case]]:
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.record.condition, []).append(case)
    return list(found.values())


def run_baseline(lens: Lens, cases: Sequence[Case], sampling: Sampling) -> Iterator[tuple[Baseline | str, str]]:
    """Run a batch without interventions; if it fails, it is halved until the failing question is found.

    Yields each part that runs, or the id of a question that cannot be answered and the reason. Rows that would wait for
    each other run alone: conditions are compared step by step.
    """
    if len(cases) > 1 and (lens.rows_wait or not lens.batched):
        for case in cases:
            yield from run_baseline(lens, [case], sampling)
        return
    try:
        with holding(lens):
            whole = Baseline.run(lens, cases, sampling)
    except SAMPLE_ERRORS as error:
        if len(cases) == 1:
            yield cases[0].record.id, error_reason(error)
            return
        for half in halves(cases):
            yield from run_baseline(lens, half, sampling)
    else:
        yield whole, ""


def halves(cases: Sequence[Case]) -> tuple[Sequence[Case], Sequence[Case]]:
    return cases[: len(cases) // 2], cases[len(cases) // 2 :]


def ablate(
    models: Iterable[str | Lens],
    samples: Sequence[Sample] | Mapping[str, Sequence[Sample]],
    interventions: Sequence[str | Intervention] | None = None,
    *,
    doses: Sequence[float] | None = None,
    seeds: Sequence[int] = SEEDS,
    sampling: Sampling = Sampling(),
    reading: Data = Data(),
    run: Run = Run(),
    folder: RunFolder | None = None,
    watch: ProgressCallback | None = None,
    engine: Engine | None = None,
    worker: ModelWorker | None = None,
) -> pd.DataFrame:
    """Answer each question with each model under each intervention, dose and control; the finding `causes` reads the table.

    Parameters
    ----------
    models: names, or lenses.
    samples: questions, or several data sets by name.
    interventions: by default those that the claims need.
    doses, seeds: values of {n} in the interventions; seeds of the controls.
    sampling, reading, run: how questions are decoded and worded, and how many together.
    engine, worker: by default this process. Other processes need names, since a lens stays in its process.
    """
    named = samples if isinstance(samples, Mapping) else {"data": samples}
    engine, worker = engine or LocalEngine(), worker or ModelWorker()

    def experiments() -> Iterator[Ablation]:
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
                how: dict[str, Any] = {"sampling": sampling, "reading": reading, "batch_size": run.batch_size}
                how |= {"conditions": tuple(chosen), "workers": 1 if engine.in_process else engine.workers}
                yield Ablation(name, data, "ablation", questions, **how, count=len(questions) * len(chosen))

    journal = Journal(folder, kind=AblationRecord)
    records, _ = run_experiments(experiments(), worker, journal, engine=engine, watch=watch)
    answers = answers_table(records, AblationRecord)
    if folder is not None:
        folder.write_table("answers", answers)
    return answers


# --- effects ----------------------------------------------------------------------------------------------------------


def wide(part: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return one row per question, with a column for no intervention and for each (name, intervention), (name, control).

    A control is the mean over its seeds, so that every question counts once.
    """
    plain = part[part["role"] == PLAIN].set_index("id")[measure].rename(("", PLAIN))
    rest = part[part["role"] != PLAIN].pivot_table(index="id", columns=["of", "role"], values=measure, aggfunc="mean")
    return pd.concat([plain, rest.reindex(plain.index)], axis=1)


def effects(answers: pd.DataFrame) -> list[dict[str, Any]]:
    """Return one entry per model, data set and intervention: means with intervals, and paired differences with p-values.

    `change` is the intervention minus no intervention, `beyond` the intervention minus its matched control.
    """
    found = []
    for (model, data), part in answers.groupby(["model", "data"], sort=False):
        tables = {measure: wide(part, measure) for measure in MEASURES}
        about = part.drop_duplicates("condition").set_index("condition")
        names = [name for name, role in zip(about.index, about["role"], strict=True) if role != CONTROL]
        for name in names:
            one = about.loc[name]
            column = ("", PLAIN) if one["role"] == PLAIN else (name, CHANGED)
            entry: dict[str, Any] = {
                "model": model,
                "data": data,
                "condition": name,
                "intervention": one["intervention"],
                "group": one["group"],
                "dose": stats.finite_or_none(float(one["dose"])) if pd.notna(one["dose"]) else None,
                "n": int(part[(part["condition"] == name)]["error"].isna().sum()),
                "errors": int(part[(part["condition"] == name)]["error"].notna().sum()),
                "controls": sorted({int(s) for s in part[part["of"] == name]["control_seed"].dropna()}),
            }
            measured = {measure: table for measure, table in tables.items() if column in table}
            means = {measure: stats.percentile_mean(each[column].to_numpy(float)) for measure, each in measured.items()}
            entry |= values_and_intervals(means)
            for difference_to, other in (("change", ("", PLAIN)), ("beyond", (name, CONTROL))):
                entry[difference_to] = {
                    measure: difference(table[column], table[other])
                    for measure, table in measured.items()
                    if other in table and other != column
                }
            nll = entry.get("gold_nll")
            entry["gold_perplexity"] = float(np.exp(nll)) if nll is not None else None
            found.append(entry)
    return found
