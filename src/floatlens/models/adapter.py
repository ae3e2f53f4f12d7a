"""Apply LoRA adapters in peft's format (a folder with adapter_config.json and adapter_model.safetensors) to a base model.

Only the fields that describe the arithmetic are read: an adapter can name neither code to import nor a model to fetch. Every
tensor is compared with the linear layer that it belongs to before the model is changed. The adapter is merged into the
weights; a family with `adapter="apart"` keeps it separate, so that it can be switched off.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from floatlens.errors import FloatLensError
from floatlens.models.checkpoint import Checkpoint, one_line, read_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONFIG, MASK = "adapter_config.json", "mask.safetensors"
WEIGHTS = "adapter_model.safetensors"
FACTOR = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<part>A|B)\.weight")
# peft takes the keys of rank_pattern and alpha_pattern as regular expressions, which may take for ever to match.
MODULE_NAME = re.compile(r"\^?\w[\w.-]*")
WAY_OUT = "merge the adapter into its base with peft's merge_and_unload(), and load the result"

NUMBER = (int, float)
NOTHING = (None, False, "", [()], {str: ()})
# The fields of an adapter's config that describe it: their defaults, and what they may be (see `untrusted.matches`).
FIELDS: dict[str, tuple[Any, Any]] = {
    "peft_type": ("", "LORA"),
    "bias": ("none", "none"),
    # Initialisations that do not change the base model; the others (pissa, olora, …) change its weights.
    "init_lora_weights": (True, (True, False, None, "gaussian", "eva", "orthogonal")),
    "r": (8, range(1, 1 << 20)),
    "lora_alpha": (8, NUMBER),
    **dict.fromkeys(("rank_pattern", "alpha_pattern"), ({}, {str: NUMBER})),
    "use_rslora": (False, bool),
    # These change what an adapter computes in other ways.
    **dict.fromkeys(
        ("alora_invocation_tokens", "arrow_config", "kasa_config", "layer_replication", "lora_bias", "modules_to_save",
         "monteclora_config", "target_parameters", "trainable_token_indices", "use_bdlora", "use_dora", "use_qalora",
         "velora_config"),
        (None, NOTHING)),
}  # fmt: skip


def read_config(folder: Path) -> dict[str, Any]:
    """The fields of an adapter's config that describe it, checked, and `base`, the model that it was made for."""
    from floatlens.untrusted import matches  # which imports pandas

    path = folder / CONFIG
    raw = read_json(path, f"{folder} is not the folder of a peft adapter")
    found: dict[str, Any] = {"base": str(raw.get("base_model_name_or_path") or "") or None}
    for name, (default, schema) in FIELDS.items():
        found[name] = raw.get(name, default)
        if found[name] is None and default in ({}, False):  # peft writes null for what is not used
            found[name] = default
        if not matches(found[name], schema):
            raise FloatLensError(
                f"{path}: field {name!r} is {raw.get(name)!r}; expected a value of plain LoRA; {WAY_OUT}"
            )
    for name in ("rank_pattern", "alpha_pattern"):
        found[name] = {pattern.replace("\\.", "."): value for pattern, value in found[name].items()}
        if wrong := [pattern for pattern in found[name] if not MODULE_NAME.fullmatch(pattern)]:
            raise FloatLensError(
                f"{path}: field {name!r} has the regular expression {wrong[0][:100]!r}; expected the ends of module names, "
                f"such as 'layers.1.mlp.up_proj'"
            )
    return found


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file of an adapter by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise FloatLensError(f"{path} is missing: an adapter holds its weights as safetensors, never as a pickle")
    try:
        return load_file(path)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise FloatLensError(f"{path} cannot be read: {one_line(error)}; download it again") from None


