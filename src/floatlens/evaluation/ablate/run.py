"""Run the questions with and without interventions, in this process or in others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from floatlens.data.sample import Sample
from floatlens.errors import FloatLensError
from floatlens.evaluation.ablate.condition import SEEDS, Condition, conditions, standard
from floatlens.evaluation.ablate.job import Job, blank
from floatlens.evaluation.ablate.outcome import Outcome, table
from floatlens.evaluation.ablate.plain import Pair
from floatlens.evaluation.answering import ignore
from floatlens.evaluation.evaluate import Asking, Row, asked
from floatlens.evaluation.journal import Journal
from floatlens.evaluation.worker import Worker
from floatlens.interventions.intervention import Intervention
from floatlens.lens import load as load_lens
from floatlens.runs.engines.engine import Engine, JobFailure
from floatlens.runs.engines.local import LocalEngine
from floatlens.runs.folder import RunFolder
from floatlens.runs.progress import ProgressCallback

EACH = 4  # jobs that a worker should at least get, so that none is idle for long


def ablate(
    models: Iterable[Any],
    samples: Sequence[Sample] | Mapping[str, Sequence[Sample]],
    interventions: Sequence[str | Intervention] | None = None,
    *,
    doses: Sequence[float] | None = None,
    seeds: Sequence[int] = SEEDS,
    asking: Asking | None = None,
    folder: RunFolder | None = None,
    watch: ProgressCallback | None = None,
    load: Callable[[str], Any] = load_lens,
    engine: Engine | None = None,
    worker: Worker | None = None,
    retry_errors: bool = False,
) -> pd.DataFrame:
    """Answers of each model to each question under each intervention, dose and control: what the finding `causes` reads.

    Parameters
    ----------
    models: names, which `load` makes lenses of when they are needed, or lenses.
    samples: questions, or several data sets by name.
    interventions: without any the standard ones are run, on which the claims rest.
    engine, worker: who does it; the default is this process. Other processes need names, since a lens stays in its own.
    """
    named = samples if isinstance(samples, Mapping) else {"data": samples}
    asking, engine, worker = asking or Asking(), engine or LocalEngine(), worker or Worker(load)
    journal = Journal(folder, retry_errors, kind=Outcome)
    place = folder.location if folder is not None else None
    wanted: list[tuple[str, str, list[Condition], list[str]]] = []
    finished: dict[tuple[str, str], Callable[[], None]] = {}
    diffusion: dict[str, bool] = {}

    def jobs() -> Iterator[Job]:
        for model in models:
            if not isinstance(model, str):
                if not engine.in_process:
                    raise FloatLensError(
                        f"name the model {model.name} for several workers; a lens stays in its process"
                    )
                worker.hold(model.name, model)
            name = model if isinstance(model, str) else model.name
            lens = worker.planning(name, engine.in_process)
            diffusion[name] = lens.family.diffusion
            chosen = conditions(interventions or standard(lens.shape["layers"] or 1), doses, seeds)
            for data, questions in named.items():
                done = watch(f"{name}, {data}", len(questions) * len(chosen)) if watch else ignore
                finished[name, data] = done
                wanted.append((name, data, chosen, [sample.id for sample in questions]))
                batches = planned(lens, name, data, questions, asking, chosen, journal, done)
                count = len(chosen) if engine.in_process else -(-EACH * engine.workers // max(1, len(batches)))
                for pairs in batches:
                    job = Job(name, data, pairs, chosen, missing(journal, name, data, pairs, chosen), asking, place)
                    for _ in range(len(pairs) * len(chosen) - len(job.missing)):
                        done()
                    yield from shares(job, count)

    for job, made in engine.run(worker, jobs()):
        if isinstance(made, JobFailure):
            rows = job.lost(made.reason, diffusion[job.model])
            if folder is not None:
                for row in rows:
                    folder.put((row.model, row.data, row.condition, row.id), vars(row))
        else:
            rows = made
        for row in rows:
            journal.keep(row)
            finished[job.model, job.data]()
    found: list[Row] = []
    for name, data, chosen, ids in wanted:
        found += [row for condition in chosen for row in journal.rows((name, data, condition.name), ids)]
    answers = table(found)
    if folder is not None:
        folder.write_table("answers", answers)
    return answers


def planned(
    lens: Any,
    model: str,
    data: str,
    samples: Sequence[Sample],
    asking: Asking,
    chosen: Sequence[Condition],
    journal: Journal,
    done: Callable[[], None],
) -> list[list[Pair]]:
    """Batches of questions with their prompts, of like length; what cannot be asked has its rows at once."""
    pairs: list[Pair] = []
    for sample in samples:
        rows = [blank(model, data, sample, condition, lens.family.diffusion) for condition in chosen]
        row, prompt = asked(lens, sample, asking, rows[0])
        if prompt is not None:
            pairs.append((sample, prompt))
            continue
        for one in rows:
            if sample.id not in journal.found.get((model, data, one.condition), {}):
                journal.add(replace(one, error=row.error))
            done()
    pairs.sort(key=lambda pair: len(pair[1].ids), reverse=True)  # memory fails early, if at all
    return [pairs[start : start + asking.batch_size] for start in range(0, len(pairs), asking.batch_size)]


def missing(
    journal: Journal, model: str, data: str, pairs: Sequence[Pair], chosen: Sequence[Condition]
) -> frozenset[tuple[str, str]]:
    """The rows of a batch that are not there yet."""
    have = {condition.name: journal.found.get((model, data, condition.name), {}) for condition in chosen}
    return frozenset((c.name, sample.id) for c in chosen for sample, _ in pairs if sample.id not in have[c.name])


def shares(job: Job, count: int) -> list[Job]:
    """The job in at most `count` parts, by its conditions; those of which nothing is missing are left out.

    What a condition comes to does not depend on those beside it, so any cut gives the same rows.
    """
    todo = [c for c in job.conditions if any((c.name, sample.id) in job.missing for sample, _ in job.pairs)]
    size = -(-len(todo) // max(1, count)) or 1
    return [replace(job, conditions=todo[start : start + size]) for start in range(0, len(todo), size)]
