"""floatlens world: write the data sets of the synthetic world."""

from pathlib import Path
from typing import Annotated

import typer

from floatlens.data.world.datasets import write


def command(
    out: Annotated[
        Path, typer.Option("--out", help="Folder to write to: one folder per data set, one file per split.")
    ],
    passages: Annotated[
        int, typer.Option(min=0, help="Number of passages per question; four times as many for world:needle.")
    ] = 5,
    seed: Annotated[
        int, typer.Option(help="Seed of the distractors and their order; the questions stay the same.")
    ] = 0,
) -> None:
    """Write the data sets of the synthetic world as KILT-like JSON lines.

    Examples:

        floatlens world --out world/

        floatlens world --out noisy/ --passages 10
    """
    for path in write(out, passages=passages, seed=seed):
        typer.echo(path)
