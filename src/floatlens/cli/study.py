"""floatlens study: everything on one or more models, and the report."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floatlens.cli import options as common
from floatlens.cli.grouped import grouped
from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    from rich.console import Console

    from floatlens.studies.run import Study

COLOURS = {"supported": "green", "not supported": "red", "inconclusive": "yellow"}


@grouped
def command(
    models: common.Models,
    data: common.Data,
    out: Annotated[str, typer.Option(help="Run folder for figures, tables, claims and the report.")],
    only: Annotated[str | None, typer.Option(help="Findings to run, such as drift,heads,stress.")] = None,
    skip: Annotated[str | None, typer.Option(help="Findings to leave out.")] = None,
    limit: common.LimitEach = None,
    budget: Annotated[
        str | None, typer.Option(help="A time such as 10m: sizes are cut to fit it, and what was cut is said.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Every question, every stress on every data set.")] = False,
    split: common.Split = None,
    passages: common.Passages = None,
    max_passages: common.MaxPassages = None,
    retriever: common.Retriever = None,
    corpus: common.Corpus = None,
    sampling: common.SamplerOptions = common.SamplerOptions(batch_size=16),
    seed: common.Seed = None,
    adapter: common.Adapter = None,
    device: common.Device = None,
    dtype: common.Dtype = "auto",
    allow_pickle: common.AllowPickle = False,
    running: common.RunOptions = common.RunOptions(),
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Models at once, a process each; default: cores for small models, else 1.")
    ] = None,
    as_json: common.AsJson = False,
) -> None:
    """Trace, answer, stress and judge: every finding of the paper on some models, with figures, claims and a report.

    Examples:

        floatlens study tiny-mdm tiny-dream tiny-arm --data world --out study

        floatlens study tiny-mdm tiny-arm --data world:fresh --only drift,stress --limit 20 --out quick

        floatlens study GSAI-ML/LLaDA-8B-Instruct meta-llama/Meta-Llama-3-8B-Instruct --data nq.jsonl --budget 2h \
            --device auto --dtype bfloat16 --out llada
    """
    from floatlens.cli.progress import bar
    from floatlens.studies.run import study

    common.DataOptions(retriever=retriever, corpus=corpus)  # refuses one without the other
    with bar("questions") as watch:
        found = study(
            models,
            data=data,
            out=out,
            only=names(only),
            skip=names(skip),
            limit=limit,
            budget=budget,
            full=full,
            split=split,
            passages=passages,
            max_passages=max_passages,
            corpus=corpus,
            seed=seed,
            **vars(sampling),
            adapter=adapter,
            device=device,
            dtype=dtype,
            allow_pickle=allow_pickle,
            resume=running.resume,
            retry_errors=running.retry_errors,
            jobs=jobs or fitting_jobs(models, device),
            engine=running.make_engine(),
            watch=watch,
        )
    show(found, as_json)


def names(text: str | None) -> list[str]:
    """Names of a list with commas.

    >>> names("drift, stress"), names(None)
    (['drift', 'stress'], [])
    """
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def fitting_jobs(models: list[str], device: str | None) -> int:
    """Models to work on at once: as many as there are cores when all are small and on the CPU, else one."""
    from floatlens.models.checkpoint import find
    from floatlens.models.describe import shape
    from floatlens.runs.model_pool import cores
    from floatlens.runs.threads import SMALL

    if device not in (None, "cpu"):
        return 1
    widths = [shape(find(model).native_config())["width"] for model in models]
    return cores() if all((width or SMALL) < SMALL for width in widths) else 1


def show(found: Study, as_json: bool) -> None:
    """JSON alone, or the claims, what a reader must know, and where the report is."""
    from rich.console import Console

    if as_json:
        about: dict[str, Any] = {"results": found.results, "claims": found.claims, "failed": found.failed}
        about |= {"cut": found.cut, "notes": found.notes, "seconds": round(found.seconds, 1)}
        sys.stdout.write(json.dumps({**about, "report": str(found.report), "run": str(found.path)}) + "\n")
    else:
        console = Console(highlight=False)
        claims_table(console, found.claims)
        for what, reason in found.failed.items():
            console.print(f"failed: {what}: {reason}", style="red", markup=False)
        for sentence in found.cut:
            console.print(f"cut to fit the time: {sentence}", markup=False)
        for sentence in found.notes:
            console.print(sentence, markup=False)
        console.print(f"{found.seconds:.0f} seconds; figures, tables and traces are in {found.path}", markup=False)
        console.print("The report: ", end="")
        console.print(str(found.report), style="bold", markup=False, soft_wrap=True)
    if found.failed and not found.claims:
        raise FloatLensError(f"nothing could be measured; the first failure: {next(iter(found.failed.values()))}")


def claims_table(console: Console, claims: list[dict[str, Any]]) -> None:
    """The claims with value, interval and verdict, one line a model."""
    from rich.table import Table
    from rich.text import Text

    from floatlens.findings.spelling import number
    from floatlens.findings.style import short

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("claim", "models", "value", "95 % interval", "n", "verdict"):
        table.add_column(column, overflow="fold", justify="right" if column in ("value", "n") else "left")
    last = None
    for claim in (claim for claim in claims if claim["n"]):
        text = claim["claim"] if claim["claim"] != last else ""
        if text and last is not None:
            table.add_row()
        last = claim["claim"]
        low, high = (number(x) for x in claim["interval"])
        models = " / ".join(short(model) for model in claim["models"])
        verdict = Text(claim["verdict"], style=COLOURS[claim["verdict"]])
        interval = f"{low} to {high}" if low != "–" else "–"
        table.add_row(Text(text), Text(models), number(claim["value"]), interval, str(claim["n"]), verdict)
    console.print(table)
    left_out = dict.fromkeys(claim["claim"] for claim in claims if not claim["n"])
    if left_out:
        console.print(Text(f"Not measured, as this study left out what they rest on: {'; '.join(left_out)}"))
