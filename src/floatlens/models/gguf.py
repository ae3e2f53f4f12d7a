"""Read GGUF files: each is parsed once, then kept in a cache as an ordinary checkpoint.

Parsing a GGUF header takes seconds, because every token of its vocabulary becomes a Python object, and transformers parses
it again for the config, for the tokenizer and for the weights. Here the first use parses it once; the result is
written to `cache_folder()` under a key made from the file's SHA-256 and the versions of the packages that read it, and is
checked against its own checksums whenever it is used.
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
CONFIG, HEADER = "gguf-config.json", "header"


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
    """The model of a GGUF file. `load` is called with a folder and the options of `from_pretrained` that it needs.

    The first time, the weights are read from the file itself and written to the cache; later they are read from the cache.
    """
    from transformers import GgufConfig

    part = f"weights-{dtype}"
    if (found := _cached(path, part)) is not None:
        model = load(found, {"use_safetensors": True})
        # The rounding of matrix products depends on memory alignment: copies of the mapped tensors give the file's numbers.
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
        return model
    with _one_parse(path) as folder:
        model = load(folder, {"gguf_file": path.name, "quantization_config": GgufConfig(dequantize=True)})
    _parsed.clear()

    def save(folder: Path) -> None:
        with quietly():
            model.save_pretrained(folder)

    _keep(path, part, save)
    return model


def _header(path: Path) -> Path:
    """The folder of a file's config and tokenizer."""
    if (found := _cached(path, HEADER)) is not None:
        return found

    def save(folder: Path) -> None:
        from transformers import AutoTokenizer, PreTrainedConfig

        with _one_parse(path) as alone, quietly():
            config, _ = PreTrainedConfig.get_config_dict(str(alone), gguf_file=path.name)
            tokenizer = AutoTokenizer.from_pretrained(alone, gguf_file=path.name, trust_remote_code=False)
        tokenizer.save_pretrained(folder)
        (folder / CONFIG).write_text(json.dumps(config, indent=1), encoding="utf-8")

    try:
        kept = _keep(path, HEADER, save)
        if kept is None:  # the cache cannot be written: use a temporary folder
            kept = _temporary(path)
            save(kept)
        return kept
    except Exception as error:  # a damaged file fails anywhere in its parser
        from floatlens.models.checkpoint import one_line

        raise FloatLensError(f"the GGUF file {path} cannot be read: {one_line(error)}") from error


@functools.cache
def _temporary(path: Path) -> Path:
    return temporary_folder("gguf")


# --- the cache ------------------------------------------------------------------------------------------------------------


def _place(path: Path, part: str) -> Path:
    """The cache folder of a part of a converted file."""
    stat = path.stat()
    return cache_folder() / "gguf" / _key(path.resolve(), stat.st_size, stat.st_mtime_ns) / part


@functools.cache
def _key(path: Path, size: int, modified: int) -> str:
    """The key of a converted file: its checksum and the versions of the packages that read it."""
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    readers = [f"{name} {version(name)}" for name in ("transformers", "gguf")]
    return hashlib.sha256(json.dumps([FORMAT, content, *readers]).encode()).hexdigest()[:32]


def _cached(path: Path, part: str) -> Path | None:
    """The folder of a part, if it exists and every file matches its checksum."""
    folder = _place(path, part)
    try:
        sums = json.loads((folder / SUMS).read_text(encoding="utf-8"))
        whole = all(_sha256(folder / name, (folder / name).stat().st_mtime_ns) == sum for name, sum in sums.items())
    except (OSError, ValueError, AttributeError):
        return None
    return folder if whole and sums else None


def _keep(path: Path, part: str, save: Callable[[Path], None]) -> Path | None:
    """Write a part to the cache atomically; None if the cache cannot be written."""
    folder = _place(path, part)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f"{part}.lock")):
            if (found := _cached(path, part)) is not None:  # another process was faster
                return found
            with atomic_write(folder) as temporary:
                temporary.mkdir()
                save(temporary)
                sums = {file.name: _sha256(file, 0) for file in sorted(temporary.iterdir())}
                (temporary / SUMS).write_text(json.dumps(sums, indent=1), encoding="utf-8")
    except OSError:
        return None
    return folder


@functools.cache
def _sha256(file: Path, modified: int) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


# --- one parse ------------------------------------------------------------------------------------------------------------

_parsed: dict[str, Any] = {}


@contextmanager
def _one_parse(path: Path) -> Iterator[Path]:
    """Make transformers reuse one parsed file, and show a progress bar only on a terminal.

    Yields a folder with this file alone: in its own folder, transformers would also read the config of a tokenizer or an
    adapter, which are not part of the file.
    """
    import gguf
    import transformers.modeling_gguf_pytorch_utils as legacy

    reader, bar = gguf.GGUFReader, getattr(legacy, "tqdm", None)

    def parse(file: Any, *args: Any, **options: Any) -> Any:
        if str(path) not in _parsed:
            _parsed[str(path)] = reader(path, *args, **options)
        return _parsed[str(path)]

    gguf.GGUFReader = parse
    if bar is not None:
        legacy.tqdm = functools.partial(bar, disable=None)
    try:
        with tempfile.TemporaryDirectory(prefix="floatlens-gguf-") as alone:
            try:
                os.symlink(path.resolve(), Path(alone) / path.name)
            except OSError:  # Windows allows links to some users only
                shutil.copyfile(path, Path(alone) / path.name)
            yield Path(alone)
    finally:
        gguf.GGUFReader = reader
        if bar is not None:
            legacy.tqdm = bar