@torch.no_grad()
def apply_adapter(model: PreTrainedModel, checkpoint: Checkpoint) -> PreTrainedModel:
    """Apply the checkpoint's adapter to the model in place, and return the model; see the module docstring."""
    folder, family = checkpoint.adapter, checkpoint.family
    assert folder is not None
    config, tensors = read_config(folder), read_safetensors(folder / WEIGHTS)
    problem = f"adapter {folder} does not fit {checkpoint.name}"
    factors: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if (factor := FACTOR.fullmatch(key)) is None:
            raise FloatLensError(f"{problem}: the tensor {key!r} is not a LoRA factor of a linear layer; {WAY_OUT}")
        factors.setdefault(factor["module"], {})[factor["part"]] = tensor
    if not factors:
        raise FloatLensError(f"{problem}: it has no LoRA factors (lora_A, lora_B)")
    native = {published: family.native_key(f"{published}.").removesuffix(".") for published in factors}
    for published, parts in factors.items():
        check_fit(model, native[published], parts, by_pattern(config, "rank", published, "r"), config["base"], problem)
    for published, parts in factors.items():
        rank, alpha = len(parts["A"]), by_pattern(config, "alpha", published, "lora_alpha")
        scale = alpha / (math.sqrt(rank) if config["use_rslora"] else rank)
        module = model.get_submodule(native[published])
        floating = module.weight.is_floating_point()  # a quantized weight is not
        if family.adapter == "merged" and floating:
            merge(module, parts["A"], parts["B"], scale)
        else:
            keep_apart(module, parts["A"], parts["B"], scale, module.weight.dtype if floating else model.dtype)
    return model.eval().requires_grad_(False)


def check_fit(
    model: PreTrainedModel, name: str, parts: Mapping[str, Tensor], rank: int, base: str | None, problem: str
) -> None:
    """Raise an error for the factors of a layer that the model lacks or has in another size."""
    made_for = f"; it was made for {base!r}" if base else ""
    module: Any = dict(model.named_modules()).get(name)
    if module is None:
        raise FloatLensError(f"{problem}: the model has no module {name!r}{made_for}")
    transposed = is_transposed(module)
    if not (transposed or hasattr(module, "in_features")):
        raise FloatLensError(
            f"{problem}: module {name!r} is a {type(module).__name__}; expected a linear layer; {WAY_OUT}"
        )
    tables = (model.get_input_embeddings(), model.get_output_embeddings())
    if module in tables and tables[0].weight is tables[1].weight:
        raise FloatLensError(f"{problem}: the weights of {name!r} are also the input embedding; {WAY_OUT}")
    inside, outside = module.weight.shape if transposed else (module.in_features, module.out_features)
    found = {part: _shape(tensor) for part, tensor in sorted(parts.items())}
    if found != (expected := {"A": f"{rank} x {inside}", "B": f"{outside} x {rank}"}):
        raise FloatLensError(f"{problem}: module {name!r} takes {expected}, but the adapter has {found}{made_for}")


def is_transposed(module: Any) -> bool:
    """Whether a module is GPT-2's linear layer, which stores its matrix transposed."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, Conv1D)


def merge(module: Any, a: Tensor, b: Tensor, scale: float) -> None:
    """Add scale · B A to a module's weight. The product of 16-bit factors is computed in float32."""
    weight = module.weight
    a, b = (factor.to(weight).float() if weight.itemsize < 4 else factor.to(weight) for factor in (a, b))
    delta = (b @ a) * scale
    weight.data += (delta.T if is_transposed(module) else delta).to(weight)


def keep_apart(module: Any, a: Tensor, b: Tensor, scale: float, dtype: torch.dtype) -> None:
    """Have a module add scale · B A x to its output while its `adapter_active` is true."""
    for name, factor in (("lora_A", a), ("lora_B", b)):
        module.register_buffer(name, factor.to(module.weight.device, dtype), persistent=False)
    module.adapter_active = True
    module.register_forward_hook(partial(_add_product, scale=scale))


def _add_product(module: Any, inputs: tuple[Tensor, ...], output: Tensor, *, scale: float) -> Tensor:
    if not module.adapter_active:
        return output
    inner = functional.linear(inputs[0].to(module.lora_A), module.lora_A)
    return output + functional.linear(inner, module.lora_B) * scale


def by_pattern(config: Mapping[str, Any], what: str, name: str, default: str) -> Any:
    """The value of the first pattern that is the module's name or its end; one that begins with ^ is the whole name."""
    for pattern, value in config[f"{what}_pattern"].items():
        if name == pattern.removeprefix("^") or (pattern[0] != "^" and name.endswith(f".{pattern}")):
            return value
    return config[default]


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape))


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
