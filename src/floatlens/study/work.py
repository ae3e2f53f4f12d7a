"""The work of a study on one model: every part, in the model's own run folder, none lost because another failed."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from floatlens.errors import FloatLensError
from floatlens.runs.folder import RunFolder
from floatlens.study.parts.part import Bench, first
from floatlens.study.parts.registry import PARTS
from floatlens.study.plan import StudyPlan
from floatlens.tasks.answering import Watch
from floatlens.tasks.comparison import open_sources
from floatlens.tasks.evaluate import CLOSED, OPEN
from floatlens.tasks.journal import Journal
from floatlens.tasks.summary import frame

PROBED = 2  # questions a data set by which the rates are measured
STATUS = "parts.json"


@dataclass
class Done:
    """What became of one model: seconds a part took, why parts failed, what a reader must know."""

    model: str
    seconds: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def work(model: str, plan: StudyPlan, path: Path, watch: Watch | None = None) -> Done:
    """Do all parts for a model; a run that was killed goes on where it was, and a finished one is only looked at."""
    with started(model, plan, path) as folder:
        status = path / STATUS
        if status.exists() and not (found := Done(**json.loads(status.read_text(encoding="utf-8")))).failed:
            return found
        bench = set_up(model, plan, folder, watch)
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


def probe(model: str, plan: StudyPlan, path: Path, watch: Watch | None = None) -> dict[str, float]:
    """Seconds that a model takes to load, to trace a question, and to answer one with and without passages.

    The questions asked are the study's own, and their answers stay: measuring costs nothing but its order.
    """
    with started(model, plan, path) as folder:
        began = time.perf_counter()
        bench = set_up(model, replace(plan, sizes=replace(plan.sizes, traces=PROBED)), folder, watch)
        rates = {"load": time.perf_counter() - began}
        if "traces" in plan.parts:
            began = time.perf_counter()
            PARTS["traces"].run(bench)
            rates["trace"] = (time.perf_counter() - began) / max(1, len(bench.rows))
        for kind, condition in (("open", OPEN), ("closed", CLOSED)):
            count, began = 0, time.perf_counter()
            for source in bench.sources:
                questions = first(source, 2 * PROBED)[-PROBED:]
                bench.ask(questions, source.label, condition, plan.asking)
                count += len(questions)
            rates[kind] = (time.perf_counter() - began) / max(1, count)
        return rates


def started(model: str, plan: StudyPlan, path: Path) -> RunFolder:
    """The model's run folder, new or gone on with; findings that a short time leaves out make it no other run."""
    asked = {"model": model, **plan.recorded()}
    del asked["findings"]
    return RunFolder.create(path, plan.manifest(asked, [model]), resume=True)


def set_up(model: str, plan: StudyPlan, folder: RunFolder, watch: Watch | None) -> Bench:
    """Load the model and open the data."""
    from floatlens.runs.loader import Loader

    sources = open_sources(plan.comparison())
    return Bench(plan, model, Loader(plan.device, plan.dtype)(model), sources, folder, Journal(folder), watch)
