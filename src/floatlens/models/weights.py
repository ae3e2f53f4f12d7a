"""Load a checkpoint into a native transformers model by renaming keys: no remote code, no second copy of the weights."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floatlens.errors import FloatLensError
from floatlens.models.checkpoint import Checkpoint, download, one_line, read_json, token_numbers
from floatlens.models.describe import check_supported, meta_model, shape, torch_dtype
from floatlens.models.family import auto_class
from floatlens.models.gguf import count_tensors
from floatlens.models.gguf import load_weights as load_gguf_weights
from floatlens.models.quiet import expect_no_kernels, quietly

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

WEIGHTS = ("*.json", "model*.safetensors")  # the files of a Hub model that are downloaded
PICKLES = ("pytorch_model*.bin",)


def load_model(checkpoint: Checkpoint) -> Any:
    """Load the weights into the native class, shard by shard; raise an error if any are missing.

    `tp_plan` splits every layer over the processes started by torchrun: see `parallel`. With `allow_pickle`, a checkpoint
    without safetensors may hold its weights as PyTorch's .bin files; torch reads only tensors from them.
    """
    how = checkpoint.how
    config, source, use_safetensors = check_weights(checkpoint)
    options: dict[str, Any] = {
        "config": config,
        "dtype": torch_dtype(how.dtype, how.device_map),
        "device_map": how.device_map,
        "trust_remote_code": False,
        "output_loading_info": True,
        "key_mapping": dict(checkpoint.family.renames) or None,
        **(parallel(how.tp_plan, how.device_map) if how.tp_plan is not None else {}),
    }
    auto = auto_class(checkpoint.family)

    def load(source: Path | str, changed: dict[str, Any]) -> Any:
        with quietly(), splitting(config.model_type, checkpoint.family.splits):
            given = {name: value for name, value in (options | changed).items() if value is not None}
            # Always passed, also as None (transformers' default), so that the checkpoint cannot set it.
            given["attn_implementation"] = how.attn_implementation
            model, report = auto.from_pretrained(source, **given)
        if missing := sorted(report["missing_keys"]):
            raise FloatLensError(
                f"{checkpoint.name}: the checkpoint has no weights for {len(missing)} tensors of a {checkpoint.family.name} "
                f"model, first {missing[0]!r}; expected its published layout"
            )
        return model

    try:
        if checkpoint.gguf_file:
            name = str(options["dtype"]).removeprefix("torch.")
            model = load_gguf_weights(source, name, load)
        else:
            model = load(source, {"use_safetensors": use_safetensors, "quantization_config": how.quantization_config})
    except FloatLensError:
        raise
    except Exception as error:  # transformers raises anything for files that do not belong together
        reason = one_line(error)
        raise FloatLensError(f"{checkpoint.name} cannot be loaded as {checkpoint.family.name}: {reason}") from error
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    token_numbers(ends, f"{checkpoint.name}: generation_config.json: field 'eos_token_id'")
    if model.device.type == "cpu":
        expect_no_kernels()
    return model.eval()


def check_weights(checkpoint: Checkpoint) -> tuple[PreTrainedConfig, Path, bool | None]:
    """The native config, and the folder or file of the weights; raise an error if they are damaged or do not fit.

    No weights are read. The third value is whether they are safetensors; None for a GGUF file.
    """
    config = checkpoint.native_config()
    check_supported(checkpoint.name, config, checkpoint.family)
    if checkpoint.gguf_file:
        source = Path(checkpoint.source) / checkpoint.gguf_file
        check_sizes(checkpoint, config, count_tensors(source), 8 * source.stat().st_size)  # at least one bit per weight
        return config, source, None
    allow_pickle = checkpoint.how.allow_pickle
    source = checkpoint.folder or download(checkpoint, WEIGHTS + (PICKLES if allow_pickle else ()))
    if (source / "adapter_config.json").exists():  # transformers would apply it silently, pickled or not
        raise FloatLensError(
            f"{checkpoint.name} has an adapter next to its weights (adapter_config.json); move it to a separate folder and "
            "pass MODEL+FOLDER with that folder"
        )
    files = check_files(source, allow_pickle=allow_pickle)
    if safe := files[0].suffix == ".safetensors":
        check_shapes(checkpoint, config, files)
    return config, source, safe


def redraw(model: Any) -> Any:
    """Draw all weights of a model again as before its training, with a fixed seed, and return it."""
    import torch

    before = {name: float(w.detach().float().sum()) for name, w in model.named_parameters() if w.dim() > 1}
    for weights in model.parameters():
        weights._is_hf_initialized = False  # transformers draws only what is not marked as loaded
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        for module in model.modules():
            model._init_weights(module)
    for name, total in before.items():
        if total == float(model.get_parameter(name).detach().float().sum()):
            raise FloatLensError(f"{type(model).__name__} does not say how to draw {name}; it cannot be untrained")
    return model


@contextmanager
def splitting(model_type: str, splits: Mapping[str, Sequence[str]]) -> Iterator[None]:
    """Split fused tensors of a checkpoint while it is loaded; each part is as large as the native tensor that it becomes.

    transformers takes such conversions from a table by model type, which is restored afterwards.
    """
    if not splits:
        yield
        return
    from transformers import conversion_mapping
    from transformers.core_model_loading import Split, WeightConverter

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


def parallel(tp_plan: str | dict[str, str], device_map: Any = None) -> dict[str, Any]:
    """The options for transformers to split layers over processes; "auto" is the model's own plan."""
    from transformers.distributed import DistributedConfig

    if device_map is not None:
        raise FloatLensError("a tensor parallel plan distributes the model itself; leave out the device")
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        raise FloatLensError("a tensor parallel plan needs several processes: torchrun --nproc-per-node 2 SCRIPT")
    return {"distributed_config": DistributedConfig(tp_plan=tp_plan)}


