"""The information for a bug report: versions, machine, device and number of threads."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from floatlens.version import __version__

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "xarray", "zarr")
EXTRAS = ("ray", "gguf", "datasets", "anywidget", "starlette")  # listed only if they are installed


def versions() -> str:
    """One line each: FloatLens, Python, the packages that results depend on, platform, device, threads."""
    lines = {"floatlens": __version__, "python": platform.python_version()}
    lines |= {name: found for name in PACKAGES + EXTRAS if (found := installed(name))}
    lines |= {"platform": platform.platform(), "device": device(), "threads": threads()}
    return "\n".join(f"{name} {text}" for name, text in lines.items())


def installed(name: str) -> str | None:
    """The version of a package, or None.

    >>> installed("no-such-package")
    """
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def device() -> str:
    """The accelerators that torch finds, or otherwise the processor."""
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        return f"cuda {torch.version.cuda or torch.version.hip}: {', '.join(names)}"
    if torch.backends.mps.is_available():
        return "mps"
    return f"cpu: {platform.processor() or platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


def threads() -> str:
    """The number of threads that torch uses, and the number of cores that this process may use."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    wanted = os.environ.get("OMP_NUM_THREADS")
    return f"{torch.get_num_threads()} of {cores} cores" + (f" (OMP_NUM_THREADS={wanted})" if wanted else "")
