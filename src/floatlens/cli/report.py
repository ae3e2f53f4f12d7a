"""floatlens report: one HTML file from run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from floatlens.cli import options as common
from floatlens.cli import shared
from floatlens.errors import FloatLensError


def command(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders of trace, eval, stress, ablate or study.")
    ],
    out: Annotated[Path, typer.Option(help="The HTML file.")] = Path("report.html"),
    as_json: common.AsJson = False,
) -> None:
    """Write the report of existing runs: every finding that they have data for, in one self-contained HTML file.

    Examples:

        floatlens report study --out report.html

        floatlens report traces-mdm traces-arm table1 noise --out report.html
    """
    from floatlens.store.engine import cores
    from floatlens.studies.report import make

    if out.is_dir():
        raise FloatLensError(f"--out {out} is a folder; pass an HTML file, such as {out / 'report.html'}")
    with shared.bar() as watch:
        made = make(runs, out, jobs=cores(), watch=watch)
    if as_json:
        return shared.print_json({"results": [], "report": str(made), "run": [str(run) for run in runs]})
    shared.print_lines([f"The report: {made} ({made.stat().st_size / 1e6:.1f} MB)"])
