"""floatlens study: all findings on one or more models, and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floatlens.cli import options as common
from floatlens.cli import shared
from floatlens.errors import FloatLensError, check_known
from floatlens.options import Data, Load, Run, Sampling, Scope

if TYPE_CHECKING:
    from floatlens.store.engine import Engine
    from floatlens.studies.plan import StudyPlan
    from floatlens.studies.study import Study

PAPER = "the paper"
WORK = {
    "traces": "{} questions are traced",
    "texts": "{} readings of prose with and without the sink's token",
    "knowledge": "{} answers without and with passages",
    "stress": "{} answers under stress",
    "causes": "{} answers under interventions and their controls",
}


def command(
    models: common.Models,
    data: common.DataSets = ["world"],  # noqa: B006 (typer needs a list; it is not changed)
    out: Annotated[
        str, typer.Option(help="Run folder for figures, tables, claims and the report: a path or a URL.")
    ] = "study",
    scope: Scope = Scope(),
    reading: Data = Data(),
    sampling: Sampling = Sampling(),
    loading: Load = Load(),
    running: Run = Run(),
    as_json: common.AsJson = False,
) -> None:
    """Run every finding of the paper on the given models, and write figures, claims and a report.

    It says first what it will do and how long that takes. --beyond adds interventions and the claims of other papers.

    Examples:

        floatlens study tiny-mdm tiny-dream tiny-arm --data world --out study

        floatlens study tiny-mdm tiny-arm --only drift,stress --limit 20 --out quick

        floatlens study GSAI-ML/LLaDA-8B-Instruct --data nq.jsonl --dtype bfloat16

        floatlens study GSAI-ML/LLaDA-8B-Instruct --only sink --out sink
    """
    from floatlens.evaluation.sources import CLOSED, OPEN, open_sources
    from floatlens.findings.finding import SETTINGS
    from floatlens.store.engine import make_engine

    check_known("setting", scope.setting, SETTINGS)
    open_sources(data, replace(reading, limit=1), (CLOSED, OPEN))
    engine = make_engine(running)

    # Everything above is quick; from here on torch is needed.
    from floatlens.studies.plan import StudyPlan
    from floatlens.studies.study import check, run_study

    shared.check_device(loading, running.engine)
    scope = replace(scope, jobs=scope.jobs or fitting_jobs(models, loading))
    about: dict[str, Any] = {"models": tuple(models), "data": tuple(dict.fromkeys(data))}
    plan = StudyPlan(**about, scope=scope, reading=reading, sampling=sampling, load=loading, run=running)
    check(plan)
    with shared.bar(announce([plan], engine)) as watch:
        found = run_study(plan, out, engine, watch)
    show(found, as_json)


def announce(plans: Sequence[StudyPlan], engine: Engine | None = None) -> int:
    """Print to standard error what a study will do and how long that takes; return the number of its questions."""
    from floatlens.findings.spelling import listed
    from floatlens.studies.study import estimate

    lines = [f"Study of {listed(plan.models)} on {listed(plan.data)}: {', '.join(plan.findings)}" for plan in plans]
    if engine is not None:
        shared.print_notes(lines)
        return 0
    shared.print_notes([*lines, "Timing a few questions of each model …"])
    sizes, seconds = estimate(plans, plans[0].scope.jobs or 1)
    parts = [WORK[part].format(count) for part, count in sizes.items() if count]
    shorter = "; --resume skips what is done" if plans[0].run.resume else "; --limit N makes it shorter"
    shared.print_notes(
        [f"{'; '.join(parts)}.", f"This takes about {shared.spell_time(seconds)} on this machine{shorter}."]
    )
    return sum(sizes.values())


def fitting_jobs(models: list[str], loading: Load) -> int:
    """Number of models to run in parallel: the number of cores if all are small and on the CPU, otherwise one."""
    from floatlens.lens import SMALL
    from floatlens.models.checkpoint import find
    from floatlens.models.describe import shape
    from floatlens.store.engine import cores

    if loading.device_map not in (None, "cpu"):
        return 1
    widths = [shape(find(model, loading).native_config())["width"] for model in models]
    return cores() if all((width or SMALL) < SMALL for width in widths) else 1


def show(found: Study, as_json: bool) -> None:
    """Print only JSON, or the claims, remarks, and the path of the report."""
    from floatlens.studies.sentences import say_aloud
    from floatlens.studies.study import REPORT

    report = f"{found.location}/{REPORT}"
    if as_json:
        about: dict[str, Any] = {"results": found.results, "claims": found.claims, "failed": found.failed}
        about |= {"notes": found.notes, "seconds": round(found.seconds, 1)}
        shared.print_json(about | {"report": report, "run": found.location})
    else:
        print_verdicts(found.claims)
        shared.print_lines(f"failed: {what}: {reason}" for what, reason in found.failed.items())
        took = f"{found.seconds:.0f} seconds; figures, tables and traces are in {found.location}"
        shared.print_lines([*found.notes, took, f"The report: {report}"])
        shared.print_lines(f"\n{sentence}" for sentence in say_aloud(found.claims))
    if found.failed and not found.claims:
        raise FloatLensError(f"nothing could be measured; the first failure: {next(iter(found.failed.values()))}")


def print_verdicts(claims: list[dict[str, Any]]) -> None:
    """Print one line per claim, 80 columns wide; numbers and models are in the report and in claims.json."""
    from rich.text import Text

    from floatlens.findings.verdict import by_claim
    from floatlens.studies.sentences import count_verdicts, say_primary

    console, source, left_out = shared.make_console(), "", []
    for several in by_claim(claims).values():
        measured = [claim for claim in several if claim["n"]]
        if not measured:
            left_out.append(several[0]["claim"])
            continue
        if (found := "The paper" if several[0]["whose"] == PAPER else "Beyond the paper") != source:
            source = found
            console.print(Text(f"{source:<51} {'models or pairs':>28}", style="bold"))
        verdicts = {claim["verdict"] for claim in measured}
        style = shared.COLOURS.get(verdicts.pop(), "yellow") if len(verdicts) == 1 else ""
        line = Text(f"{several[0]['claim'][:51]:<51} ")
        console.print(line.append(f"{count_verdicts(measured):>28}", style=style), soft_wrap=True)
    shared.print_lines([f"{say_primary(claims)}."])
    shared.print_lines([f"Without data here: {'; '.join(left_out)}"] if left_out else [])
