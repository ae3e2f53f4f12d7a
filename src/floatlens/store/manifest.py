"""The manifest of a run: the information to decide whether two runs are the same, and to repeat one.

Runs and reports are shared, so the manifest does not contain the host, the folder, the interpreter or the credentials of
URLs. Texts from the command line are stored as hashes.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import is_dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from floatlens.data.read import expand, named_data
from floatlens.data.template import Template
from floatlens.models.checkpoint import Checkpoint
from floatlens.options import ARGUMENTS, recorded
from floatlens.registry import load_plugins
from floatlens.store.storage import hash_bytes, hash_value, hide_credentials
from floatlens.version import __version__

FORMAT = "floatlens-run/1"
PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "xarray", "zarr")  # those that numbers can depend on
# Files of a checkpoint that are read; those in pickle's format only with --allow-pickle.
HASHED = (".safetensors", ".json", ".gguf", ".model", ".txt", ".jinja", ".bin", ".pt", ".pth")
PRIVATE = ("prompt", "text", "ids", "infill", "replay", "passage", "answer")  # settings with the user's own text


def describe(
    command: str, asked: Mapping[str, Any], *, checkpoints: Sequence[Checkpoint] = (), data: Sequence[str] = ()
) -> dict[str, Any]:
    """Return settings, hashes of models and data, versions, plug-ins, machine and arguments.

    Of a value of `floatlens.options` in `asked`, the options are kept that results depend on.
    """
    manifest = {
        "format": FORMAT,
        "command": command,
        "asked": {name: hash_texts(value) if name in PRIVATE else value for name, value in asked.items()},
        "models": {checkpoint.name: describe_model(checkpoint) for checkpoint in checkpoints},
        "data": {each: data_hash(each) for name in data for each in expand(name)},
        "versions": versions(),
        "plugins": dict(load_plugins()),
        "machine": machine(),
        "arguments": shareable_arguments(ARGUMENTS),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return _shareable(manifest)


def shareable_arguments(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command without --out, with hashes instead of the user's own texts.

    >>> shareable_arguments(["trace", "tiny-mdm", "--out=run", "--replay", "Rusk"])[2:]
    ['--replay=sha256:2b8ae95c...']
    """
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        option, has_value, value = word.partition("=")
        if option == "--out":
            _ = has_value or next(words, None)
        elif option.removeprefix("--") in PRIVATE and option.startswith("--"):
            kept.append(f"{option}={hash_texts(value if has_value else next(words, ''))}")
        else:
            kept.append(word)
    return kept


def hash_texts(value: Any) -> Any:
    """The SHA-256 of a text, or of each text of a list; None stays None."""
    if isinstance(value, str):
        return f"sha256:{hash_bytes(value.encode('utf-8', 'surrogatepass'))}"
    return [hash_texts(each) for each in value] if isinstance(value, list | tuple) else value


def _shareable(value: Any) -> Any:
    """The value for JSON: of options those that results depend on, of a template its text, of URLs no credentials."""
    if isinstance(value, Template):
        value = value.text
    elif is_dataclass(value):
        value = recorded(value)
    if isinstance(value, str):
        return hide_credentials(value)
    if isinstance(value, Mapping):
        return {_shareable(key): _shareable(each) for key, each in value.items()}
    return [_shareable(each) for each in value] if isinstance(value, list | tuple) else value


def describe_model(checkpoint: Checkpoint) -> dict[str, Any]:
    """Family, revision, and the SHA-256 of every file that is read, separately for an adapter.

    A Hub model is identified by its commit; files in the Hub's cache have their hashes as names.
    """
    found: dict[str, Any] = {"family": checkpoint.family.name, "revision": checkpoint.revision}
    if checkpoint.adapter is not None:
        found["adapter"] = hash_files(checkpoint.adapter)
    if checkpoint.folder is None:
        return found | {"revision": commit(checkpoint) or checkpoint.revision}
    return found | {"files": hash_files(checkpoint.folder, checkpoint.gguf_file)}


def hash_files(folder: Path, only: str | None = None) -> dict[str, str]:
    """The SHA-256 of each file of a checkpoint's folder that is read, or of one file only."""
    read = sorted(path for path in folder.iterdir() if path.suffix in HASHED and path.is_file())
    files = [folder / only] if only else read
    with ThreadPoolExecutor(4) as pool:  # hashing releases the interpreter's lock
        return dict(zip((file.name for file in files), pool.map(hash_file, files), strict=True))


def hash_file(path: Path) -> str:
    """The SHA-256 of a file; a large file of the Hub's cache has it as its name."""
    name = path.resolve().name
    if len(name) == 64 and path.is_symlink():
        return name
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def commit(checkpoint: Checkpoint) -> str | None:
    """The commit of a Hub model, from the path of its config in the cache."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(checkpoint.source, "config.json", revision=checkpoint.revision)
    return Path(path).parent.name if isinstance(path, str) else None


def data_hash(name: str) -> str:
    """The SHA-256 of a data file or folder; bundled and Hub data sets are identified by their names."""
    path = Path(name)
    if path.is_file():
        return hash_file(path)
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.is_file())
        return hash_value({p.name: hash_file(p) for p in files})
    return "bundled" if named_data(name) is not None else "hub"


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Versions of FloatLens and of packages, by default those that numbers can depend on; missing ones are left out."""
    found = {"floatlens": __version__}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """The machine that started the run; another one may resume it."""
    import torch

    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }
