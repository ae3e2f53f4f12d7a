"""floatlens diff: compare two runs."""

from __future__ import annotations

from typing import Annotated

import typer

from floatlens.cli import options as common
from floatlens.cli import shared


def command(
    first: Annotated[str, typer.Argument(help="A run folder.")],
    second: Annotated[str, typer.Argument(help="Another run folder.")],
    as_json: common.AsJson = False,
) -> None:
    """Compare two runs: settings, models, data, versions, machine, and every result.

    The exit code is 0 if all results are the same and 1 if some differ.

    Example: floatlens diff before after
    """
    from floatlens.store.diff import compare, lines, results_differ
    from floatlens.store.folder import RunFolder

    found = compare(RunFolder.open(first), RunFolder.open(second))
    if as_json:
        shared.print_json(found)
    else:
        shared.print_lines(lines(found))
    if results_differ(found):
        raise typer.Exit(1)
