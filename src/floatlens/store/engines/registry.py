"""The engines by name. To add one, write its file in this folder and add a line here."""

from __future__ import annotations

from floatlens.errors import FloatLensError, unknown_name
from floatlens.store.engines.engine import Engine
from floatlens.store.engines.local import LocalEngine
from floatlens.store.engines.ray import RayEngine

ENGINES = ("local", "ray")


def make_engine(
    name: str = "local",
    *,
    workers: int | None = None,
    address: str | None = None,
    gpus_per_worker: float | None = None,
) -> Engine:
    """The engine that the options of the command line describe.

    >>> make_engine("local", workers=2).workers
    2
    """
    if name not in ENGINES:
        raise unknown_name("engine", name, ENGINES)
    if name == "ray":
        count = 1 if workers is None else workers
        return RayEngine(workers=count, gpus_per_worker=gpus_per_worker or 0.0, address=address)
    if address is not None:
        raise FloatLensError("--address is for the Ray engine; add --engine ray")
    if gpus_per_worker is not None and gpus_per_worker != int(gpus_per_worker):
        raise FloatLensError(f"the local engine needs whole GPUs, not {gpus_per_worker}; use --engine ray")
    return LocalEngine(1 if workers is None else workers, None if gpus_per_worker is None else int(gpus_per_worker))
