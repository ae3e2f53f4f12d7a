"""The work of a study on one model: every part in the model's own run folder, independent of failures in other parts."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from floatlens.errors import FloatLensError
from floatlens.evaluation.answers import answers_table
from floatlens.evaluation.jobs import ModelWorker
from floatlens.evaluation.planning import CLOSED, OPEN, SHORT
from floatlens.evaluation.run import Journal
from floatlens.store.engine import Engine, ProgressCallback
from floatlens.store.folder import ERRORS, RunFolder
from floatlens.store.local import LocalEngine
from floatlens.store.runs import CAUSES
from floatlens.studies.parts.part import Bench, first, sources_of, sources_with_passages
from floatlens.studies.parts.registry import PARTS
from floatlens.studies.plan import StudyPlan

PROBED = 2  # questions per data set for measuring the rates
STATUS = "parts.json"


@dataclass
class Done:
    """The outcome for one model: seconds per part, reasons of failed parts, and remarks."""

    model: str
    seconds: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def work(
    model: str,
    plan: StudyPlan,
    path: str | Path,
    engine: Engine | None = None,
    retry_errors: bool = False,
    watch: ProgressCallback | None = None,
) -> Done:
    """Run all parts for a model; a killed run resumes, and a finished one is not repeated."""
    does = engine or LocalEngine()
    with open_model_run(model, plan, path) as folder, does.keep_workers():
        storage = folder.storage
        found = Done(**json.loads(storage.read(STATUS))) if storage.exists(STATUS) else None
        if found is not None and not found.failed and not (retry_errors and failures(folder)):
            return found
        bench = set_up(model, plan, folder, does, retry_errors, watch)
        done = Done(model)
        for name in plan.parts_of(model):
            began = time.perf_counter()
            try:
                PARTS[name].run(bench)
            except Exception as error:  # any failure is reported in its section; the other parts continue
                logging.getLogger(__name__).debug("part %s of %s failed", name, model, exc_info=True)
                text = " ".join(str(error).split())
                done.failed[name] = text if isinstance(error, FloatLensError) else f"{type(error).__name__}: {text}"
            done.seconds[name] = round(time.perf_counter() - began, 2)
        done.notes = bench.notes
        folder.write_table(
            "answers", pd.concat([answers_table(list(bench.rows.values())), *bench.tables], ignore_index=True)
        )
        folder.write_text(STATUS, json.dumps(done.__dict__, indent=2, ensure_ascii=False) + "\n")
        folder.finish()
        return done


def failures(folder: RunFolder) -> bool:
    """Whether a question failed in a model's run, with or without interventions."""
    return any(folder.storage.exists(name) for name in (ERRORS, f"{CAUSES}/{ERRORS}"))


def probe(
    model: str, plan: StudyPlan, path: str | Path, engine: Engine | None = None, watch: ProgressCallback | None = None
) -> dict[str, float]:
    """Measure the seconds that a worker takes to start, to trace a question, and to answer one with and without passages.

    The questions are the study's own and their answers are kept, so the measurement costs no extra work.
    """
    does = engine or LocalEngine()
    with open_model_run(model, plan, path) as folder, does.keep_workers():
        began = time.perf_counter()
        bench = set_up(model, plan, folder, does, False, watch)
        spent, rates = 0.0, {}
        for kind, condition in (("trace", OPEN), ("short", SHORT), ("open", OPEN), ("closed", CLOSED)):
            traced = kind in ("trace", "short")
            if traced and ("traces" not in plan.parts or condition not in plan.traced):
                continue
            tasks = []
            for source in bench.sources if kind == "short" else sources_with_passages(bench.sources, plan):
                questions = first(source, PROBED if traced else 2 * PROBED)[-PROBED:]
                asking = plan.asking if kind == "short" else plan.answering
                tasks.append(bench.task(questions, source.label, condition, asking))
            seconds = bench.ask(tasks, trace=traced)
            rates[kind] = seconds / max(1, sum(task.count or 0 for task in tasks))
            spent += seconds / does.workers
        return {"load": max(0.0, time.perf_counter() - began - spent), **rates}


def open_model_run(model: str, plan: StudyPlan, path: str | Path) -> RunFolder:
    """Open the model's run folder, new or resumed; findings dropped by a budget do not make it a different run."""
    asked = {"model": model, **plan.recorded()}
    del asked["findings"]
    return RunFolder.create(path, plan.manifest(asked, [model]), resume=True)


def set_up(
    model: str, plan: StudyPlan, folder: RunFolder, engine: Engine, retry_errors: bool, watch: ProgressCallback | None
) -> Bench:
    """Open the data and find the model; workers load it."""
    worker = ModelWorker(plan.load)
    lens = worker.planning_lens(model, engine.in_process)
    journal = Journal(folder, retry_errors=retry_errors, share_prompts=True)
    own = plan.of_model(model)
    sources = sources_of(own)
    return Bench(own, model, lens, sources, folder, journal, worker, engine, watch, retry_errors)
