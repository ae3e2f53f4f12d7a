"""floatlens demo: the study of the bundled models, with no download."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from floatlens.cli import options as common
from floatlens.errors import FloatLensError

DEMO = Path("demo")
MODELS = ("tiny-mdm", "tiny-dream", "tiny-arm")
BROKEN = ("mask-anchors(rule=top(4))", "pin-anchors(rule=sigma(3))", "ablate-heads(heads=top(2))")


def command(
    out: Annotated[Path, typer.Option("--out", help="Run folder; an earlier demo in it is replaced.")] = DEMO,
    only: Annotated[str | None, typer.Option(help="Findings to run, such as drift,heads; default: all.")] = None,
    limit: common.LimitEach = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Models at once; default: as many as there are cores.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a demo that was stopped.")] = False,
    as_json: common.AsJson = False,
) -> None:
    """Study the three bundled models on the synthetic world: every claim, every figure, the report, in some minutes.

    Example: floatlens demo --out demo
    """
    from rich.console import Console

    from floatlens.cli.progress import bar
    from floatlens.cli.study import names, show
    from floatlens.runs.model_pool import cores
    from floatlens.studies.run import study
    from floatlens.studies.sizes import DEMO as SIZES

    if not resume:
        clear(out)
    if not as_json:
        Console(highlight=False).print(f"A study of {', '.join(MODELS)}, from traces to report")
    with bar("questions") as watch:
        found = study(
            MODELS,
            data="world",
            out=out,
            sizes=SIZES,
            interventions=BROKEN,
            only=names(only),
            limit=limit,
            resume=resume,
            jobs=jobs or cores(),
            watch=watch,
        )
    show(found, as_json)


def clear(out: Path) -> None:
    """Remove an earlier demo; refuse to remove anything else."""
    from floatlens.runs.folder import RunFolder

    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    try:
        models = RunFolder.open(out).manifest.get("asked", {}).get("models")
    except FloatLensError:
        models = None
    if models != list(MODELS):
        raise FloatLensError(f"{out} holds something other than a demo; name another folder with --out")
    shutil.rmtree(out)
