"""Run a study: all findings on one or more models and data sets, with figures, tables, claims and the report."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from floatlens.data.template import DEFAULT, Template, parse
from floatlens.errors import FloatLensError
from floatlens.evaluation import summary
from floatlens.evaluation.planning import CLOSED, OPEN, Asking
from floatlens.evaluation.sources import DataSource, problems_of, write_problems
from floatlens.evaluation.table import table1
from floatlens.files import atomic_write, temporary_folder
from floatlens.findings.finding import CONDITIONS, FINDINGS, check_setting
from floatlens.findings.verdict import correct_for_number
from floatlens.options import Load
from floatlens.store.engine import Engine, ProgressCallback
from floatlens.store.folder import MANIFEST, RunFolder, safe_name
from floatlens.store.local import LocalEngine, run_all
from floatlens.store.lock import NAME as LOCK
from floatlens.store.runs import MODELS, model_runs
from floatlens.store.storage import Storage
from floatlens.studies import replays
from floatlens.studies.analyse import analyse, answers_in, shown_samples
from floatlens.studies.parts.part import first, sources_of
from floatlens.studies.parts.registry import PARTS
from floatlens.studies.parts.traces import traced
from floatlens.studies.plan import StudyPlan, choose_findings
from floatlens.studies.report import make
from floatlens.studies.section import Section
from floatlens.studies.sizes import FULL, Sizes, fit_sizes, longest, parse_time
from floatlens.studies.work import Done, probe, work
from floatlens.trace.summarise import Detail, check_detail

PLAN, RESULTS, CLAIMS, REPORT = "plan.json", "results.json", "claims.json", "report.html"
DRAWING = 40.0  # seconds for figures, claims and the report, measured on one slow core
PER_TRACE = 0.25  # seconds that the findings take per trace


@dataclass
class Study:
    """The results of a study. `claims` are dictionaries as in claims.json.

    `path` is the run folder, and `location` the path or URL that was given for it. At a URL, `path` is a copy of the folder
    that is removed when the process ends.

    `failed` gives the reason for each part that failed, `cut` what was reduced to fit the budget, `notes` other remarks.
    """

    path: Path
    location: str
    claims: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    cut: list[str] = field(default_factory=list)
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
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    limit: int | None = None,
    budget: str | None = None,
    full: bool = False,
    sizes: Sizes | None = None,
    setting: str = "paper",
    traced_only: Sequence[str] = (),
    traced_data: Sequence[str] = (),
    traced_tokens: int | None = None,
    short_data: Sequence[str] = (),
    answer_tokens: int | None = None,
    stresses: Sequence[str] | None = None,
    stress_interventions: Sequence[str] = (),
    offset: int = 0,
    detail: Detail = "full",
    interventions: Sequence[str] | None = None,
    split: str | None = None,
    passages: int | None = None,
    max_passages: int | None = None,
    corpus: str | None = None,
    columns: Mapping[str, str] | None = None,
    layout: str | None = None,
    strict: bool = False,
    template: Template | str = DEFAULT,
    max_new_tokens: int = 32,
    steps: int | None = None,
    block_length: int | None = None,
    temperature: float = 0.0,
    seed: int | None = None,
    batch_size: int = 16,
    family: str | None = None,
    adapter: str | None = None,
    sampler: str | None = None,
    device: str | None = None,
    dtype: str = "auto",
    allow_pickle: bool = False,
    resume: bool = False,
    retry_errors: bool = False,
    jobs: int = 1,
    engine: Engine | None = None,
    watch: ProgressCallback | None = None,
) -> Study:
    """Run all findings on models and data, and write figures, tables, claims and the report to a run folder.

    Parameters
    ----------
    models, data
        Models: a bundled name, a folder or a hub id. Data: a file, a hub data set, `world` or `world:NAME`.
    only, skip
        Findings to run or to leave out.
    limit
        Maximum number of questions per data set in every part; `full` uses every question, as the paper does.
    setting
        Which questions are traced: "paper" (short ones without passages for findings on anchors, with passages for
        the others), "short" or "passages" for all of them.
    traced_only
        Models that are only traced on short questions, such as a large model in a study of small ones.
    traced_data, traced_tokens
        Data sets and maximum number of new tokens of the models in `traced_only`; by default those of the other models.
    short_data
        Data sets among `data` that serve short questions only; the others then give fewer of these.
    answer_tokens
        New tokens of questions with passages, and of those that they are compared with; default: `max_new_tokens`.
    stresses
        Stress tests to run; default: all.
    stress_interventions
        Interventions under which the stress tests are also run, each with its matched control.
    offset
        Number of questions to skip in each data set, for a study on questions that no earlier one has used.
    detail
        "full" stores every head of the traces, "summary" means over heads: see `Trace.save`.
    budget
        A time such as "10m". Rates are measured first and sizes are reduced to fit; `cut` lists what was reduced.
    interventions
        Specs as for `floatlens ablate`; by default those that the claims need, at few doses.
    split, columns, layout, strict
        How the data is read, as for `floatlens.read`.
    passages, max_passages, corpus
        Number of passages per question, including the gold one; maximum number for data with its own passages; file of
        passages to retrieve from with BM25.
    template
        The text around a question, with the slots {passages} and {question}.
    max_new_tokens, steps, block_length, temperature, seed
        Settings of the sampler, see `Lens.settings`; `seed` also draws the questions at random.
    batch_size
        Number of questions decoded together.
    family, adapter, sampler
        Family of every model, detected by default; folder of a LoRA adapter that is applied to every model; name of the
        sampler, where the family has several.
    device, dtype, allow_pickle
        How models are loaded, see `floatlens.load`.
    resume, retry_errors
        Resume the study in `out`; also retry questions that failed.
    jobs
        Number of models to run, and of findings to draw, in parallel, each in its own process.
    engine
        Where the work runs, this process by default; its workers share the questions of one model at a time.
    watch
        Called with a label and a total to report progress; returns a function that is called once per finished item.

    >>> study = fl.study(["tiny-mdm", "tiny-arm"], data="world:fresh", out="study")      # doctest: +SKIP
    >>> study.to_dataframe()[["claim", "models", "value", "verdict"]]                    # doctest: +SKIP
    """
    began = time.monotonic()
    check_detail(detail)
    seconds = parse_time(budget) if budget is not None else None
    names = (models,) if isinstance(models, str) else tuple(dict.fromkeys(models))
    plan = StudyPlan(
        models=names,
        data=(data,) if isinstance(data, str) else tuple(dict.fromkeys(data)),
        findings=choose_findings(only, skip),
        sizes=(sizes or (FULL if full else Sizes())).limited(limit),
        asking=Asking(
            max_new_tokens=max_new_tokens,
            steps=steps,
            batch_size=batch_size,
            seed=seed or 0,
            template=parse(template) if isinstance(template, str) else template,
            sampler={"block_length": block_length, "temperature": temperature},
        ),
        split=split,
        seed=seed,
        passages=passages,
        max_passages=max_passages,
        corpus=corpus,
        columns=columns,
        layout=layout,
        strict=strict,
        interventions=None if interventions is None else tuple(interventions),
        wide=full,
        setting=check_setting(setting),
        traced_only=tuple(traced_only),
        traced_data=tuple(traced_data),
        traced_tokens=traced_tokens,
        short_data=tuple(short_data),
        answer_tokens=answer_tokens,
        stresses=None if stresses is None else tuple(stresses),
        stress_interventions=tuple(stress_interventions),
        offset=offset,
        detail=detail,
        load=Load(family, None, adapter, sampler, None, dtype, device, allow_pickle=allow_pickle),
    ).reading()
    check(plan)
    does = engine or LocalEngine()
    sources = sources_of(plan)
    traced_sources = sources_of(replace(plan, data=plan.traced_data)) if plan.traced_data else sources
    every = list(dict.fromkeys([*sources, *traced_sources]))
    asked = {**plan.recorded(), "sizes": asdict(plan.sizes), "budget": budget}
    with RunFolder.create(out, plan.manifest(asked, plan.models), resume=resume) as folder:
        homes = [folder.inside(MODELS, safe_name(model)) for model in plan.models]
        plan, cut = _fit_to_budget(plan, sources, traced_sources, folder, homes, seconds, jobs, does, watch, began)
        tasks = [(m, plan, home, does, retry_errors) for m, home in zip(plan.models, homes, strict=True)]
        found = run_all(work, tasks, jobs if does.in_process else 1, watch)
        done = [
            each if isinstance(each, Done) else _lost(m, plan, each) for m, each in zip(plan.models, found, strict=True)
        ]
        _replay(plan, dict(zip(plan.models, homes, strict=True)), done, does, retry_errors, jobs, watch)
        write_problems(folder, every)
        local = _local_copy(folder)
        runs = [run.path for run in model_runs(local) if run.path != local]
        sections = analyse_findings(plan, runs, local, jobs, watch)
        skipped = [f"{label}: {text}" for label, text in problems_of(every).items()]
        made = _write_results(folder, local, runs, done, sections, cut, skipped, time.monotonic() - began)
        folder.finish()
    return made


def _replay(
    plan: StudyPlan,
    homes: Mapping[str, str | Path],
    done: Sequence[Done],
    engine: Engine,
    retry_errors: bool,
    jobs: int,
    watch: ProgressCallback | None,
) -> None:
    """Let the models replay each other's answers; failures are added to `done`."""
    there = {model: home for model, home in homes.items() if Storage(home).exists(MANIFEST)}
    found = {model: several for model, several in replays.compared(plan).items() if model in there}
    sources = {model: [each for each in several if each in found] for model, several in found.items()}
    compared = {model: there[model] for model in sources}
    tasks = [(model, several, plan, compared, engine, retry_errors) for model, several in sources.items()]
    results = run_all(replays.replay_answers, tasks, jobs if engine.in_process else 1, watch)
    outcomes = {each.model: each for each in done}
    for model, result in zip(sources, results, strict=True):
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
    from floatlens.evaluation.ablate.condition import conditions
    from floatlens.interventions.intervention import check as check_interventions
    from floatlens.lens import Lens

    if not plan.models:
        raise FloatLensError("a study needs at least one model, such as tiny-mdm tiny-arm")
    specs = [*plan.stress_interventions, *(plan.interventions or ())]
    for model in plan.models:
        lens = Lens.find(model, plan.load)
        lens.settings(**plan.asking.generation())
        for condition in conditions(specs) if specs else ():
            check_interventions(condition.interventions, lens.shape, lens.config)


