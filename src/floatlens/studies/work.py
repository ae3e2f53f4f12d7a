"""The work of a study on one model: every part, in the model's own run folder, none lost because another failed."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from floatlens.errors import FloatLensError
from floatlens.evaluation.answering import ProgressCallback
from floatlens.evaluation.comparison import open_sources
from floatlens.evaluation.evaluate import CLOSED, OPEN
from floatlens.evaluation.journal import Journal
from floatlens.evaluation.summary import frame
from floatlens.evaluation.worker import Worker
from floatlens.runs.engines.engine import Engine
from floatlens.runs.engines.local import LocalEngine
from floatlens.runs.folder import ERRORS, RunFolder
from floatlens.runs.run_list import CAUSES
from floatlens.studies.parts.part import Bench, first
from floatlens.studies.parts.registry import PARTS
from floatlens.studies.plan import StudyPlan

PROBED = 2  # questions a data set by which the rates are measured
STATUS = "parts.json"


@dataclass
class Done:
    """What became of one model: seconds a part took, why parts failed, what a reader must know."""

    model: str
    seconds: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def work(
    model: str,
    plan: StudyPlan,
    path: Path,
    engine: Engine | None = None,
    retry_errors: bool = False,
    watch: ProgressCallback | None = None,
) -> Done:
    """Do all parts for a model; a run that was killed goes on where it was, and a finished one is only looked at."""
    does = engine or LocalEngine()
    with started(model, plan, path) as folder, does.keep_workers():
        status = path / STATUS
        found = Done(**json.loads(status.read_text(encoding="utf-8"))) if status.exists() else None
        if found is not None and not found.failed and not (retry_errors and failures(path)):
            return found
        bench = set_up(model, plan, folder, does, retry_errors, watch)
        done = Done(model)
        for name in plan.parts:
            began = time.perf_counter()
            try:
                PARTS[name].run(bench)
            except Exception as error:  # whatever one part stumbles over is told in its section; the others go on
                logging.getLogger(__name__).debug("part %s of %s failed", name, model, exc_info=True)
                said = " ".join(str(error).split())
                done.failed[name] = said if isinstance(error, FloatLensError) else f"{type(error).__name__}: {said}"
            done.seconds[name] = round(time.perf_counter() - began, 2)
        done.notes = bench.notes
        folder.write_table("answers", pd.concat([frame(list(bench.rows.values())), *bench.tables], ignore_index=True))
        folder.write_text(STATUS, json.dumps(done.__dict__, indent=2, ensure_ascii=False) + "\n")
        folder.finish()
        return done


def failures(path: Path) -> bool:
    """Whether a question failed in a model's run, with or without interventions."""
    return any((place / ERRORS).exists() for place in (path, path / CAUSES))


def probe(
    model: str, plan: StudyPlan, path: Path, engine: Engine | None = None, watch: ProgressCallback | None = None
) -> dict[str, float]:
    """Seconds that a worker takes to start, to trace a question, and to answer one with and without passages.

    The questions asked are the study's own, and their answers stay: measuring costs nothing but its order.
    """
    does = engine or LocalEngine()
    with started(model, plan, path) as folder, does.keep_workers():
        began = time.perf_counter()
        bench = set_up(model, plan, folder, does, False, watch)
        spent, rates = 0.0, {}
        for kind, condition in (("trace", OPEN), ("open", OPEN), ("closed", CLOSED)):
            if kind == "trace" and "traces" not in plan.parts:
                continue
            tasks = []
            for source in bench.sources:
                questions = first(source, PROBED if kind == "trace" else 2 * PROBED)[-PROBED:]
                tasks.append(bench.task(questions, source.label, condition, plan.asking))
            seconds = bench.ask(tasks, trace=kind == "trace")
            rates[kind] = seconds / max(1, sum(task.count or 0 for task in tasks))
            spent += seconds / does.workers
        return {"load": max(0.0, time.perf_counter() - began - spent), **rates}


def started(model: str, plan: StudyPlan, path: Path) -> RunFolder:
    """The model's run folder, new or gone on with; findings that a short time leaves out make it no other run."""
    asked = {"model": model, **plan.recorded()}
    del asked["findings"]
    return RunFolder.create(path, plan.manifest(asked, [model]), resume=True)


def set_up(
    model: str, plan: StudyPlan, folder: RunFolder, engine: Engine, retry_errors: bool, watch: ProgressCallback | None
) -> Bench:
    """Open the data and find the model; it is loaded by who works with it."""
    from floatlens.runs.loader import Loader

    worker = Worker(Loader(plan.device, plan.dtype, plan.allow_pickle))
    lens = worker.planning(model, engine.in_process)
    journal = Journal(folder, retry_errors)
    sources = open_sources(plan.comparison())
    return Bench(plan, model, lens, sources, folder, journal, worker, engine, watch, retry_errors)
