"""Apply LoRA adapters in peft's format (a folder with adapter_config.json and adapter_model.safetensors) to a base model.

The config is read as JSON, and only the fields that describe the arithmetic are passed on to peft: an adapter can name
neither code to import nor a model to fetch. Every tensor is compared with the module that it belongs to before the model is
changed. The adapter is merged into the weights; a family with `adapter="apart"` keeps it separate, so that it can be
switched off.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from floatlens.errors import FloatLensError
from floatlens.models.checkpoint import Checkpoint, check_links, one_line, read_json
from floatlens.models.family import Family

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONFIG, WEIGHTS, PICKLE, MASK = (
    "adapter_config.json",
    "adapter_model.safetensors",
    "adapter_model.bin",
    "mask.safetensors",
)
PREFIX = "base_model.model."
FACTOR = re.compile(r"(?P<module>.+)\.lora_(?P<part>A|B|embedding_A|embedding_B|magnitude_vector)(\.weight)?")
# peft takes the keys of rank_pattern and alpha_pattern as regular expressions, which may take for ever to match.
MODULE_NAME = re.compile(r"\^?\w[\w.-]*")

# Fields that change what an adapter computes in ways that are not checked here; an adapter that uses one is rejected.
REFUSED = (
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "layer_replication",
    "lora_bias",
    "monteclora_config",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_qalora",
    "velora_config",
)
# Initialisations that do not change the base model; the others (pissa, olora, …) change its weights.
STARTS = (True, False, None, "gaussian", "eva", "orthogonal")


def read_config(folder: Path) -> dict[str, Any]:
    """The fields of an adapter's config that describe it, checked.

    Returns
    -------
    r, lora_alpha, rank_pattern, alpha_pattern, use_rslora, use_dora, fan_in_fan_out, modules_to_save as in peft, and
    `base`, the name of the model that the adapter was made for.
    """
    path = folder / CONFIG
    raw = read_json(path, f"{folder} is not the folder of a peft adapter")

    def refuse(name: str, expected: str) -> FloatLensError:
        return FloatLensError(f"{path}: field {name!r} is {raw.get(name)!r}; expected {expected}")

    if raw.get("peft_type") != "LORA":
        raise refuse("peft_type", "'LORA', the only kind of adapter that can be read")
    for name in REFUSED:
        if raw.get(name):
            raise refuse(name, "nothing, since FloatLens does not support it")
    if raw.get("bias", "none") != "none":
        raise refuse("bias", "'none'")
    start = raw.get("init_lora_weights", True)
    if not isinstance(start, bool | str | None) or start not in STARTS:
        raise refuse(
            "init_lora_weights",
            "an initialisation that does not change the base weights; convert the adapter to plain LoRA",
        )
    found: dict[str, Any] = {"base": str(raw.get("base_model_name_or_path") or "") or None}
    found["r"], found["lora_alpha"] = raw.get("r", 8), raw.get("lora_alpha", 8)
    if isinstance(found["r"], bool) or not isinstance(found["r"], int) or found["r"] < 1:
        raise refuse("r", "an integer of 1 or more")
    if not _is_number(found["lora_alpha"]):
        raise refuse("lora_alpha", "a number")
    for name in ("rank_pattern", "alpha_pattern"):
        found[name] = raw.get(name) or {}
        if not isinstance(found[name], dict) or not all(_is_number(value) for value in found[name].values()):
            raise refuse(name, "an object of module names and numbers")
        found[name] = {pattern.replace("\\.", "."): value for pattern, value in found[name].items()}
        if wrong := [pattern for pattern in found[name] if not MODULE_NAME.fullmatch(pattern)]:
            raise FloatLensError(
                f"{path}: field {name!r} has the regular expression {wrong[0][:100]!r}; expected the ends of module names, "
                f"such as 'layers.1.mlp.up_proj'"
            )
    for name in ("use_rslora", "use_dora", "fan_in_fan_out"):
        found[name] = raw.get(name) or False
        if not isinstance(found[name], bool):
            raise refuse(name, "true or false")
    found["modules_to_save"] = raw.get("modules_to_save") or []
    if not isinstance(found["modules_to_save"], list) or not all(isinstance(m, str) for m in found["modules_to_save"]):
        raise refuse("modules_to_save", "a list of module names")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_folder(folder: Path) -> None:
    """Raise an error for anything that is not the folder of an adapter, before any weight is read."""
    if not folder.is_dir():
        raise FloatLensError(f"adapter {str(folder)!r} is not a folder; pass the folder with {CONFIG}")
    check_links(folder)
    read_config(folder)


def read_tensors(folder: Path, *, allow_pickle: bool = False) -> dict[str, torch.Tensor]:
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
    if not isinstance(found, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in found.values()):
        raise FloatLensError(f"{path} should hold tensors by name")
    return found


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from floatlens.models.weights import read_header

    read_header(path)
    try:
        return load_file(path)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise FloatLensError(f"{path} cannot be read: {one_line(error)}; download it again") from None


def apply_adapter(model: PreTrainedModel, checkpoint: Checkpoint, *, allow_pickle: bool = False) -> PreTrainedModel:
    """Apply the checkpoint's adapter to the model in place, and return the model; see the module docstring."""
    folder, family = checkpoint.adapter, checkpoint.family
    assert folder is not None
    config, tensors = read_config(folder), read_tensors(folder, allow_pickle=allow_pickle)
    peft = _import_peft(checkpoint)
    state, published = rename(tensors, family, folder)
    ranks = check_fit(model, state, config, f"adapter {folder} does not fit {checkpoint.name}")
    replace_tables(model, state, config)
    if family.adapter == "merged":
        untie(model, ranks)
    alphas = {name: _by_pattern(config["alpha_pattern"], published[name], config["lora_alpha"]) for name in ranks}
    lora = peft.LoraConfig(
        r=config["r"],
        lora_alpha=config["lora_alpha"],
        target_modules=sorted(ranks),
        rank_pattern={re.escape(name): rank for name, rank in ranks.items() if rank != config["r"]},
        alpha_pattern={re.escape(name): alpha for name, alpha in alphas.items() if alpha != config["lora_alpha"]},
        modules_to_save=config["modules_to_save"] or None,
        **{name: config[name] for name in ("use_rslora", "use_dora", "fan_in_fan_out")},
        inference_mode=True,
    )
    dtype = next(p.dtype for p in model.parameters() if p.dtype.is_floating_point)
    own = {PREFIX + name: tensor.to(dtype) for name, tensor in state.items()}
    try:
        wrapped = peft.PeftModel(model, lora, autocast_adapter_dtype=False, low_cpu_mem_usage=True)
        left = peft.set_peft_model_state_dict(wrapped, own, low_cpu_mem_usage=True)
    except (KeyError, RuntimeError, ValueError) as error:
        raise FloatLensError(f"adapter {folder} does not fit {checkpoint.name}: {one_line(error)}") from error
    if left.unexpected_keys:
        raise FloatLensError(
            f"adapter {folder} does not fit {checkpoint.name}: "
            f"the model has no module for its tensor {left.unexpected_keys[0]!r}"
        )
    made = wrapped.base_model.model if family.adapter == "apart" else wrapped.merge_and_unload()
    return made.eval().requires_grad_(False)


