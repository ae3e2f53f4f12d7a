"""floatlens import: convert the paper's own files to traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from floatlens.cli import shared


def command(
    files: Annotated[list[Path], typer.Argument(help=".npz files written by the paper's scripts.")],
    out: Annotated[Path, typer.Option("--out", help="A new run folder.")],
    model: Annotated[str, typer.Option(help="Name of the model that the files are from.")] = "",
    autoregressive: Annotated[bool, typer.Option("--autoregressive", help="The model is causal.")] = False,
) -> None:
    """Convert .npz files of the paper's scripts to traces. Pickled parts may only hold NumPy arrays.

    Example: floatlens import llada_sample_0.npz --model LLaDA-8B-Instruct --out imported
    """
    from floatlens.store.folder import RunFolder
    from floatlens.trace.npz import import_npz

    traces = [import_npz(file, model=model, kind="arm" if autoregressive else "mdm") for file in files]
    asked = {"files": [str(file) for file in files], "model": model, "kind": "arm" if autoregressive else "mdm"}
    run = RunFolder.create(out, {"command": "import", "asked": asked})
    for file, trace in zip(files, traces, strict=True):
        trace.save(run.trace_path(str(file)), dtype="float32")
    shared.print_lines([f"{len(traces)} traces in {run.path}"])
