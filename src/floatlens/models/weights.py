"""Load a checkpoint into a native transformers model by renaming keys: no remote code, no second copy of the weights."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from floatlens.errors import FloatLensError
from floatlens.models.checkpoint import Checkpoint, read_json
from floatlens.models.family import auto_class
from floatlens.models.gguf import load_weights as load_gguf_weights
from floatlens.models.quiet import expect_no_kernels, quietly
from floatlens.models.unsupported import check_supported

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")


def load_model(
    checkpoint: Checkpoint,
    *,
    dtype: str | torch.dtype = "auto",
    device_map: str | dict[str, Any] | None = None,
    quantization_config: Any = None,
    attn_implementation: str | None = None,
    tp_plan: str | dict[str, str] | None = None,
    allow_pickle: bool = False,
) -> Any:
    """Load the weights into the native class, shard by shard; raise an error if any are missing.

    `dtype` "auto" is the checkpoint's dtype on an accelerator, and float32 on a CPU. `tp_plan` splits every layer over the
    processes started by torchrun: see `parallel`. With `allow_pickle`, a checkpoint without safetensors may hold its
    weights as PyTorch's .bin files; torch reads only tensors from them.
    """
    from safetensors import SafetensorError

    config = checkpoint.native_config()  # raises an error for an invalid config before any weights are read
    use_safetensors: bool | None = None if allow_pickle else True
    if checkpoint.gguf_file is None:
        check_no_adapter(checkpoint)
    config = checkpoint.native_config()
    check_supported(checkpoint.name, config, checkpoint.family)
    if checkpoint.folder is not None and checkpoint.gguf_file is None:
        files = check_files(checkpoint.folder, allow_pickle=allow_pickle)
        use_safetensors = files[0].suffix == ".safetensors"
    options: dict[str, Any] = {
        "config": config,
        "dtype": torch_dtype(dtype, device_map),
        "revision": checkpoint.revision,
        "device_map": device_map,
        "trust_remote_code": False,
        "use_safetensors": use_safetensors,
        "output_loading_info": True,
        "key_mapping": dict(checkpoint.family.renames) or None,
        "quantization_config": quantization_config,
        **(parallel(tp_plan, device_map) if tp_plan is not None else {}),
    }
    auto = auto_class(checkpoint.family)

    def load(source: Path | str, changed: dict[str, Any]) -> Any:
        with quietly(), splitting(config.model_type, checkpoint.family.splits):
            given = {name: value for name, value in (options | changed).items() if value is not None}
            # Always passed, also as None (transformers' default), so that the checkpoint cannot set it.
            given["attn_implementation"] = attn_implementation
            model, report = auto.from_pretrained(source, **given)
        check_complete(checkpoint, report["missing_keys"])
        return model

    try:
        if checkpoint.gguf_file:
            options |= {"use_safetensors": None, "quantization_config": None}
            file = Path(checkpoint.source) / checkpoint.gguf_file
            name = str(options["dtype"]).removeprefix("torch.")
            model = load_gguf_weights(file, name, load)
        else:
            model = load(checkpoint.source, {})
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError, ImportError, UnpicklingError) as error:
        reason = " ".join(str(error).split())
        raise FloatLensError(
            f"{checkpoint.name} cannot be loaded as {checkpoint.family.name}: {reason[:400]}"
        ) from error
    if model.device.type == "cpu":
        expect_no_kernels()
    return model.eval()


@contextmanager
def splitting(model_type: str, splits: Mapping[str, Sequence[str]]) -> Iterator[None]:
    """Split fused tensors of a checkpoint while it is loaded; each part is as large as the native tensor that it becomes.

    transformers takes such conversions from a table by model type, which is restored afterwards.
    """
    if not splits:
        yield
        return
    import transformers
    from transformers import conversion_mapping

    try:
        from transformers.core_model_loading import Split, WeightConverter
    except ImportError:
        raise FloatLensError(
            f"fused weights are split by transformers 5.20 or later, found {transformers.__version__}; upgrade it"
        ) from None

    known = conversion_mapping.get_checkpoint_conversion_mapping(model_type) or []
    ours = [WeightConverter([source], list(targets), [Split(dim=0)]) for source, targets in splits.items()]
    listed = model_type in conversion_mapping.USER_REGISTERED_MAPPINGS
    conversion_mapping.register_checkpoint_conversion_mapping(model_type, [*ours, *known], overwrite=True)
    try:
        yield
    finally:
        conversion_mapping.register_checkpoint_conversion_mapping(model_type, known, overwrite=True)
        if not listed:
            conversion_mapping.USER_REGISTERED_MAPPINGS.discard(model_type)


def check_complete(checkpoint: Checkpoint, missing: Iterable[str]) -> None:
    """Raise an error for a checkpoint that lacks any of the model's tensors."""
    names = sorted(missing)
    if names:
        raise FloatLensError(
            f"{checkpoint.name}: the checkpoint has no weights for {len(names)} tensors of a {checkpoint.family.name} "
            f"model, first {names[0]!r}; expected its published layout"
        )