def analyse_findings(
    plan: StudyPlan, homes: Sequence[Path], target: Path, jobs: int = 1, watch: ProgressCallback | None = None
) -> list[Section]:
    """Analyse all findings, in parallel where there are cores."""
    shown = {setting: shown_samples(homes, condition) for setting, condition in CONDITIONS.items()}
    tasks = [(name, homes, target, shown[FINDINGS[name].setting]) for name in plan.findings]
    found = run_all(analyse, tasks, jobs, watch)
    return [
        each
        if isinstance(each, Section)
        else Section(name, name.capitalize(), problem=f"{type(each).__name__}: {each}")
        for name, each in zip(plan.findings, found, strict=True)
    ]


def _fit_to_budget(
    plan: StudyPlan,
    sources: Sequence[DataSource],
    traced_sources: Sequence[DataSource],
    folder: RunFolder,
    homes: Sequence[str | Path],
    seconds: float | None,
    jobs: int,
    engine: Engine,
    watch: ProgressCallback | None,
    began: float,
) -> tuple[StudyPlan, list[str]]:
    """Fit the plan's sizes to the time budget, if there is one; a resumed study keeps its sizes."""
    if folder.storage.exists(PLAN):
        before = json.loads(folder.storage.read(PLAN))
        return replace(plan, sizes=Sizes(**before["sizes"]), findings=tuple(before["findings"])), before["cut"]
    cut: list[str] = []
    if seconds is not None:
        plan = replace(plan, sizes=plan.sizes.bounded([len(list(source.samples())) for source in sources]))
        tasks = [(m, plan, home, engine) for m, home in zip(plan.models, homes, strict=True)]
        found = run_all(probe, tasks, jobs if engine.in_process else 1, watch)
        rates = {m: each for m, each in zip(plan.models, found, strict=True) if isinstance(each, dict)}
        left = seconds - (time.monotonic() - began)
        sizes, parts, cut = fit_sizes(
            plan.sizes,
            plan.parts,
            left,
            lambda sizes, parts: predict_seconds(plan, sources, rates, sizes, parts, jobs, engine, traced_sources),
        )
        kept_findings = tuple(name for name in plan.findings if FINDINGS[name].part in parts)
        plan = replace(plan, sizes=sizes, findings=kept_findings)
    text = json.dumps({"sizes": asdict(plan.sizes), "findings": plan.findings, "cut": cut}, indent=2)
    folder.storage.write(PLAN, f"{text}\n".encode())
    return plan, cut