def check_files(folder: Path, *, allow_pickle: bool = False) -> list[Path]:
    """The weights files of a folder that transformers will read, in its order of preference.

    Pickled files are used only if they are allowed and there are no others.
    """
    for name in ("model.safetensors", "pytorch_model.bin") if allow_pickle else ("model.safetensors",):
        if files := _weights_files(folder, name):
            return files
    said = f"{folder / 'model.safetensors'} is missing: a checkpoint holds its weights as safetensors"
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth"))
    if pickles and not allow_pickle:
        said += f"; it has {pickles[0]}, a pickle: convert it to safetensors, or load it with --allow-pickle if you trust it"
    raise FloatLensError(said)


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
        if file.parent != folder or file.suffix != suffix or not file.is_file():
            raise FloatLensError(
                f"{index}: field 'weight_map' names {str(file)!r}, which is not a {suffix} file of the folder"
            )
    return files


def read_header(file: Path) -> dict[str, tuple[str, int]]:
    """Dtype and number of elements of each tensor of a safetensors file; raise an error if header and file disagree."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "np") as opened:
            tensors = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            return {name: (one.get_dtype(), math.prod(one.get_shape())) for name, one in tensors.items()}
    except (SafetensorError, OSError) as error:
        raise FloatLensError(
            f"{file} is not a complete safetensors file ({one_line(error)}); download it again"
        ) from None


def check_sizes(checkpoint: Checkpoint, config: PreTrainedConfig, tensors: int, most: int) -> dict[str, int]:
    """Number of elements of each parameter; raise an error for a model that is larger than `tensors` with `most` elements.

    Checked before memory is taken for it: a config of a few bytes may describe a model of any size.
    """
    layers = shape(config)["layers"] or 0
    if layers > tensors:
        raise FloatLensError(
            f"{checkpoint.name}: its config describes {layers:,} layers, but the weights have {tensors:,} tensors"
        )
    native = {name: p.numel() for name, p in meta_model(checkpoint.family, config).named_parameters()}
    if (described := sum(native.values())) > most:
        raise FloatLensError(
            f"{checkpoint.name}: its config describes a model of {described:,} parameters, more than its weights can hold"
        )
    return native


def check_shapes(checkpoint: Checkpoint, config: PreTrainedConfig, files: Iterable[Path]) -> None:
    """Raise an error for safetensors files that hold other sizes than the config describes."""
    tensors = {name: found for file in files for name, found in read_header(file).items()}
    floats = {name: count for name, (dtype, count) in tensors.items() if "F" in dtype and not dtype.startswith("F8")}
    # Quantized tensors hold several weights per number, and a few models compute some of their parameters.
    most = sum(count for _, count in tensors.values()) * (2 if len(floats) == len(tensors) else 32)
    native = check_sizes(checkpoint, config, len(tensors), most)
    for key, count in floats.items():
        name = checkpoint.family.native_key(key)
        if native.get(name, count) != count:
            raise FloatLensError(
                f"{checkpoint.name}: the tensor {name!r} has {count:,} numbers in the weights, but {native[name]:,} in a "
                f"model of its config"
            )
