"""floatlens study: all findings on one or more models, and the report."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floatlens.cli import options as common
from floatlens.errors import FloatLensError
from floatlens.options import Data, Load, Run, Sampling

if TYPE_CHECKING:
    from rich.console import Console

    from floatlens.studies.run import Study

COLOURS = {"supported": "green", "not supported": "red", "inconclusive": "yellow", "too few samples": "yellow"}


@common.grouped
def command(
    models: common.Models,
    data: common.DataSets,
    out: Annotated[str, typer.Option(help="Run folder for figures, tables, claims and the report: a path or a URL.")],
    only: Annotated[str | None, typer.Option(help="Findings to run, such as drift,heads,stress.")] = None,
    skip: Annotated[str | None, typer.Option(help="Findings to leave out.")] = None,
    budget: Annotated[str | None, typer.Option(help="Time budget such as 10m; sizes are reduced to fit it.")] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Use every question, and run every stress test on every data set.")
    ] = False,
    setting: Annotated[
        str,
        typer.Option(
            help="Which questions are traced: paper (short ones for anchors, with passages for heads and flow), "
            "short, passages."
        ),
    ] = "paper",
    offset: Annotated[int, typer.Option(min=0, help="Number of questions to skip in each data set.")] = 0,
    stress_intervention: Annotated[
        list[str] | None,
        typer.Option(
            help='Also run the stress tests under an intervention, such as "mask-anchors"; repeat for several.'
        ),
    ] = None,
    detail: common.Detail = "full",
    reading: Data = Data(),
    sampling: Sampling = Sampling(),
    loading: Load = Load(),
    running: Run = Run(batch_size=16),
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Models to run in parallel; default: number of cores for small models, otherwise 1."),
    ] = None,
    as_json: common.AsJson = False,
) -> None:
    """Run every finding of the paper on the given models, and write figures, claims and a report.

    Examples:

        floatlens study tiny-mdm tiny-dream tiny-arm --data world --out study

        floatlens study tiny-mdm tiny-arm --data world:fresh --only drift,stress --limit 20 --out quick

        floatlens study GSAI-ML/LLaDA-8B-Instruct meta-llama/Meta-Llama-3-8B-Instruct --data nq.jsonl --budget 2h \
            --device auto --dtype bfloat16 --out llada
    """
    from floatlens.data.template import DEFAULT
    from floatlens.evaluation.planning import CLOSED, OPEN
    from floatlens.evaluation.sources import open_sources
    from floatlens.findings.finding import check_setting
    from floatlens.studies.sizes import parse_time

    check_setting(setting)
    if budget is not None:
        parse_time(budget)
    asked = {name: value for name, value in vars(reading).items() if name != "retriever"}
    asked |= {"template": reading.template or DEFAULT}
    asked |= {name: value for name, value in vars(sampling).items() if name not in ("seed", "sampler")}
    how = ("family", "adapter", "sampler", "dtype", "allow_pickle")
    asked |= {name: getattr(loading, name) for name in how} | {"device": loading.device_map}
    asking = common.ask(sampling, reading, running)
    open_sources(common.plan(models, data, reading, asking, conditions=(CLOSED, OPEN), limit=1))
    engine = common.make_engine(running)

    # Everything above is quick; from here on torch is needed.
    from floatlens.cli.progress import bar
    from floatlens.studies.run import study

    with bar("questions") as watch:
        found = study(
            models,
            data=data,
            out=out,
            only=common.parse_names(only),
            skip=common.parse_names(skip),
            budget=budget,
            full=full,
            setting=setting,
            stress_interventions=stress_intervention or (),
            offset=offset,
            detail=detail,
            **asked,
            batch_size=running.batch_size,
            resume=running.resume,
            retry_errors=running.retry_errors,
            jobs=jobs or fitting_jobs(models, loading),
            engine=engine,
            watch=watch,
        )
    show(found, as_json)


def fitting_jobs(models: list[str], loading: Load) -> int:
    """Number of models to run in parallel: the number of cores if all are small and on the CPU, otherwise one."""
    from floatlens.lens import SMALL
    from floatlens.models.checkpoint import find
    from floatlens.models.describe import shape
    from floatlens.store.local import cores

    if loading.device_map not in (None, "cpu"):
        return 1
    widths = [shape(find(model, loading).native_config())["width"] for model in models]
    return cores() if all((width or SMALL) < SMALL for width in widths) else 1


def show(found: Study, as_json: bool) -> None:
    """Print only JSON, or the claims, remarks, and the path of the report."""
    from rich.console import Console

    from floatlens.studies.aloud import say_aloud
    from floatlens.studies.run import REPORT

    if as_json:
        about: dict[str, Any] = {"results": found.results, "claims": found.claims, "failed": found.failed}
        about |= {"cut": found.cut, "notes": found.notes, "seconds": round(found.seconds, 1)}
        sys.stdout.write(json.dumps({**about, "report": f"{found.location}/{REPORT}", "run": found.location}) + "\n")
    else:
        console = Console(highlight=False)
        claims_table(console, found.claims)
        for what, reason in found.failed.items():
            console.print(f"failed: {what}: {reason}", style="red", markup=False)
        for sentence in found.cut:
            console.print(f"reduced to fit the time: {sentence}", markup=False)
        for sentence in found.notes:
            console.print(sentence, markup=False)
        console.print(f"{found.seconds:.0f} seconds; figures, tables and traces are in {found.location}", markup=False)
        console.print("The report: ", end="")
        console.print(f"{found.location}/{REPORT}", style="bold", markup=False, soft_wrap=True)
        for sentence in say_aloud(found.claims):
            console.print()
            console.print(sentence, markup=False)
    if found.failed and not found.claims:
        raise FloatLensError(f"nothing could be measured; the first failure: {next(iter(found.failed.values()))}")


def claims_table(console: Console, claims: list[dict[str, Any]]) -> None:
    """Print one line per claim, 80 columns wide; numbers and models are in the report and in claims.json."""
    from rich.text import Text

    from floatlens.studies.aloud import by_claim, count_verdicts, decided, say_corrected

    source = ""
    for several in by_claim(claims).values():
        text = count_verdicts(several)
        if text == "not measured":
            continue
        if (found := "The paper" if "2601.07894" in several[0].get("source", "") else "Beyond the paper") != source:
            source = found
            console.print(Text(f"{source:<51} {'models or pairs':>28}", style="bold"))
        line = Text(f"{several[0]['claim'][:51]:<51} ")
        verdicts = {claim["verdict"] for claim in several if claim["n"]}
        line.append(f"{text:>28}", style=COLOURS[next(iter(verdicts))] if len(verdicts) == 1 else "")
        console.print(line, soft_wrap=True)
    papers = [claim for claim in claims if "2601.07894" in claim.get("source", "")]
    measured = [claim for claim in papers if claim["n"]]
    if measured:
        yes, every = decided(measured)
        console.print(f"Decided: {yes} of {every} verdicts on the paper's claims ({100 * yes / every:.0f} %).")
    if text := say_corrected(claims):
        console.print(f"{text}.")
    left_out = dict.fromkeys(claim["claim"] for several in by_claim(claims).values() for claim in several
                             if not any(each["n"] for each in several))  # fmt: skip
    if left_out:
        console.print(Text(f"Not measured here: {'; '.join(left_out)}"))
