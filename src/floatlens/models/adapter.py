"""Apply LoRA adapters in peft's format (a folder with adapter_config.json and adapter_model.safetensors) to a base model.

Only the fields that describe the arithmetic are read: an adapter can name neither code to import nor a model to fetch. Every
tensor is compared with the module that it belongs to before the model is changed. The adapter is merged into the weights; a
family with `adapter="apart"` keeps it separate, so that it can be switched off.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from floatlens.errors import FloatLensError
from floatlens.models.checkpoint import Checkpoint, check_links, one_line, read_json
from floatlens.models.family import Family

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONFIG, MASK = "adapter_config.json", "mask.safetensors"
WEIGHTS, PICKLE = "adapter_model.safetensors", "adapter_model.bin"
PREFIX = "base_model.model."
FACTOR = re.compile(r"(?P<module>.+)\.lora_(embedding_)?(?P<part>A|B|magnitude_vector)(\.weight)?")
# peft takes the keys of rank_pattern and alpha_pattern as regular expressions, which may take for ever to match.
MODULE_NAME = re.compile(r"\^?\w[\w.-]*")

# Initialisations that do not change the base model; the others (pissa, olora, …) change its weights.
STARTS = (True, False, None, "gaussian", "eva", "orthogonal")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_pattern(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_number, value.values()))


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


# The fields of an adapter's config that describe it: default, check, and what is expected.
FIELDS: dict[str, tuple[Any, Callable[[Any], bool], str]] = {
    "peft_type": ("", lambda value: value == "LORA", "'LORA', the only kind of adapter that can be read"),
    "bias": ("none", lambda value: value == "none", "'none'"),
    "init_lora_weights": (
        True,
        lambda value: isinstance(value, bool | str | None) and value in STARTS,
        "an initialisation that does not change the base weights; convert the adapter to plain LoRA",
    ),
    "r": (8, lambda value: _is_number(value) and value == int(value) > 0, "an integer of 1 or more"),
    "lora_alpha": (8, _is_number, "a number"),
    **dict.fromkeys(("rank_pattern", "alpha_pattern"), ({}, _is_pattern, "module names and numbers")),
    **dict.fromkeys(("use_rslora", "use_dora"), (False, lambda value: isinstance(value, bool), "true or false")),
    "modules_to_save": ([], _is_names, "a list of module names"),
    # These change what an adapter computes in ways that are not known here.
    **dict.fromkeys(
        ("alora_invocation_tokens", "arrow_config", "kasa_config", "layer_replication", "lora_bias", "monteclora_config",
         "target_parameters", "trainable_token_indices", "use_bdlora", "use_qalora", "velora_config"),
        (None, lambda value: not value, "nothing, since FloatLens does not support it")),
}  # fmt: skip


def read_config(folder: Path) -> dict[str, Any]:
    """The fields of an adapter's config that describe it, checked, and `base`, the model that it was made for."""
    path = folder / CONFIG
    raw = read_json(path, f"{folder} is not the folder of a peft adapter")
    found: dict[str, Any] = {"base": str(raw.get("base_model_name_or_path") or "") or None}
    for name, (default, right, expected) in FIELDS.items():
        found[name] = raw.get(name, default)
        if found[name] is None and default in ({}, [], False):  # peft writes null for what is not used
            found[name] = default
        if not right(found[name]):
            raise FloatLensError(f"{path}: field {name!r} is {raw.get(name)!r}; expected {expected}")
    for name in ("rank_pattern", "alpha_pattern"):
        found[name] = {pattern.replace("\\.", "."): value for pattern, value in found[name].items()}
        if wrong := [pattern for pattern in found[name] if not MODULE_NAME.fullmatch(pattern)]:
            raise FloatLensError(
                f"{path}: field {name!r} has the regular expression {wrong[0][:100]!r}; expected the ends of module names, "
                f"such as 'layers.1.mlp.up_proj'"
            )
    return found


