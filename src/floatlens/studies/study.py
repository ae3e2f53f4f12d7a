"""Run a study: all findings on one or more models and data sets, with figures, tables, claims and the report."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import pandas as pd

from floatlens.data.template import parse
from floatlens.errors import FloatLensError
from floatlens.evaluation import summary
from floatlens.evaluation.conditions import conditions
from floatlens.evaluation.sources import CLOSED, OPEN, problems_of, write_problems
from floatlens.evaluation.table import table1
from floatlens.files import atomic_write, temporary_folder
from floatlens.findings.finding import check_setting
from floatlens.findings.verdict import correct_primary
from floatlens.interventions.intervention import check as check_interventions
from floatlens.keywords import StudyKeywords
from floatlens.lens import Lens
from floatlens.options import Data, Load, Run, Sampling, Scope
from floatlens.options import make as make_options
from floatlens.store.engine import Engine, ProgressCallback, make_engine, run_all
from floatlens.store.folder import MANIFEST, RunFolder, safe_name
from floatlens.store.lock import NAME as LOCK
from floatlens.store.runs import MODELS, model_runs
from floatlens.store.storage import Storage
from floatlens.studies import replays
from floatlens.studies.analyse import Section, analyse_findings, answers_in
from floatlens.studies.parts import ModelOutcome, study_model
from floatlens.studies.plan import StudyPlan, choose_findings, manifest_of
from floatlens.studies.report import make

RESULTS, CLAIMS, REPORT = "results.json", "claims.json", "report.html"


@dataclass
class Study:
    """The results of a study. `claims` are dictionaries as in claims.json.

    `path` is the run folder, and `location` the path or URL that was given for it. At a URL, `path` is a copy of the folder
    that is removed when the process ends.

    `failed` gives the reason for each part that failed, `notes` other remarks.
    """

    path: Path
    location: str
    claims: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def report(self) -> Path:
        return self.path / REPORT

    def to_dataframe(self) -> pd.DataFrame:
        """Return the claims, one row per claim and model."""
        frame = pd.DataFrame(self.claims)
        if len(frame):
            frame["low"], frame["high"] = zip(*frame.pop("interval"), strict=True)
        return frame.drop(columns="details", errors="ignore")


def study(
    models: Sequence[str] | str,
    *,
    data: Sequence[str] | str = "world",
    out: str | Path = "study",
    engine: Engine | str | None = None,
    watch: ProgressCallback | None = None,
    **options: Unpack[StudyKeywords],
) -> Study:
    """Run all findings on models and data, and write figures, tables, claims and the report to a run folder.

    Parameters
    ----------
    models, data
        Models: a bundled name, a folder or a hub id. Data: a file, a hub data set, `world` or `world:NAME`.
    engine
        Where the work runs, this process by default; its workers share the questions of one model at a time.
    watch
        Called with a label and a total to report progress; returns a function that is called once per finished item.
    **options
        The fields of `floatlens.options`: `Scope` (which findings, on how many questions), `Data`, `Sampling`, `Load` and
        `Run`. `limit` is per data set and part; `seed` also draws the questions at random; `sampler` is the name of a
        sampler, or settings of one.

    >>> study = fl.study(["tiny-mdm", "tiny-arm"], data="world:fresh", out="study")      # doctest: +SKIP
    >>> study.to_dataframe()[["claim", "models", "value", "verdict"]]                    # doctest: +SKIP
    """
    given: dict[str, Any] = dict(options)
    sampler = given.pop("sampler", None)
    template = given.get("template")
    if isinstance(template, str):
        given["template"] = parse(template)
    scope, reading, sampling, load, run = make_options(given, Scope, Data, Sampling, Load, Run)
    named = isinstance(sampler, str)
    load = replace(load, block_length=None, sampler=sampler if named else None)
    plan = StudyPlan(
        models=(models,) if isinstance(models, str) else tuple(dict.fromkeys(models)),
        data=(data,) if isinstance(data, str) else tuple(dict.fromkeys(data)),
        scope=scope,
        reading=reading,
        sampling=replace(sampling, sampler=None if named else sampler),
        load=load,
        run=replace(run, engine=engine) if isinstance(engine, str) else run,
    )
    return run_study(plan, out, engine if isinstance(engine, Engine) else None, watch)


def run_study(
    plans: StudyPlan | Sequence[StudyPlan],
    out: str | Path,
    engine: Engine | None = None,
    watch: ProgressCallback | None = None,
) -> Study:
    """Run a study by its plan; models that are asked other questions than the others have a plan of their own."""
    began = time.monotonic()
    plans = [plans] if isinstance(plans, StudyPlan) else plans
    for plan in plans:
        check(plan)
    run, jobs = plans[0].run, plans[0].scope.jobs or 1
    does = engine or make_engine(run)
    at_once = jobs if does.in_process else 1
    sources = [source for plan in plans for source in plan.sources()]
    plan_of = {model: plan for plan in plans for model in plan.models}
    names = choose_findings(only=[name for plan in plans for name in plan.findings])
    with RunFolder.create(out, manifest_of(plans), resume=run.resume) as folder:
        homes = {model: folder.inside(MODELS, safe_name(model)) for model in plan_of}
        tasks = [(model, plan_of[model], home, does) for model, home in homes.items()]
        outcomes = {
            model: each if isinstance(each, ModelOutcome) else _lost(model, plan_of[model], each)
            for model, each in zip(plan_of, run_all(study_model, tasks, at_once, watch), strict=True)
        }
        for plan in plans:
            _replay(plan, homes, outcomes, does, at_once, watch)
        write_problems(folder, sources)
        local = _local_copy(folder)
        runs = [run.path for run in model_runs(local) if run.path != local]
        sections = analyse_findings(names, runs, local, jobs, watch)
        skipped = [f"{label}: {text}" for label, text in problems_of(sources).items()]
        made = _write_results(folder, local, runs, list(outcomes.values()), sections, skipped, time.monotonic() - began)
        folder.finish()
    return made


def _replay(
    plan: StudyPlan,
    homes: Mapping[str, str | Path],
    outcomes: Mapping[str, ModelOutcome],
    engine: Engine,
    jobs: int,
    watch: ProgressCallback | None,
) -> None:
    """Replay the models' own answers with one thing changed; failures are added to the outcomes."""
    models = [model for model in replays.replaying(plan) if Storage(homes[model]).exists(MANIFEST)]
    tasks = [(model, plan, homes[model], engine) for model in models]
    for model, result in zip(models, run_all(replays.replay_answers, tasks, jobs, watch), strict=True):
        if isinstance(result, BaseException):
            outcomes[model].failed["replays"] = " ".join(f"{type(result).__name__}: {result}".split())


