"""floatlens track: the same texts through a series of checkpoints."""

from __future__ import annotations

from typing import Annotated

import typer

from floatlens.cli import options as common
from floatlens.cli import shared
from floatlens.options import Data, Load

COLUMNS = (
    "checkpoint", "sink_share", "sink_token", "first_share", "absorption", "floating", "copying", "massive", "nats",
)  # fmt: skip


def command(
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            metavar="CHECKPOINT...",
            help="Checkpoints in order: folders, NAME@REVISION of the Hub, MODEL+ADAPTER, or a quoted pattern such as "
            "'out/checkpoint-*', which is sorted by step; NAME:FAMILY sets the family of one of them.",
        ),
    ],
    data: Annotated[str, typer.Option(help=f"Texts to read: prose (bundled), {common.DATA}.")] = "prose",
    out: Annotated[
        str, typer.Option(help="Run folder for the numbers, the figure and the report: a path or a URL.")
    ] = "track",
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Leave out checkpoints that cannot be loaded.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run in --out, also with more checkpoints.")
    ] = False,
    reading: Data = Data(limit=8),
    loading: Load = Load(),
    as_json: common.AsJson = False,
) -> None:
    """Follow a model over its checkpoints: the sink and its token, floating, copying heads, massive activations, surprise.

    Examples:

        floatlens track 'out/checkpoint-*' --out track

        floatlens track smollm2 'smollm2+out/at-*:a2d-shifted' --dtype bfloat16

        floatlens track org/name@step1000 org/name@step2000 --data texts.jsonl
    """
    from floatlens.evaluation.sources import open_sources

    open_sources([data], reading, ())

    # Everything above is quick; from here on torch is needed.
    import json

    from floatlens.studies.track import as_frame, records_of, sentence, summarise, track

    shared.check_device(loading)
    how = {"resume": resume, "skip_broken": skip_broken, **vars(loading), **vars(reading)}
    with shared.bar() as watch:
        found = track(checkpoints, data=data, out=out, watch=watch, **how)
    results, skipped = records_of(summarise(found)), json.loads(found.attrs["skipped"])
    if as_json:
        layers = records_of(as_frame(found))
        return shared.print_json({"results": results, "layers": layers, "skipped": skipped, "run": out})
    shared.print_records([row | {"sink_token": repr(row["sink_token"])} for row in results], COLUMNS)
    shared.print_lines([sentence(found), f"The report: {out}/report.html; side by side: floatlens explore {out}"])
    shared.print_notes(f"left out: {name}: {reason}" for name, reason in skipped.items())