def check_folder(folder: Path) -> None:
    """Raise an error for anything that is not the folder of an adapter, before any weight is read."""
    if not folder.is_dir():
        raise FloatLensError(f"adapter {str(folder)!r} is not a folder; pass the folder with {CONFIG}")
    check_links(folder)
    read_config(folder)


def read_tensors(folder: Path, *, allow_pickle: bool = False) -> dict[str, Tensor]:
    """The adapter's tensors by name; a pickle is rejected unless `allow_pickle` is set."""
    if (folder / WEIGHTS).is_file():
        return read_safetensors(folder / WEIGHTS)
    path = folder / PICKLE
    if not path.is_file():
        raise FloatLensError(f"{folder / WEIGHTS} is missing: an adapter holds its weights as safetensors")
    if not allow_pickle:
        raise FloatLensError(
            f"the adapter {folder} holds its weights as {PICKLE}, a pickle: convert it to safetensors, or trust it "
            "with --allow-pickle (allow_pickle=True)"
        )
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle fails anywhere
        raise FloatLensError(f"{path} cannot be read: {one_line(error)}") from error
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise FloatLensError(f"{path} should hold tensors by name")
    return found


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from floatlens.models.weights import read_header

    read_header(path)
    try:
        return load_file(path)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise FloatLensError(f"{path} cannot be read: {one_line(error)}; download it again") from None


@torch.no_grad()
def apply_adapter(model: PreTrainedModel, checkpoint: Checkpoint, *, allow_pickle: bool = False) -> PreTrainedModel:
    """Apply the checkpoint's adapter to the model in place, and return the model; see the module docstring."""
    folder, family = checkpoint.adapter, checkpoint.family
    assert folder is not None
    config, tensors = read_config(folder), read_tensors(folder, allow_pickle=allow_pickle)
    problem = f"adapter {folder} does not fit {checkpoint.name}"
    state, published = rename(tensors, family, folder)
    factors, whole = check_fit(model, state, config, problem)
    listed = {key: tensor for key, tensor in whole.items() if is_listed(split(key)[0], config)}
    copy_tensors(model, {key: tensor for key, tensor in whole.items() if key not in listed})
    if family.adapter == "merged":
        untie(model, [*factors, *(split(key)[0] for key in listed)])
    copy_tensors(model, listed)
    for name, parts in factors.items():
        rank = len(parts["A"])
        alpha = _by_pattern(config["alpha_pattern"], published[name], config["lora_alpha"])
        scale = alpha / (math.sqrt(rank) if config["use_rslora"] else rank)
        module = model.get_submodule(name)
        floating = module.weight.is_floating_point()
        if family.adapter == "merged" and floating:
            merge(module, parts, scale)
        elif "magnitude_vector" in parts:
            raise FloatLensError(
                f"{problem}: it is a DoRA adapter, which must be merged into weights of full precision"
            )
        else:
            keep_apart(module, parts["A"], parts["B"], scale, model.dtype if not floating else module.weight.dtype)
    return model.eval().requires_grad_(False)


def merge(module: Any, parts: Mapping[str, Tensor], scale: float) -> None:
    """Add scale · B A to a module's weight; with a magnitude (DoRA), rescale each output's row to it.

    The product of 16-bit factors is computed in float32.
    """
    weight, transposed = module.weight, not hasattr(module, "in_features")  # embeddings and GPT-2's Conv1D
    a, b = (parts[side].to(weight).float() if weight.itemsize < 4 else parts[side].to(weight) for side in "AB")
    delta = ((b @ a).T if transposed else b @ a) * scale
    weight.data += delta.to(weight)
    if "magnitude_vector" in parts:
        rows = weight.data.T if transposed else weight.data
        rows *= (parts["magnitude_vector"].to(weight) / torch.linalg.norm(rows, dim=1).to(weight))[:, None]