def _local_copy(folder: RunFolder) -> Path:
    """The study as files on this disk; one at a URL is downloaded."""
    if not folder.remote:
        return folder.path
    copy = temporary_folder("study") / Path(folder.storage.root).name
    folder.storage.download("", copy)
    return copy


def check(plan: StudyPlan) -> None:
    """Raise an error for invalid models and settings before any weight is read."""
    if not plan.models:
        raise FloatLensError("a study needs at least one model, such as tiny-mdm tiny-arm")
    check_setting(plan.scope.setting)
    _ = plan.findings, plan.sizes
    specs = [*plan.scope.stress_interventions, *(plan.scope.interventions or ())]
    for model in plan.models:
        lens = Lens.find(model, plan.load)
        lens.settings_of((), plan.sampling)
        for condition in conditions(specs) if specs else ():
            check_interventions(condition.interventions, lens.shape, lens.config)


def _write_results(
    folder: RunFolder,
    local: Path,
    runs: Sequence[Path],
    outcomes: list[ModelOutcome],
    sections: list[Section],
    notes: list[str],
    seconds: float,
) -> Study:
    """Write claims, tables, results and the report, and upload them with the figures to a study at a URL."""
    folder.check_lock()
    answers = answers_in([RunFolder.open(run) for run in runs])
    found = Study(local, str(folder) if folder.remote else str(local), seconds=seconds)
    found.claims = [claim for section in sections for claim in section.claims]
    correct_primary(found.claims)
    found.failed = {f"{each.model}, {part}": reason for each in outcomes for part, reason in each.failed.items()}
    found.failed |= {section.name: section.problem for section in sections if section.problem}
    found.notes = list(dict.fromkeys(note for each in outcomes for note in each.notes)) + notes
    text = json.dumps({"claims": found.claims}, indent=2, ensure_ascii=False) + "\n"
    _write(local / CLAIMS, text)
    if len(answers):
        with atomic_write(local / "answers.parquet") as temporary:
            answers.to_parquet(temporary, index=False)
        plain = answers[answers["condition"].isin([CLOSED, OPEN])]
        found.results = summary.results(answers)
        table = table1(summary.results(plain), summary.averages(plain))
        for ending, made in (("md", table.markdown()), ("tex", table.latex()), ("csv", table.csv())):
            _write(local / f"table1.{ending}", made)
    about = {
        "results": found.results,
        "claims": found.claims,
        "failed": found.failed,
        "notes": found.notes,
        "seconds": {each.model: each.seconds for each in outcomes},
    }
    _write(local / RESULTS, json.dumps(about, indent=2, ensure_ascii=False) + "\n")
    make([local], local / REPORT, sections=sections, drawn=local)
    if folder.remote:
        folder.check_lock()
        for path in sorted(path for path in local.rglob("*") if path.is_file()):
            name = path.relative_to(local).as_posix()
            if name not in (MANIFEST, LOCK) and not name.startswith(f"{MODELS}/"):
                folder.storage.write(name, path.read_bytes())
    return found


def _lost(model: str, plan: StudyPlan, error: BaseException) -> ModelOutcome:
    """Describe a model whose process ended before it reported its parts."""
    if isinstance(error, FloatLensError) and len(plan.models) == 1:
        raise error
    reason = str(error) if isinstance(error, FloatLensError) else f"{type(error).__name__}: {error}"
    return ModelOutcome(model, failed=dict.fromkeys(plan.parts, " ".join(reason.split())))


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
