"""Describe a checkpoint from its config only: its shape, its memory use, and whether its attention can be observed."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import torch

from floatlens.errors import FloatLensError, check_known
from floatlens.models.checkpoint import Checkpoint, one_line
from floatlens.models.family import Family, auto_class
from floatlens.models.quiet import quietly

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")


def first_of(config: PreTrainedConfig, *names: str) -> int | None:
    """The first of these fields that a config has, as a number; the largest one if layers differ."""
    for name in names:
        try:
            value = getattr(config, name, None)
        except RuntimeError:  # transformers refuses to give one value for a field that differs between layers
            value = max(getattr(config.per_layer_config[layer], name) for layer in range(config.num_hidden_layers))
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def text_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """The config of the language model inside a model of several parts."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


# Fields of native configs, which have different names in different classes, and upper limits for any model: without them, a
# wrong config would be built before its weights are found to be missing.
SHAPE = {
    "layers": (10_000, ("num_hidden_layers", "n_layer", "n_layers")),
    "heads": (100_000, ("num_attention_heads", "n_head", "n_heads")),
    "kv_heads": (100_000, ("num_key_value_heads",)),
    "head_dim": (2**20, ("head_dim",)),
    "width": (2**24, ("hidden_size", "n_embd", "d_model")),
    "vocabulary": (2**28, ("vocab_size",)),
    "context": (None, ("max_position_embeddings", "n_positions", "max_sequence_length")),
}