def keep_apart(module: Any, a: Tensor, b: Tensor, scale: float, dtype: torch.dtype) -> None:
    """Have a module add scale · B A x to its output while its `adapter_active` is true."""
    for name, factor in (("lora_A", a), ("lora_B", b)):
        module.register_buffer(name, factor.to(module.weight.device, dtype), persistent=False)
    module.adapter_active = True
    module.register_forward_hook(partial(_add_product, scale=scale))


def _add_product(module: Any, inputs: tuple[Tensor, ...], output: Tensor, *, scale: float) -> Tensor:
    if not module.adapter_active:
        return output
    x, a = inputs[0], module.lora_A
    inner = functional.embedding(x, a.T) if isinstance(module, nn.Embedding) else functional.linear(x.to(a), a)
    return output + functional.linear(inner, module.lora_B) * scale


def rename(tensors: Mapping[str, Tensor], family: Family, folder: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors by the names of the native model, and the published name of each adapted module."""
    state, published = {}, {}
    for key, tensor in tensors.items():
        if not key.startswith(PREFIX):
            raise FloatLensError(f"{folder}: the tensor {key!r} does not begin with {PREFIX!r}, as those of peft do")
        name = native = key.removeprefix(PREFIX)
        for pattern, replacement in family.renames.items():
            native, count = re.subn(pattern, replacement, name)
            if count:
                break
        state[native] = tensor
        if (factor := FACTOR.fullmatch(native)) and (before := FACTOR.fullmatch(name)):
            published[factor["module"]] = before["module"]
    return state, published


def check_fit(
    model: PreTrainedModel, state: Mapping[str, Tensor], config: Mapping[str, Any], problem: str
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Tensor]]:
    """The factors of each adapted module, and the tensors that are stored in full.

    Raise an error for a module that the model lacks or has in another size.
    """
    made_for = f"; it was made for {config['base']!r}" if config["base"] else ""
    modules, tables = dict(model.named_modules()), embeddings(model)
    factors: dict[str, dict[str, Tensor]] = {}
    whole: dict[str, Tensor] = {}
    for key, tensor in state.items():
        if (factor := FACTOR.fullmatch(key)) is not None:
            factors.setdefault(factor["module"], {})[factor["part"]] = tensor
            continue
        module, name = split(key)
        if not is_listed(module, config) and modules.get(module) not in tables:
            raise FloatLensError(f"{problem}: the tensor {key!r} is neither a LoRA factor nor among modules_to_save")
        own = dict(modules[module].named_parameters()).get(name) if module in modules else None
        if own is None:
            raise FloatLensError(f"{problem}: the model has no tensor {key!r}{made_for}")
        if own.shape != tensor.shape:
            raise FloatLensError(
                f"{problem}: {key} is {_shape(tensor)} in the adapter and {_shape(own)} in the model{made_for}"
            )
        whole[key] = tensor
    if not factors:
        raise FloatLensError(f"{problem}: it has no LoRA factors (lora_A, lora_B)")
    for name, parts in factors.items():
        if name not in modules:
            raise FloatLensError(f"{problem}: the model has no module {name!r}{made_for}")
        a, b, magnitude = (parts.get(part) for part in ("A", "B", "magnitude_vector"))
        if a is None or b is None or a.ndim != 2 or b.ndim != 2:
            raise FloatLensError(f"{problem}: module {name!r} needs two matrices, lora_A and lora_B")
        inside, outside = _sizes(modules[name], name, problem)
        if (a.shape[1], b.shape[0]) != (inside, outside) or a.shape[0] != b.shape[1]:
            raise FloatLensError(
                f"{problem}: module {name!r} maps {inside} to {outside} in the model, but the adapter has A of "
                f"{_shape(a)} and B of {_shape(b)}{made_for}"
            )
        if (magnitude is None) == config["use_dora"] or (magnitude is not None and magnitude.shape != (outside,)):
            raise FloatLensError(
                f"{problem}: module {name!r} needs {outside} magnitudes exactly if it is a DoRA adapter"
            )
        if not config["rank_pattern"] and len(a) != config["r"]:
            raise FloatLensError(f"{problem}: {CONFIG} has r {config['r']}, but module {name!r} has rank {len(a)}")
    return factors, whole


def split(key: str) -> tuple[str, str]:
    """The module and the name of a fully stored tensor; peft adds base_layer between them if the module is also adapted."""
    module, _, name = key.rpartition(".")
    return module.removesuffix(".base_layer"), name


def is_listed(module: str, config: Mapping[str, Any]) -> bool:
    """Whether the config lists a module among those that are stored in full."""
    return any(module == one or module.endswith(f".{one}") for one in config["modules_to_save"])


def embeddings(model: PreTrainedModel) -> list[Any]:
    """The modules that peft may store in full without listing them: the input and the output embedding."""
    return [table for table in (model.get_input_embeddings(), model.get_output_embeddings()) if table is not None]


def copy_tensors(model: PreTrainedModel, whole: Mapping[str, Tensor]) -> None:
    for key, tensor in whole.items():
        module, name = split(key)
        model.get_submodule(module).get_parameter(name).data.copy_(tensor)


def untie(model: PreTrainedModel, changed: Iterable[str]) -> None:
    """Give input and output embedding a table each if they share one and an adapter changes one of the two."""
    tables = embeddings(model)
    if len(tables) < 2 or not any(model.get_submodule(name) in tables for name in changed):
        return
    inputs, outputs = tables
    if inputs.weight is outputs.weight:
        outputs.weight = nn.Parameter(inputs.weight.clone(), requires_grad=False)
        model.config.get_text_config().tie_word_embeddings = model.config.tie_word_embeddings = False


def _sizes(module: Any, name: str, problem: str) -> tuple[int, int]:
    """Input and output width of a module that can have LoRA factors."""
    from transformers.pytorch_utils import Conv1D

    if isinstance(module, nn.Embedding):
        return module.num_embeddings, module.embedding_dim
    if isinstance(module, Conv1D):  # GPT-2 stores its matrices transposed
        return int(module.weight.shape[0]), int(module.weight.shape[1])
    if hasattr(module, "in_features") and hasattr(module, "out_features"):
        return int(module.in_features), int(module.out_features)
    raise FloatLensError(f"{problem}: module {name!r} is a {type(module).__name__}; expected a linear layer")


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape))


def _by_pattern(patterns: Mapping[str, Any], name: str, default: Any) -> Any:
    """The value of the first pattern that is the module's name or its end; one that begins with ^ is the whole name."""
    for pattern, value in patterns.items():
        if name == pattern.removeprefix("^") or (pattern[0] != "^" and name.endswith(f".{pattern}")):
            return value
    return default


def give_mask_vector(model: PreTrainedModel, folder: Path, mask_id: int | None) -> None:
    """Have the input embedding return the learned vector of mask.safetensors for the mask token.

    The embedding table itself is not changed, because models with tied embeddings also use it for the logits.
    """
    if mask_id is None:
        raise FloatLensError(
            f"{folder / MASK} is the vector of a mask token, but the model's tokenizer has no mask token"
        )
    vector = read_safetensors(folder / MASK).get("mask")
    embedding = model.get_input_embeddings()
    width = embedding.weight.shape[1]
    if vector is None or vector.shape != (width,):
        found = "nothing" if vector is None else _shape(vector)
        raise FloatLensError(f"{folder / MASK} should hold the tensor 'mask' of {width} numbers; found {found}")
    embedding.register_buffer("mask_vector", vector.to(embedding.weight), persistent=False)
    embedding.register_forward_hook(partial(_replace_masks, mask_id=mask_id))


def _replace_masks(module: Any, inputs: tuple[Tensor, ...], output: Tensor, *, mask_id: int) -> Tensor:
    return torch.where((inputs[0] == mask_id)[..., None], module.mask_vector.to(output), output)