def _import_peft(checkpoint: Checkpoint) -> Any:
    try:
        import peft
    except ImportError:
        raise FloatLensError(
            f"{checkpoint.name} with an adapter needs peft, which is not installed: pip install 'floatlens[adapters]'"
        ) from None
    return peft


def rename(
    tensors: Mapping[str, torch.Tensor], family: Family, folder: Path
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
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
    model: torch.nn.Module, state: Mapping[str, torch.Tensor], config: Mapping[str, Any], problem: str
) -> dict[str, int]:
    """The rank of each adapted module; raise an error for a module that the model lacks or has in another size."""
    made_for = f"; it was made for {config['base']!r}" if config["base"] else ""
    modules, tables = dict(model.named_modules()), embeddings(model)
    factors: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in state.items():
        if (factor := FACTOR.fullmatch(key)) is not None:
            factors.setdefault(factor["module"], {})[factor["part"]] = tensor
            continue
        module, name = split(key)
        if not is_saved(module, config) and modules.get(module) not in tables:
            raise FloatLensError(f"{problem}: the tensor {key!r} is neither a LoRA factor nor among modules_to_save")
        own = dict(modules[module].named_parameters()).get(name) if module in modules else None
        if own is None:
            raise FloatLensError(f"{problem}: the model has no tensor {key!r}{made_for}")
        if own.shape != tensor.shape:
            raise FloatLensError(
                f"{problem}: {key} is {_shape(tensor)} in the adapter and {_shape(own)} in the model{made_for}"
            )
    if not factors:
        raise FloatLensError(f"{problem}: it has no LoRA factors (lora_A, lora_B)")
    ranks = {}
    for name, parts in factors.items():
        if name not in modules:
            raise FloatLensError(f"{problem}: the model has no module {name!r}{made_for}")
        embedding = "embedding_A" in parts
        a, b = (parts.get(f"{'embedding_' if embedding else ''}{side}") for side in "AB")
        if a is None or b is None or a.ndim != 2 or b.ndim != 2:
            raise FloatLensError(f"{problem}: module {name!r} needs two matrices, lora_A and lora_B")
        inside, outside = _sizes(modules[name], name, problem)
        if (a.shape[1], b.shape[0]) != (inside, outside) or a.shape[0] != b.shape[1]:
            raise FloatLensError(
                f"{problem}: module {name!r} maps {inside} to {outside} in the model, but the adapter has A of "
                f"{_shape(a)} and B of {_shape(b)}{made_for}"
            )
        ranks[name] = int(a.shape[0])
    wrong = [name for name, rank in ranks.items() if not config["rank_pattern"] and rank != config["r"]]
    if wrong:
        raise FloatLensError(
            f"{problem}: {CONFIG} has r {config['r']}, but module {wrong[0]!r} has rank {ranks[wrong[0]]}"
        )
    return ranks