def shape(config: PreTrainedConfig) -> dict[str, int | None]:
    """Layers, heads and sizes of a native config; raise an error for one that no model has."""
    config = text_config(config)
    found = {name: first_of(config, *fields) for name, (_, fields) in SHAPE.items()}
    heads, width = found["heads"], found["width"]
    found["kv_heads"] = found["kv_heads"] or heads
    found["head_dim"] = found["head_dim"] or (width // heads if width and heads else None)
    for name, (largest, _) in SHAPE.items():
        value = found[name]
        if value is not None and largest is not None and not 0 < value <= largest:
            raise FloatLensError(f"config.json gives the model {value:,} {name}; expected between 1 and {largest:,}")
    return found


NO_ATTENTION = ("linear_attention", "conv", "mamba", "mamba2", "recurrent", "moe", "mlp")  # layer types of transformers


def is_state_space(config: PreTrainedConfig | None) -> bool:
    """Whether a model has only the implicit attention of Mamba's mixers."""
    return getattr(config, "model_type", "") in ("mamba", "mamba2", "bimamba", "bimamba2")


def attention_layers(config: PreTrainedConfig) -> list[int]:
    """The layers that compute softmax attention, according to the native config; all layers of a pure state-space model.

    >>> from types import SimpleNamespace
    >>> attention_layers(SimpleNamespace(num_hidden_layers=3, layer_types=["mamba", "full_attention", "mamba"]))
    [1]
    """
    config = text_config(config)
    layers = list(range(shape(config)["layers"] or 0))
    if is_state_space(config):
        return layers
    types = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    if isinstance(types, list) and len(types) == len(layers):
        return [layer for layer in layers if types[layer] not in NO_ATTENTION]
    indices = getattr(config, "attn_layer_indices", None)
    return [layer for layer in layers if layer in indices] if isinstance(indices, list) else layers


# Architectures whose attention cannot be observed, by model type, and why.
REASONS: dict[str, str] = tomllib.loads(files(__package__).joinpath("refused.toml").read_text("utf-8"))


def refusal(config: PreTrainedConfig, family: Family) -> str | None:
    """The reason why a model cannot be traced as a family, from its native config; None if no reason is known."""
    kind = getattr(config, "model_type", "")
    if kind in REASONS:
        return REASONS[kind]
    if kind == "big_bird" and config.attention_type != "original_full":
        return "block-sparse attention never computes a row of weights; set attention_type to 'original_full' in config.json"
    if kind == "nystromformer" and config.num_landmarks != config.segment_means_seq_len:
        return f"its queries do not attend to the positions of the sequence: they are {config.num_landmarks} landmarks"
    if family.head == "masked" and getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder model; observe it in your own loop with floatlens.observe"
    if family.kind == "arm" and kind in ("xlm", "flaubert") and not getattr(config, "causal", False):
        return "its config does not set it as causal, so it attends in both directions; use the family 'masked'"
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    encoder = kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_encoder_decoder", False)
    if family.kind == "arm" and encoder and getattr(config, "is_decoder", None) is False:
        return "its config does not set is_decoder, so it attends in both directions; use the family 'masked'"
    if shape(config)["layers"] and not attention_layers(config):
        return "it has no softmax attention: none of its layers is an attention layer"
    return None


def check_supported(name: str, config: PreTrainedConfig, family: Family) -> None:
    """Raise an error for a model that cannot be traced, before its weights are read."""
    if reason := refusal(config, family):
        kind = getattr(config, "model_type", type(config).__name__)
        raise FloatLensError(f"{name} is a {kind} model, which cannot be traced as {family.name}: {reason}")


def meta_model(family: Family, config: PreTrainedConfig) -> PreTrainedModel:
    """The model of a config on the meta device: its parameters have shapes and no memory."""
    try:
        with torch.device("meta"), quietly():
            return auto_class(family).from_config(config, trust_remote_code=False)
    except Exception as error:  # a model class raises anything for sizes that do not fit together
        raise FloatLensError(f"config.json does not describe a {family.name} model: {one_line(error)}") from error


def torch_dtype(dtype: str | torch.dtype, device_map: Any) -> str | torch.dtype:
    """The dtype to load in.

    >>> torch_dtype("bfloat16", None), torch_dtype("auto", None)
    (torch.bfloat16, torch.float32)
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    check_known("dtype", dtype, DTYPES)
    if dtype != "auto":
        return getattr(torch, dtype)
    on_cpu = device_map in (None, "cpu") or (device_map == "auto" and not torch.accelerator.is_available())
    return torch.float32 if on_cpu else "auto"


def bytes_per_step(layers: int, heads: int, kv_heads: int, positions: int) -> int:
    """Bytes that a default trace records per step: received, qk, qk_norm, qk_cos per head, value_norm per key/value head."""
    return layers * positions * (4 * heads + kv_heads) * 4


def describe(checkpoint: Checkpoint, *, dtype: str = "auto", positions: int = 512) -> dict[str, Any]:
    """Family, shape, mask token, memory and bytes per step; no weights are read."""
    config = checkpoint.native_config()
    about = shape(config)
    count = sum(p.numel() for p in meta_model(checkpoint.family, config).parameters())
    loaded = torch_dtype(dtype, None)
    size = torch.empty(0, dtype=loaded if isinstance(loaded, torch.dtype) else torch.float32).element_size()
    adapter = None
    if (folder := checkpoint.adapter) is not None:
        from floatlens.models.adapter import read_config

        lora = read_config(folder)
        adapter = {"folder": str(folder), "rank": lora["r"], "alpha": lora["lora_alpha"], "made_for": lora["base"]}
    mask = checkpoint.config.get("mask_token_id") or getattr(config, "mask_token_id", None)
    if mask is None and checkpoint.family.kind == "mdm" and checkpoint.family.mask_token:
        from floatlens.models.tokenizer import find_mask_id, load_tokenizer

        mask = find_mask_id(config, load_tokenizer(checkpoint))
    return {
        "name": checkpoint.name,
        "family": checkpoint.family.name,
        "family_reason": checkpoint.family_reason,
        "about": checkpoint.family.about,
        "class": type(config).__name__.removesuffix("Config"),
        "kind": checkpoint.family.kind,
        "attention": checkpoint.family.attention,
        "sampler": checkpoint.sampler,
        "block_length": checkpoint.block_length,
        **about,
        "mask_token_id": mask,
        "parameters": count,
        "adapter": adapter,
        "dtype": str(loaded).removeprefix("torch."),
        "weight_bytes": count * size,
        "record_positions": positions,
        "record_bytes_per_step": bytes_per_step(
            about["layers"] or 0, about["heads"] or 0, about["kv_heads"] or 0, positions
        ),
    }
