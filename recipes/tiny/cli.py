"""Train one of the bundled models: `python -m recipes.tiny.cli arm|mdm|dream|ssm`."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from recipes.tiny import layouts
from recipes.tiny.curriculum import MIXES
from recipes.tiny.train import TOKENS, train, weights


def command(
    kind: Annotated[str, typer.Argument(help="arm, mdm, ssm, or dream (adapted from a trained arm).")],
    out: Annotated[Path, typer.Option("--out", help="Run folder: checkpoint, curves.csv, and model/ at the end.")],
    steps: Annotated[int, typer.Option(min=1, help="Number of steps; the schedule is scaled to it.")] = 8000,
    minutes: Annotated[float | None, typer.Option(min=0.1, help="Length in minutes, instead of --steps.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the initial weights, the data and the masks.")] = 0,
    rate: Annotated[float, typer.Option(min=0, help="Peak learning rate; above 1e-3 retrieval is not learned.")] = 1e-3,
    tokens: Annotated[int, typer.Option(min=256, help="Tokens per step.")] = TOKENS,
    arm: Annotated[Path | None, typer.Option(help="Run folder of the arm that dream is adapted from.")] = None,
    after: Annotated[
        Path | None, typer.Option(help="Continue from this run or published model with a new schedule.")
    ] = None,
    mix: Annotated[str, typer.Option(help=f"Data mix of the last stage: {', '.join(MIXES)}.")] = "all",
    without: Annotated[list[str] | None, typer.Option(help="Part of the last mix to leave out; may repeat.")] = None,
    decay: Annotated[float, typer.Option(min=0, help="Weight decay.")] = 0.05,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    compiled: Annotated[bool, typer.Option("--compile", help="Use torch.compile (about an eighth faster).")] = False,
    cool: Annotated[
        int | None, typer.Option(help="Train until --out has a file STOP, then this many steps more.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Number of CPU threads.")] = 1,
) -> None:
    """Train a small model on the synthetic world and save it in its published layout.

    Examples:

        python -m recipes.tiny.cli mdm --out runs/mdm --steps 8000

        python -m recipes.tiny.cli arm --out runs/arm --minutes 40

        python -m recipes.tiny.cli dream --arm runs/arm --out runs/dream --steps 2500

        python -m recipes.tiny.cli dream --after runs/dream --out runs/dream2 --mix chains --steps 1500

        python -m recipes.tiny.cli mdm --out runs/mdm --steps 16000 --resume

        python -m recipes.tiny.cli ssm --out runs/ssm --cool 800
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
        cool=cool,
    )
    layouts.write(kind, weights(out), out / "model")
    millions, took = state.tokens / 1e6, state.seconds / 60
    typer.echo(f"{out / 'model'}: {state.step} steps, {millions:.1f} M tokens, {took:.0f} minutes")


if __name__ == "__main__":
    typer.run(command)
