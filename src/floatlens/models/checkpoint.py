"""Find a model's files and read its config, before any weights are read."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floatlens.errors import FloatLensError, check_known, unknown_name
from floatlens.models.bundled import ADAPTERS, BUNDLED, SMOLLM2, smollm2_file
from floatlens.models.bundled import path as bundled_path
from floatlens.models.family import FAMILIES, Family, architecture, family_of
from floatlens.options import Load

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

MODES = ("arm", "mdm")
# Fields by which a config.json selects weights, kernels or another config file; only the user may choose these.
LOADER_FIELDS = {
    "transformers_weights",
    "configuration_files",
    *(f"{part}_implementation" for part in ("attn", "_attn", "experts", "_experts")),
    *(f"_{part}_implementation_internal" for part in ("attn", "experts")),
}


# raised by transformers for a config with invalid values, such as no heads
BAD_CONFIG = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError, RecursionError)


@dataclass(frozen=True)
class Checkpoint:
    """A model's files and its config."""

    name: str
    source: str  # a folder or a Hub id
    config: dict[str, Any]  # the raw config.json; of a GGUF file, what transformers makes from its header
    family: Family
    how: Load = Load()  # what the user asked for
    gguf_file: str | None = None
    adapter: Path | None = None  # folder of a LoRA adapter that is applied to the weights

    @property
    def revision(self) -> str | None:
        return self.how.revision

    @property
    def sampler(self) -> str:
        return self.how.sampler or self.family.sampler

    @property
    def block_length(self) -> int | None:
        """Tokens per block of a block model; None for other models."""
        if self.how.block_length is not None or self.family.block_length is None:
            return self.how.block_length
        return self.family.block_length(self.config)

    @property
    def family_reason(self) -> str:
        """How the family was determined."""
        if self.how.family or self.how.mode or self.name in ADAPTERS:
            return "given"
        found = f"model_type {self.config.get('model_type')!r}, architecture {architecture(self.config) or None!r}"
        return f"{found}: {self.family.because}" if self.family.because else found

    @property
    def folder(self) -> Path | None:
        """The folder on disk, or None for a hub model."""
        return Path(self.source) if Path(self.source).is_dir() else None

    def native_config(self) -> PreTrainedConfig:
        """The transformers config that this checkpoint is loaded into, checked for a plausible size."""
        from huggingface_hub.errors import StrictDataclassError
        from transformers import AutoConfig

        from floatlens.models.describe import shape

        kind = self.config.get("model_type")
        if not self.family.native and not kind:
            raise FloatLensError(
                f"{self.name}: config.json has no field 'model_type', so transformers cannot determine its class; "
                f'add it, such as "model_type": "llama"'
            )
        try:
            config = without_loader_fields(self.config)
            if self.family.native:
                made = self.family.native(config)
            else:
                with tempfile.TemporaryDirectory(prefix="floatlens-config-") as folder:
                    (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
                    made = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        except (*BAD_CONFIG, StrictDataclassError) as error:
            raise FloatLensError(f"{self.name}: config.json cannot be read as {kind}: {one_line(error)}") from None
        shape(made)
        for field in ("bos_token_id", "eos_token_id", "pad_token_id", "mask_token_id"):
            token_numbers(getattr(made, field, None), f"{self.name}: config.json: field {field!r}")
        return made


def one_line(error: BaseException) -> str:
    """The message of an exception of another library, on one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def token_numbers(value: Any, what: str) -> list[int]:
    """The token ids of a field that holds one, several or none; raise an error for anything else."""
    found = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(number) is int and abs(number) < 2**31 for number in found):
        raise FloatLensError(f"{what} is {repr(value)[:100]}; expected a token id")
    return found


def without_loader_fields(value: Any) -> Any:
    """Return a config without the fields that select what is loaded, at any depth."""
    if isinstance(value, dict):
        return {key: without_loader_fields(kept) for key, kept in value.items() if key not in LOADER_FIELDS}
    return [without_loader_fields(kept) for kept in value] if isinstance(value, list) else value


def find(name: str, how: Load = Load()) -> Checkpoint:
    """Find a model by folder, GGUF file, bundled name or Hub id, and the folder of its adapter.

    Only a Hub id needs the network. The name may end with options, see `split_name`.
    """
    full_name, (name, given_here) = name, split_name(name)
    for option, value in given_here.items():
        if getattr(how, option) not in (None, value):
            raise FloatLensError(
                f"model {full_name!r} names its {option}, which is not {getattr(how, option)!r}; leave one out"
            )
    how = replace(how, **given_here)
    given, adapter = how.family, how.adapter
    if name in ADAPTERS:
        if adapter is not None:
            raise FloatLensError(f"model {name!r} already has an adapter; load {SMOLLM2!r} to use another")
        adapter, given = bundled_path(name), given or ADAPTERS[name]
    family = FAMILIES[given] if given else None
    if adapter is not None:
        from floatlens.models import adapter as lora  # which imports torch

        adapter = Path(adapter).expanduser()
        if not adapter.is_dir():
            raise FloatLensError(f"adapter {str(adapter)!r} is not a folder; pass the folder with {lora.CONFIG}")
        check_links(adapter)
        lora.read_config(adapter)
    path, gguf_file = locate(name), None
    if path is None:
        source, config = name, _hub_config(name, how.revision)
    elif path.suffix == ".gguf":
        from floatlens.models.gguf import read_config

        source, config, gguf_file = str(path.parent), read_config(path), path.name
    else:
        source, config = str(path), read_json(path / "config.json", f"{name} is not a checkpoint folder")
    family = in_mode(family or family_of(config, where=f"{name}: config.json"), how.mode, name)
    check_choice(family, how.sampler, how.block_length)
    return Checkpoint(full_name, source, config, family, how, gguf_file, adapter)


def split_name(text: str) -> tuple[str, dict[str, Any]]:
    """The name of a model, and the options at its end: NAME@REVISION of the Hub, MODEL+ADAPTER, and :FAMILY, :arm or :mdm.

    >>> split_name("smollm2+out/lora:a2d-shifted"), split_name("org/name@main")
    (('smollm2', {'family': 'a2d-shifted', 'adapter': 'out/lora'}), ('org/name', {'revision': 'main'}))
    """
    options: dict[str, Any] = {}
    name, colon, last = text.rpartition(":")
    if colon and not Path(text).expanduser().exists():
        options["mode" if last in MODES else "family"] = last if last in MODES else FAMILIES[last].name
        text = name
    for sign, option in (("+", "adapter"), ("@", "revision")):
        if sign in text and not Path(text).expanduser().exists():
            text, _, options[option] = text.partition(sign)
    return text, options


def in_mode(family: Family, mode: str | None, name: str) -> Family:
    """The family of a model in a mode; raise an error if it does not write that way."""
    if mode is not None:
        check_known("mode", mode, MODES)
    if mode in (None, family.kind):
        return family
    if not family.other_mode:
        raise FloatLensError(f"model {name!r} has no mode {mode!r}: a {family.name} model is always {family.kind!r}")
    return FAMILIES[family.other_mode]


def check_choice(family: Family, sampler: str | None, block_length: int | None) -> None:
    """Raise an error for a sampler that does not belong to the family, or a block length for a family without blocks."""
    samplers = (family.sampler, *family.other_samplers)
    if sampler is not None and sampler not in samplers:
        raise FloatLensError(
            f"sampler {sampler!r} does not belong to the family {family.name}; use {' or '.join(samplers)}"
        )
    if block_length is None:
        return
    if family.block_length is None:
        raise FloatLensError(
            f"the family {family.name} has no fixed blocks, so it is not loaded with block_length {block_length}; "
            f"pass block_length when generating, or choose a family with blocks such as a2d-block"
        )
    if type(block_length) is not int or block_length < 1:
        raise FloatLensError(f"block_length should be an integer of 1 or more, not {block_length!r}")


HUB_ID = re.compile(r"[\w.~-]+/[\w.-]+")


def check_name(name: str) -> None:
    """Raise an error for an invalid model name, without importing torch or contacting the Hub."""
    locate(split_name(name)[0])


def locate(name: str) -> Path | None:
    """The folder or the GGUF file of a model; None for a Hub id. Raise an error for a name that is none of these."""
    if name in BUNDLED:
        return bundled_path(name)
    if name == SMOLLM2 or name in ADAPTERS:
        return smollm2_file(name)
    path = Path(name).expanduser()
    if path.is_dir():
        check_links(path)
        read_json(path / "config.json", f"{name} is not a checkpoint folder")
    elif name.endswith(".gguf"):
        if not path.is_file():
            raise FloatLensError(f"model {name!r}: the file {path} does not exist")
    elif path.exists() or not HUB_ID.fullmatch(name):
        known = (*BUNDLED, SMOLLM2, *ADAPTERS)
        raise unknown_name("model", name, known, "a folder, a .gguf file, a Hub id such as org/name, or one of")
    else:
        return None
    return path


def is_local_path(name: str) -> bool:
    """Whether a name like org/name rather means a folder, so that a typing error is not sent to the Hub."""
    first, _, last = name.partition("/")
    return name[0] in ".~" or Path(first).is_dir() or re.fullmatch(r"(checkpoint|step|epoch|at)-?\d+", last) is not None


def check_links(folder: Path) -> None:
    """Raise an error for links that leave the folder: a checkpoint must not read files elsewhere.

    The Hub's cache consists of links into its own blobs/, next to snapshots/; these are allowed.
    """
    from floatlens.untrusted import inside  # which imports pandas

    home = folder.resolve()
    also = [home.parent.parent / "blobs"] if home.parent.name == "snapshots" else []
    for path in sorted(folder.iterdir()):
        inside(path, folder, *also)


def read_json(path: Path, otherwise: str) -> dict[str, Any]:
    """Read a JSON object from a file of a folder whose links were checked; raise an error with the reason if this fails."""
    if not path.is_file():
        raise FloatLensError(f"{otherwise}: {path} is missing")
    from floatlens.untrusted import MAX_JSON, parse_json, read_bytes  # which import pandas

    return parse_json(read_bytes(path.resolve(), path.resolve().parent, MAX_JSON), str(path))


def download(checkpoint: Checkpoint, patterns: Sequence[str]) -> Path:
    """The folder of the Hub's cache with the files of a Hub model that match one of the patterns."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(checkpoint.source, revision=checkpoint.revision, allow_patterns=list(patterns)))
    except Exception as error:  # of the network, the Hub or the disk
        raise FloatLensError(f"{checkpoint.name} cannot be downloaded: {one_line(error)}") from error


def _hub_config(name: str, revision: str | None) -> dict[str, Any]:
    if revision is None and is_local_path(name):
        raise FloatLensError(
            f"model {name!r}: the folder {Path(name).expanduser()} does not exist; to load a Hub model of this name, write "
            f"{name}@main"
        )
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache

    try:
        if not isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str):
            # Fails at once if the Hub is not reachable; a download would be retried for half a minute.
            get_hf_file_metadata(hf_hub_url(name, "config.json", revision=revision))
        path = hf_hub_download(name, "config.json", revision=revision)
    except Exception as error:  # of the network, the Hub or the disk
        raise FloatLensError(
            f"model {name!r} is not a local folder and was not found on the Hub: {one_line(error)}"
        ) from None
    return read_json(Path(path), f"{name} is not a checkpoint")
