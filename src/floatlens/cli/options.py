"""Options that several commands have in common."""

from __future__ import annotations

from typing import Annotated

import typer

Engine = Annotated[str, typer.Option("--engine", help="local, or ray for a cluster.")]
Workers = Annotated[int | None, typer.Option("--workers", help="Processes, one model each; 1 unless told otherwise.")]
Address = Annotated[str | None, typer.Option("--address", help="Ray cluster: auto, host:port or ray://….")]
GpusPerWorker = Annotated[float | None, typer.Option("--gpus-per-worker", help="GPUs of each worker.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")]
RetryErrors = Annotated[bool, typer.Option("--retry-errors", help="With --resume: try again what failed.")]
AllowPickle = Annotated[bool, typer.Option("--allow-pickle", help="Open weights in .bin files if there are no others.")]
