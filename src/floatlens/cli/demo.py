"""floatlens demo: the quickest look, with no download."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from floatlens.errors import FloatLensError

DEMO = Path("demo")
MODELS = ("tiny-mdm", "tiny-dream", "tiny-arm")


def command(
    out: Annotated[
        Path, typer.Option("--out", help="Folder for traces and figures; an earlier demo is replaced.")
    ] = DEMO,
    limit: Annotated[int, typer.Option(help="Questions a model is traced on.")] = 8,
) -> None:
    """Trace the bundled models on the synthetic world, draw drift and absorption, and say which claims hold.

    Example: floatlens demo --out demo
    """
    from rich.console import Console

    from floatlens.cli import figure, trace
    from floatlens.runs.folder import MANIFEST

    if out.exists():
        earlier = out.is_dir() and all((path / MANIFEST).is_file() for path in out.iterdir() if path.name in MODELS)
        strangers = [path.name for path in out.iterdir() if path.name not in (*MODELS, "figures")] if earlier else []
        if not earlier or strangers:
            raise FloatLensError(f"{out} holds something other than a demo; name another folder with --out")
        for path in out.iterdir():
            shutil.rmtree(path)
    console = Console(highlight=False)
    for model in MODELS:
        console.print(f"[bold]{model}[/bold] writes answers to {limit} questions, five passages each", highlight=False)
        trace.command(
            model,
            out=str(out / model),
            data="world:long",
            split="test",
            passages=5,
            limit=limit,
            max_new_tokens=32,
            batch_size=limit,
        )
    for name in ("drift", "absorption"):
        figure.command(name, [out / model for model in MODELS], out=out / "figures")
    console.print(f"\nFigures and the data behind them are in [bold]{out / 'figures'}[/bold].")