def split(key: str) -> tuple[str, str]:
    """The module and the name of a fully stored tensor; peft adds base_layer between them if the module is also adapted.

    >>> split("model.embed_tokens.base_layer.weight")
    ('model.embed_tokens', 'weight')
    """
    module, _, name = key.rpartition(".")
    return module.removesuffix(".base_layer"), name


def is_saved(module: str, config: Mapping[str, Any]) -> bool:
    """Whether the config lists a module as fully stored."""
    return any(module == one or module.endswith(f".{one}") for one in config["modules_to_save"])


def embeddings(model: PreTrainedModel) -> list[torch.nn.Module]:
    """The modules that peft may store completely by default: the input and the output embedding."""
    return [table for table in (model.get_input_embeddings(), model.get_output_embeddings()) if table is not None]


@torch.no_grad()
def replace_tables(model: PreTrainedModel, state: dict[str, torch.Tensor], config: Mapping[str, Any]) -> None:
    """Copy embeddings that an adapter stores in full by default into the model, and remove them from `state`."""
    tables = embeddings(model)
    for key in [key for key in state if FACTOR.fullmatch(key) is None]:
        module, name = split(key)
        if not is_saved(module, config) and model.get_submodule(module) in tables:
            getattr(model.get_submodule(module), name).copy_(state.pop(key))


@torch.no_grad()
def untie(model: PreTrainedModel, adapted: Iterable[str]) -> None:
    """Give input and output embedding a table each if they share one and an adapter changes one of the two."""
    tables = embeddings(model)
    if len(tables) < 2 or not any(model.get_submodule(name) in tables for name in adapted):
        return
    inputs, outputs = tables
    if (shared := inputs.get_parameter("weight")) is outputs.weight:
        outputs.weight = torch.nn.Parameter(shared.clone(), requires_grad=False)
        model.config.get_text_config().tie_word_embeddings = model.config.tie_word_embeddings = False


def _sizes(module: Any, name: str, problem: str) -> tuple[int, int]:
    """Input and output width of a module that can have LoRA factors."""
    from transformers.pytorch_utils import Conv1D

    if isinstance(module, torch.nn.Embedding):
        return module.num_embeddings, module.embedding_dim
    if isinstance(module, Conv1D):  # GPT-2 stores its matrices transposed
        return int(module.weight.shape[0]), int(module.weight.shape[1])
    if hasattr(module, "in_features") and hasattr(module, "out_features"):
        return int(module.in_features), int(module.out_features)
    raise FloatLensError(f"{problem}: module {name!r} is a {type(module).__name__}; expected a linear layer")


def _shape(tensor: torch.Tensor) -> str:
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
    embedding.register_forward_hook(_MaskVector(mask_id))


class _MaskVector:
    """A forward hook of an embedding: mask tokens get the module's `mask_vector`."""

    def __init__(self, mask_id: int) -> None:
        self.mask_id = mask_id

    def __call__(self, module: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        masked = (inputs[0] == self.mask_id)[..., None]
        return torch.where(masked, module.mask_vector.to(output), output)