def predict_seconds(
    plan: StudyPlan,
    sources: Sequence[DataSource],
    rates: dict[str, dict[str, float]],
    sizes: Sizes,
    parts: Sequence[str],
    jobs: int,
    engine: Engine | None = None,
    traced_sources: Sequence[DataSource] | None = None,
) -> float:
    """Predict the seconds that a study of these sizes takes, from the measured rates of its models.

    `traced_sources` are the data sets of the models that are only traced, by default `sources`.
    """
    does = engine or LocalEngine()
    units: dict[str, int] = {}
    for name in parts:
        for kind, n in PARTS[name].units(sizes, plan, sources).items():
            units[kind] = units.get(kind, 0) + n
    alone = {}
    if "traces" in parts:
        units["short"] = units.get("short", 0) + replays.units(plan, sizes)
        for model in plan.traced_only[:1]:
            held = sources if traced_sources is None else traced_sources
            asked = traced(plan.of_model(model), sizes, held, model)
            alone = {"short": sum(len(first(source, count)) for source, _, count in asked)}
    each = {
        m: rate["load"]
        + sum(n * rate.get(kind, 0.0) for kind, n in (alone if m in plan.traced_only else units).items()) / does.workers
        for m, rate in rates.items()
    }
    traces = units.get("trace", 0) + units.get("short", 0)
    drawing = (DRAWING + PER_TRACE * traces * len(rates)) / max(1, min(jobs, 2))
    return longest(each, jobs if does.in_process else 1) + drawing


