"""Read GGUF files for `checkpoint.py` (config), `tokenizer.py` and `weights.py`.

Each is converted once, then kept in a cache as an ordinary checkpoint.

Parsing a GGUF header takes seconds, because every token of its vocabulary becomes a Python object. So config and tokenizer,
and the weights in each dtype, are written to `cache_folder()` under a key made from the file's SHA-256 and the versions of
the packages that read it, and are checked against their own checksums whenever they are used.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock

from floatlens.errors import FloatLensError
from floatlens.files import atomic_write, cache_folder, temporary_folder
from floatlens.models.quiet import quietly

FORMAT = 1  # version of the cached folders; a new number invalidates the old ones
SUMS = "sha256.json"
CONFIG = "gguf-config.json"


def read_config(path: Path) -> dict[str, Any]:
    """The config that transformers makes from the header of a GGUF file."""
    config: dict[str, Any] = json.loads((_header(path) / CONFIG).read_text(encoding="utf-8"))
    return config


def count_tensors(path: Path) -> int:
    """The number of tensors that a GGUF file has according to its header."""
    with path.open("rb") as file:
        return int.from_bytes(file.read(16)[8:], "little")


def load_tokenizer(path: Path) -> Any:
    """The tokenizer of a GGUF file."""
    from transformers import AutoTokenizer

    with quietly():
        return AutoTokenizer.from_pretrained(_header(path), trust_remote_code=False)


def load_weights(path: Path, dtype: str, load: Callable[[Path, dict[str, Any]], Any]) -> Any:
    """The model of a GGUF file. `load` is called with a folder and the options of `from_pretrained` that it needs."""
    from transformers import GgufConfig

    def save(folder: Path) -> None:
        with _alone(path) as alone:
            model = load(alone, {"gguf_file": path.name, "quantization_config": GgufConfig(dequantize=True)})
        with quietly():
            model.save_pretrained(folder)

    model = load(_converted(path, f"weights-{dtype}", save), {"use_safetensors": True})
    # The rounding of matrix products depends on memory alignment: copies of the mapped tensors give the file's numbers.
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model


def _header(path: Path) -> Path:
    """The folder of a file's config and tokenizer."""

    def save(folder: Path) -> None:
        from transformers import AutoTokenizer, PreTrainedConfig

        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ValueError("it does not begin with GGUF")
        with _alone(path) as alone, quietly():
            config, _ = PreTrainedConfig.get_config_dict(str(alone), gguf_file=path.name)
            tokenizer = AutoTokenizer.from_pretrained(alone, gguf_file=path.name, trust_remote_code=False)
        tokenizer.save_pretrained(folder)
        (folder / CONFIG).write_text(json.dumps(config, indent=1), encoding="utf-8")

    try:
        return _converted(path, "header", save)
    except Exception as error:  # a damaged file fails anywhere in its parser
        from floatlens.models.checkpoint import one_line

        raise FloatLensError(f"the GGUF file {path} cannot be read: {one_line(error)}") from error


def _converted(path: Path, part: str, save: Callable[[Path], None]) -> Path:
    """The cached folder of a part of a file, written by `save` if it is missing or damaged."""
    readers = [f"{name} {version(name)}" for name in ("transformers", "gguf")]
    key = json.dumps([FORMAT, _sha256(path.resolve(), path.stat().st_mtime_ns), *readers])
    folder = cache_folder() / "gguf" / hashlib.sha256(key.encode()).hexdigest()[:32] / part
    if _is_whole(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f"{part}.lock")):
            if not _is_whole(folder):  # another process was not faster
                with atomic_write(folder) as temporary:
                    temporary.mkdir()
                    save(temporary)
                    sums = {file.name: _sha256(file, 0) for file in sorted(temporary.iterdir())}
                    (temporary / SUMS).write_text(json.dumps(sums, indent=1), encoding="utf-8")
    except OSError:  # the cache cannot be written: use a temporary folder
        folder = _temporary(path, part)
        if not any(folder.iterdir()):
            save(folder)
    return folder


def _is_whole(folder: Path) -> bool:
    """Whether a folder exists and every file of it matches its checksum."""
    try:
        sums = json.loads((folder / SUMS).read_text(encoding="utf-8"))
        return all(_sha256(folder / name, (folder / name).stat().st_mtime_ns) == sum for name, sum in sums.items())
    except (OSError, ValueError, AttributeError):
        return False


@functools.cache
def _temporary(path: Path, part: str) -> Path:
    return temporary_folder("gguf")


@functools.cache
def _sha256(file: Path, modified: int) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@contextmanager
def _alone(path: Path) -> Iterator[Path]:
    """Yield a folder with this file alone, and show a progress bar only on a terminal.

    In the file's own folder, transformers would also read the config of a tokenizer or an adapter, which are not part of it.
    """
    import transformers.modeling_gguf_pytorch_utils as reader

    bar = reader.tqdm
    reader.tqdm = functools.partial(bar, disable=None)
    try:
        with tempfile.TemporaryDirectory(prefix="floatlens-gguf-") as alone:
            try:
                os.symlink(path.resolve(), Path(alone) / path.name)
            except OSError:  # Windows allows links to some users only
                shutil.copyfile(path, Path(alone) / path.name)
            yield Path(alone)
    finally:
        reader.tqdm = bar