def parallel(tp_plan: str | dict[str, str], device_map: Any = None) -> dict[str, Any]:
    """The options for transformers to split layers over processes; "auto" is the model's own plan."""
    from transformers.distributed import DistributedConfig

    if device_map is not None:
        raise FloatLensError("a tensor parallel plan distributes the model itself; leave out the device")
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        raise FloatLensError("a tensor parallel plan needs several processes: torchrun --nproc-per-node 2 SCRIPT")
    if "tp_plan" in DistributedConfig.__dataclass_fields__:
        return {"distributed_config": DistributedConfig(tp_plan=tp_plan)}
    return {"tp_plan": tp_plan}  # older transformers, where the plan is not part of the config


def torch_dtype(dtype: str | torch.dtype, device_map: Any) -> str | torch.dtype:
    """The dtype to load in.

    >>> torch_dtype("bfloat16", None), torch_dtype("auto", None)
    (torch.bfloat16, torch.float32)
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in DTYPES:
        raise FloatLensError(f"dtype {dtype!r} is not known; use one of {', '.join(DTYPES)}")
    if dtype != "auto":
        return getattr(torch, dtype)
    on_cpu = device_map in (None, "cpu") or (device_map == "auto" and not torch.accelerator.is_available())
    return torch.float32 if on_cpu else "auto"


def check_files(folder: Path, *, allow_pickle: bool = False) -> list[Path]:
    """The weights files of a folder that transformers will read, in its order of preference.

    The header of each safetensors file is checked against its size. Pickled files are used only if they are allowed and
    there are no others.
    """
    for name in ("model.safetensors", "pytorch_model.bin") if allow_pickle else ("model.safetensors",):
        if files := _weights_files(folder, name):
            for file in files:
                if file.suffix == ".safetensors":
                    check_header(file)
            return files
    found = pickled_files(folder)
    hint = (
        f"; it has {found[0]}, a pickle: convert it to safetensors, or load it with --allow-pickle if you trust it"
        if found and not allow_pickle
        else ""
    )
    raise FloatLensError(
        f"{folder / 'model.safetensors'} is missing: a checkpoint holds its weights as safetensors{hint}"
    )


def _weights_files(folder: Path, name: str) -> list[Path]:
    """The file of this name, or else the shards that its index names; none if there is neither."""
    index, suffix = folder / f"{name}.index.json", Path(name).suffix
    if (folder / name).is_file():
        return [folder / name]
    if not index.is_file():
        return []
    shards = read_json(index, str(folder)).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise FloatLensError(f"{index}: field 'weight_map' should be an object of tensor names and files")
    files = [folder / shard for shard in sorted({str(value) for value in shards.values()})]
    for file in files:
        if file.parent != folder or file.name == "..":
            raise FloatLensError(f"{index}: field 'weight_map' names a file outside the folder")
        if file.suffix != suffix:
            raise FloatLensError(f"{index}: field 'weight_map' names {file.name!r}; expected {suffix} files")
        if not file.is_file():
            raise FloatLensError(f"{file} is missing, but {index.name} names it")
    return files


def check_no_adapter(checkpoint: Checkpoint) -> None:
    """Raise an error for an adapter inside a checkpoint: transformers would apply it silently, pickled or not."""
    from transformers.utils import find_adapter_config_file

    if find_adapter_config_file(checkpoint.source, revision=checkpoint.revision) is not None:
        raise FloatLensError(
            f"{checkpoint.name} has an adapter next to its weights (adapter_config.json); move it to a separate folder and "
            "pass that folder with --adapter"
        )


def pickled_files(folder: Path) -> list[str]:
    """Names of the files of a folder that hold pickled weights."""
    return sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth"))


def check_header(file: Path) -> None:
    """Raise an error for a safetensors file whose header and size disagree, such as an incomplete download."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > size - 8:
            raise FloatLensError(
                f"{file} is not a complete safetensors file: {size} bytes, header of {length}; download it again"
            )
        try:
            header = json.loads(stream.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError):
            raise FloatLensError(f"{file} has no readable safetensors header; download it again") from None
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        raise FloatLensError(f"{file} is {size} bytes, but its header describes {expected}; download it again")
