"""floatlens paper: compare runs with the paper's published numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from floatlens.cli import options as common
from floatlens.errors import FloatLensError


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders with traces, answers, or both.")],
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number of samples per run.")] = None,
    as_json: common.AsJson = False,
) -> None:
    """Compare runs with the published numbers of arXiv 2601.07894: the same statistics, side by side.

    Examples:

        floatlens paper runs/llada

        floatlens paper study --json
    """
    from floatlens.findings.finding import FINDINGS
    from floatlens.findings.nearness import COMPARISONS, compare
    from floatlens.findings.settings import folders_for
    from floatlens.report.analyse import available
    from floatlens.store.runs import RunTraces, model_runs

    folders = [folder for run in runs for folder in model_runs(run)]
    names = [name for name in available([folder.path for folder in folders]) if name in COMPARISONS]
    if not names:
        raise FloatLensError(f"{runs[0]} holds no results to compare with the paper; trace or evaluate a model first")
    measured: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for name in names:
        finding = FINDINGS[name]
        answers = [folder.path for folder in folders if (folder.path / "answers.parquet").exists()]
        try:
            source: Any = answers
            if finding.reads == "traces":
                source = RunTraces(folders_for(finding, folders), limit)
            measured[name] = finding.measure(source)
        except FloatLensError as error:  # such as a trace that lacks a statistic; the others are still compared
            left_out[name] = str(error)
    found = compare(measured)
    if as_json:
        print(json.dumps({"results": [row.to_dict() for row in found], "left_out": left_out, "run": str(runs[0])}))
        return
    _show(found, left_out)


def _show(found: list[Any], left_out: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from floatlens.findings.spelling import number
    from floatlens.findings.style import short

    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("finding", "model", "number", "run", "paper"):
        table.add_column(column, overflow="fold", justify="right" if column in ("run", "paper") else "left")
    for row in found:
        paper = f"{number(row.paper)} ({row.published})" if row.paper is not None else f"1 is {row.published}"
        table.add_row(row.finding, Text(short(row.model)), Text(row.number), number(row.run), Text(paper))
    console.print(table)
    for name, reason in left_out.items():
        console.print(f"{name} was left out: {reason}", markup=False)
