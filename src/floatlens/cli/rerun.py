"""floatlens rerun: run again what a run folder describes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from floatlens.errors import FloatLensError


def command(
    run: Annotated[str, typer.Argument(help="A run folder.")],
    out: Annotated[str | None, typer.Option("--out", help="Folder of the new run; else RUN-again.")] = None,
) -> None:
    """Run again the command that made a run folder, and say whether the results are the same.

    The command runs in the folder in which it was first run, if that is still there. The exit code is that of the
    command, or 1 if a result came out otherwise.

    Example: floatlens rerun table1 --out table1-again
    """
    from floatlens.cli import main
    from floatlens.runs.diff import compare
    from floatlens.runs.folder import RunFolder
    from floatlens.runs.rerun import rerun_arguments
    from floatlens.runs.storage import is_url

    before = RunFolder.open(run)
    target = out or f"{run.rstrip('/')}-again"
    target = target if is_url(target) else str(Path(target).resolve())
    first = run if is_url(run) else str(Path(run).resolve())
    arguments = rerun_arguments(before.manifest, target, run)
    folder = before.manifest.get("folder")
    if not isinstance(folder, str) or not Path(folder).is_dir():
        folder = "."
    typer.echo(f"floatlens {' '.join(arguments)}", err=True)
    here = Path.cwd()
    try:
        os.chdir(folder)
        code = main.run(arguments)
    except OSError as error:
        raise FloatLensError(f"the run cannot be repeated in {folder}: {error}") from None
    finally:
        os.chdir(here)
    if code:
        raise typer.Exit(code)
    found = compare(RunFolder.open(first), RunFolder.open(target))
    for line in found.lines():
        typer.echo(line)
    if found.results_differ:
        raise typer.Exit(1)
