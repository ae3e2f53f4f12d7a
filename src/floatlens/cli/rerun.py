"""floatlens rerun: repeat a run from its folder."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    run: Annotated[str, typer.Argument(help="A run folder.")],
    more: Annotated[list[str] | None, typer.Argument(help="After --: options to add to the command.")] = None,
    out: Annotated[str | None, typer.Option("--out", help="Folder of the new run (default: RUN-again).")] = None,
) -> None:
    """Repeat the command that made a run folder, and compare the results.

    Relative paths are relative to the current folder. The options --engine, --address, --workers, --gpus-per-worker and
    --allow-pickle are not taken from the run, because it may come from someone else; pass them again if you need them. The
    exit code is that of the command, or 1 if a result differs.

    Examples:

        floatlens rerun table1 --out table1-again

        floatlens rerun table1 -- --engine ray --workers 4
    """
    from floatlens.cli import main
    from floatlens.store.diff import compare
    from floatlens.store.folder import RunFolder
    from floatlens.store.rerun import rerun_arguments

    before = RunFolder.open(run)
    target = out or f"{run.rstrip('/')}-again"
    arguments, dropped = rerun_arguments(before, target, more or ())
    if dropped:
        typer.echo(f"not taken from {before}: {', '.join(dropped)}; to use them, add them after --", err=True)
    code = main.run(arguments)
    if code:
        raise typer.Exit(code)
    found = compare(before, RunFolder.open(target))
    for line in found.lines():
        typer.echo(line)
    if found.results_differ:
        raise typer.Exit(1)
