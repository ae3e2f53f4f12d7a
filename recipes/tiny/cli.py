"""`floatlens train`: how the bundled models were made, from nothing."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from recipes.tiny import layouts
from recipes.tiny.curriculum import MIXES
from recipes.tiny.train import TOKENS, train, weights


def command(
    kind: Annotated[str, typer.Argument(help="arm, mdm, or dream (adapted from a trained arm).")],
    out: Annotated[Path, typer.Option("--out", help="Run folder: checkpoint, curves.csv, and model/ at the end.")],
    steps: Annotated[int, typer.Option(min=1, help="Length of the run; the schedule is stretched to it.")] = 8000,
    minutes: Annotated[float | None, typer.Option(min=0.1, help="Length by the clock instead of by steps.")] = None,
    seed: Annotated[int, typer.Option(help="Fixes initial weights, data and masks.")] = 0,
    rate: Annotated[float, typer.Option(min=0, help="Peak learning rate; above 1e-3 retrieval is not learned.")] = 1e-3,
    tokens: Annotated[int, typer.Option(min=256, help="Tokens a step.")] = TOKENS,
    arm: Annotated[Path | None, typer.Option(help="Run folder of the arm that dream is adapted from.")] = None,
    after: Annotated[
        Path | None, typer.Option(help="Go on from this finished run, with a schedule of its own.")
    ] = None,
    mix: Annotated[str, typer.Option(help=f"What the last stage trains: {', '.join(MIXES)}.")] = "all",
    without: Annotated[list[str] | None, typer.Option(help="A part of the last mix to leave out; repeatable.")] = None,
    decay: Annotated[float, typer.Option(min=0, help="Weight decay.")] = 0.05,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    compiled: Annotated[bool, typer.Option("--compile", help="torch.compile: an eighth faster.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
) -> None:
    """Train one of the small models on the synthetic world and save it in its published layout.

    Examples:

        floatlens train mdm --out runs/mdm --steps 8000

        floatlens train arm --out runs/arm --minutes 40

        floatlens train dream --arm runs/arm --out runs/dream --steps 2500

        floatlens train dream --after runs/dream --out runs/dream2 --mix chains --steps 1500

        floatlens train mdm --out runs/mdm --steps 16000 --resume
    """
    torch.set_num_threads(threads)
    state = train(
        kind,
        out,
        steps=steps,
        minutes=minutes,
        seed=seed,
        peak=rate,
        tokens=tokens,
        resume=resume,
        arm=arm,
        after=after,
        mix=mix,
        decay=decay,
        without=tuple(without or ()),
        compiled=compiled,
    )
    layouts.write(kind, weights(out), out / "model")
    millions, took = state.tokens / 1e6, state.seconds / 60
    typer.echo(f"{out / 'model'}: {state.step} steps, {millions:.1f} M tokens, {took:.0f} minutes")
