"""Run a study: all findings on one or more models and data sets, with figures, tables, claims and the report; and say
before how long that takes."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Unpack

import pandas as pd

from floatlens.data.template import parse
from floatlens.errors import FloatLensError, check_known
from floatlens.evaluation import summary
from floatlens.evaluation.conditions import check_settings, conditions
from floatlens.evaluation.loop import Experiment, ModelWorker, run_experiments
from floatlens.evaluation.sources import CLOSED, OPEN, WITHOUT_PASSAGES, DataSource, problems_of, write_problems
from floatlens.evaluation.table import files, table1
from floatlens.files import atomic_write, temporary_folder
from floatlens.findings.finding import FINDINGS, SETTINGS
from floatlens.findings.sink import CONTROLS, WINDOWED, WORDS
from floatlens.findings.verdict import correct_primary
from floatlens.findings.window import LENGTH, read_text, reason_against
from floatlens.keywords import StudyKeywords
from floatlens.options import Data, Load, Run, Sampling, Scope
from floatlens.options import make as make_options
from floatlens.store.engine import Engine, ProgressCallback, make_engine, run_all
from floatlens.store.folder import RunFolder, safe_name
from floatlens.store.runs import MODELS, model_runs
from floatlens.studies.analyse import analyse_findings, answers_in, reason_of
from floatlens.studies.parts import EXPERIMENTS, choose_interventions, study_model
from floatlens.studies.plan import StudyPlan, choose_findings, manifest_of
from floatlens.studies.report import make
from floatlens.studies.texts import read_texts, split_texts, token_texts

RESULTS, CLAIMS, REPORT = "results.json", "claims.json", "report.html"
ENOUGH = 1.0  # seconds of one question; a shorter one says little, and a batch is timed instead
PER_CONDITION = 2.0  # an intervention answers a question and runs along the steps of the plain answer
PER_FIGURE, PER_TRACE = 3.0, 0.1  # seconds that a finding takes to draw, and to read a trace
READINGS = 2 + len(WORDS) * (2 + len(CONTROLS))  # conditions under which a text is read


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
    models: bundled names, folders or Hub ids.
    data: files, Hub data sets, `world` or `world:NAME`.
    engine: where the work runs, this process by default; its workers share the questions of one model at a time.
    watch: called with a label and a total to report progress; returns a function that is called once per finished item.
    **options: the fields of `floatlens.options`: `Scope` (which findings, on how many questions), `Data`, `Sampling`, `Load`
        and `Run`. `limit` is per data set and part; `seed` also draws the questions at random; `sampler` is the name of a
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
    engine = engine or make_engine(run)
    sources = [source for plan in plans for source in plan.sources()]
    plan_of = {model: plan for plan in plans for model in plan.models}
    names = choose_findings(only=[name for plan in plans for name in plan.findings])
    with RunFolder.create(out, manifest_of(plans), resume=run.resume) as folder:
        tasks = [(model, plan, folder.inside(MODELS, safe_name(model)), engine) for model, plan in plan_of.items()]
        found = run_all(study_model, tasks, jobs if engine is None else 1, watch)
        statuses = [_status(*each, plan_of) for each in zip(plan_of, found, strict=True)]
        write_problems(folder, sources)
        local = folder.path
        if folder.remote:  # the study as files on this disk
            local = temporary_folder("study") / Path(folder.storage.root).name
            folder.storage.download("", local)
        runs = [run.path for run in model_runs(local) if run.path != local]
        sections = analyse_findings(names, runs, local, jobs, watch)
        made = Study(local, str(folder) if folder.remote else str(local))
        made.claims = [claim for section in sections for claim in section.claims]
        correct_primary(made.claims)
        made.failed = {f"{each['model']}, {part}": why for each in statuses for part, why in each["failed"].items()}
        made.failed |= {section.name: section.problem for section in sections if section.problem}
        made.notes = list(dict.fromkeys(note for each in statuses for note in each["notes"]))
        made.notes += [f"{label}: {text}" for label, text in problems_of(sources).items()]
        made.seconds = time.monotonic() - began
        folder.check_lock()
        write_results(made, answers_in(runs), {each["model"]: each["seconds"] for each in statuses})
        make([local], local / REPORT, sections=sections)
        if folder.remote:
            folder.upload(local)
        folder.finish()
    return made


def check(plan: StudyPlan) -> None:
    """Raise an error for invalid models and settings before any weight is read."""
    if not plan.models:
        raise FloatLensError("a study needs at least one model, such as tiny-mdm tiny-arm")
    check_known("setting", plan.scope.setting, SETTINGS)
    _ = plan.findings, plan.sizes
    specs = [*plan.scope.stress_interventions, *(plan.scope.interventions or ())]
    check_settings(plan.models, plan.load, [plan.sampling], specs)


def _status(model: str, found: dict[str, Any] | BaseException, plan_of: Mapping[str, StudyPlan]) -> dict[str, Any]:
    """What `study_model` returned; of a model whose process ended before, why all its parts failed."""
    if not isinstance(found, BaseException):
        return found
    if isinstance(found, FloatLensError) and len(plan_of) == 1:
        raise found
    return {"model": model, "seconds": {}, "failed": dict.fromkeys(plan_of[model].parts, reason_of(found)), "notes": []}


def write_results(study: Study, answers: pd.DataFrame, seconds: Mapping[str, Any]) -> None:
    """Write claims, answers, Table 1 and the results of a study to its folder."""
    texts = {CLAIMS: json.dumps({"claims": study.claims}, indent=2, ensure_ascii=False) + "\n"}
    if len(answers):
        with atomic_write(study.path / "answers.parquet") as temporary:
            answers.to_parquet(temporary, index=False)
        plain = answers[answers["condition"].isin([CLOSED, OPEN])]
        study.results = summary.results(answers)
        texts |= files(table1(summary.results(plain), summary.averages(plain)))
    about = {name: getattr(study, name) for name in ("results", "claims", "failed", "notes")} | {"seconds": seconds}
    texts[RESULTS] = json.dumps(about, indent=2, ensure_ascii=False) + "\n"
    for name, text in texts.items():
        with atomic_write(study.path / name) as temporary:
            temporary.write_text(text, encoding="utf-8")


# How long it takes


def estimate(plans: Sequence[StudyPlan], jobs: int = 1) -> tuple[dict[str, int], float]:
    """Time a few questions per model; `jobs` models run in parallel.

    Returns the number of questions and texts of all models by part, and the seconds of the whole study.
    """
    sizes: Counter[str] = Counter()
    seconds = []
    for plan in plans:
        for model in plan.models:
            worker, sources = ModelWorker(plan.load), plan.sources()
            found = {part: _part(part, plan, model, sources, worker) for part in plan.parts}
            seconds.append(sum(took for _, took in found.values()))
            sizes.update({part: count for part, (count, _) in found.items()})
    names = {name for plan in plans for name in plan.findings}
    opened = sum(FINDINGS[name].reads in ("traces", "both") for name in names) * sizes["traces"]
    drawing = (PER_FIGURE * len(names) + PER_TRACE * opened) / jobs
    return dict(sizes), max(sum(seconds) / min(jobs, len(seconds)), *seconds) + drawing


def _part(
    part: str, plan: StudyPlan, model: str, sources: Sequence[DataSource], worker: ModelWorker
) -> tuple[int, float]:
    """The number of questions or texts of a part, and its seconds."""
    lens = worker.lens(model)
    if part == "texts":
        if reason_against(lens):
            return 0, 0.0
        searched, tested = split_texts(token_texts(lens.tokenizer, read_texts(plan.scope.texts, plan.sizes["texts"])))
        ids = next(iter(searched.values()))[:LENGTH]
        windows, last = (_timed(read_text, lens, ids, windows=way) for way in (True, False))
        per_text = len(WINDOWED) * windows + (READINGS - len(WINDOWED)) * last
        return len(searched) + len(tested) * READINGS, len(searched) * last + len(tested) * per_text
    if part == "replays":
        return 0, 0.0  # a dozen short questions
    if part == "causes":
        job = EXPERIMENTS["knowledge"](plan, model, sources[:1])[0][-1]
        specs, seeds = choose_interventions(plan, lens)
        asked = min(plan.sizes["causes"] or job.count or 0, job.count or 0)
        count = asked * len(conditions(specs, None, seeds))
        return count, count * PER_CONDITION * _seconds_per_question(job, worker)
    kinds: dict[tuple[bool, bool], list[Experiment]] = {}
    for job in EXPERIMENTS[part](plan, model, sources)[0]:
        kinds.setdefault((job.recording is None, job.condition in WITHOUT_PASSAGES), []).append(job)
    counts = {kind: sum(job.count or 0 for job in several) for kind, several in kinds.items()}
    seconds = sum(counts[kind] * _seconds_per_question(several[0], worker) for kind, several in kinds.items())
    return sum(counts.values()), seconds


def _seconds_per_question(job: Experiment, worker: ModelWorker) -> float:
    """The time of one question, or per question of a batch if one is quick."""
    for count in (1, job.batch_size):
        samples = list(islice(job.samples, count))
        seconds = _timed(run_experiments, [replace(job, samples=samples)], worker)
        if seconds > ENOUGH:
            break
    return seconds / len(samples)


def _timed(work: Callable[..., Any], *arguments: Any, **options: Any) -> float:
    began = time.perf_counter()
    work(*arguments, **options)
    return time.perf_counter() - began