def _write_results(
    folder: RunFolder,
    local: Path,
    runs: Sequence[Path],
    done: list[Done],
    sections: list[Section],
    cut: list[str],
    notes: list[str],
    seconds: float,
) -> Study:
    """Write claims, tables, results and the report, and upload them with the figures to a study at a URL."""
    folder.check_lock()
    answers = answers_in([RunFolder.open(run) for run in runs])
    found = Study(local, str(folder) if folder.remote else str(local), cut=cut, seconds=seconds)
    found.claims = [claim for section in sections for claim in section.claims]
    correct_for_number(found.claims)
    found.failed = {f"{each.model}, {part}": reason for each in done for part, reason in each.failed.items()}
    found.failed |= {section.name: section.problem for section in sections if section.problem}
    found.notes = list(dict.fromkeys(note for each in done for note in each.notes)) + notes
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
        "cut": found.cut,
        "notes": found.notes,
        "seconds": {each.model: each.seconds for each in done},
    }
    _write(local / RESULTS, json.dumps(about, indent=2, ensure_ascii=False) + "\n")
    make([local], local / REPORT, sections=sections, drawn=local)
    if folder.remote:
        folder.check_lock()
        for path in sorted(path for path in local.rglob("*") if path.is_file()):
            name = path.relative_to(local).as_posix()
            if name not in (MANIFEST, PLAN, LOCK) and not name.startswith(f"{MODELS}/"):
                folder.storage.write(name, path.read_bytes())
    return found


def _lost(model: str, plan: StudyPlan, error: BaseException) -> Done:
    """Describe a model whose process ended before it reported its parts."""
    if isinstance(error, FloatLensError) and len(plan.models) == 1:
        raise error
    reason = str(error) if isinstance(error, FloatLensError) else f"{type(error).__name__}: {error}"
    return Done(model, failed=dict.fromkeys(plan.parts, " ".join(reason.split())))


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
