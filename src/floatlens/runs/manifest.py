"""What a run was asked and of what: enough to see whether two runs are the same, and to run one again."""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from floatlens.data.read import expand
from floatlens.models.checkpoint import Checkpoint
from floatlens.runs import checksums
from floatlens.runs.command_line import words
from floatlens.version import __version__

FORMAT = "floatlens-run/1"
PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "xarray", "zarr")  # what numbers can depend on
LOADED = (".safetensors", ".json", ".gguf", ".model", ".txt", ".jinja")  # files of a checkpoint that are read


def describe(
    command: str,
    asked: Mapping[str, Any],
    *,
    checkpoints: Sequence[Checkpoint] = (),
    data: Sequence[str] = (),
    template: str | None = None,
    seeds: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The manifest of a run: what was asked, hashes of models, data and template, seeds, versions, machine, words."""
    return {
        "format": FORMAT,
        "command": command,
        "asked": dict(asked),
        "models": {checkpoint.name: model(checkpoint) for checkpoint in checkpoints},
        "data": {each: data_hash(each) for name in data for each in expand(name)},
        "template": checksums.of_bytes(template.encode()) if template is not None else None,
        "seeds": dict(seeds or {}),
        "versions": versions(),
        "machine": machine(),
        "words": words(),
        "folder": str(Path.cwd()),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def model(checkpoint: Checkpoint) -> dict[str, Any]:
    """Family, revision, and the SHA-256 of every file that is read.

    A model of the hub is known by its commit; its files in the cache bear their hashes as names.
    """
    found: dict[str, Any] = {"family": checkpoint.family.name, "revision": checkpoint.revision}
    folder = checkpoint.folder
    if folder is None:
        return found | {"revision": commit(checkpoint) or checkpoint.revision}
    if checkpoint.gguf_file:
        files = [folder / checkpoint.gguf_file]
    else:
        files = sorted(path for path in folder.iterdir() if path.suffix in LOADED and path.is_file())
    with ThreadPoolExecutor(4) as pool:  # hashing lets go of the interpreter
        return found | {"files": dict(zip((f.name for f in files), pool.map(file_hash, files), strict=True))}


def file_hash(path: Path) -> str:
    """The SHA-256 of a file; a large file of the hub's cache has it for a name."""
    named = path.resolve().name
    return named if len(named) == 64 and path.is_symlink() else checksums.of_file(path)


def commit(checkpoint: Checkpoint) -> str | None:
    """The commit of a hub model, from where its config lies in the cache."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(checkpoint.source, "config.json", revision=checkpoint.revision)
    return Path(path).parent.name if isinstance(path, str) else None


def data_hash(name: str) -> str:
    """The SHA-256 of a data file; bundled and hub data are known by their names."""
    path = Path(name)
    if path.is_file():
        return checksums.of_file(path)
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.is_file())
        return checksums.of_value({p.name: checksums.of_file(p) for p in files})
    return "bundled" if name.startswith("world") else "hub"


def versions() -> dict[str, str]:
    """Versions of what the numbers can depend on."""
    found = {"floatlens": __version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Where the run was started; another may go on with it."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "host": socket.gethostname(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory": _memory(),
        "gpus": gpus,
        "executable": sys.executable,
    }


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
