"""Family: the facts that FloatLens needs about a kind of checkpoint, and the families by name.

Every family file defines the same things in the same order: how a config is recognised, which native transformers config
it becomes, how its keys are renamed, what kind of model it is, and how it decodes; and registers it with one line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from floatlens.errors import FloatLensError
from floatlens.registry import Registry

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Family:
    """A kind of checkpoint: how it is recognised and loaded, what kind of model it is, and how it decodes."""

    name: str
    about: str  # one line about it
    example: str  # a Hub id
    types: tuple[str, ...] = ()  # the values of model_type in its config.json, in lower case
    recognises: Callable[[Config], bool] | None = None  # whether it is of this family, if its type does not tell
    # Converts the raw config to a native transformers config; None if transformers reads it directly.
    native: Callable[[Config], Any] | None = None
    renames: Mapping[str, str] = field(default_factory=dict)  # regular expressions for keys, and their replacements
    # Fused tensors of the checkpoint, and the native tensors that each is split into along its first dim.
    splits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    head: Literal["causal", "masked", "multimodal"] = "causal"  # the transformers class to load
    tokenizer: str | None = None  # native tokenizer class, where the published tokenizer is remote code
    kind: Literal["mdm", "arm"] = "mdm"  # masked diffusion (denoises masks) or autoregressive (appends tokens)
    # Which keys a query may see: all, those up to its own position, those of its own block and earlier blocks, or those up
    # to its own position in one half of the heads and from its own position in the other half.
    attention: Literal["bidirectional", "causal", "block", "two-way"] = "bidirectional"
    cached: bool = False  # whether a step reads the keys and values of earlier positions from a cache
    sampler: str = "llada"
    other_samplers: tuple[str, ...] = ()  # that a user may choose
    block_length: Callable[[Config], int] | None = None  # for a block model: the block length of a checkpoint
    shifted: bool = False  # whether the logits that predict position j are in row j - 1, as in an autoregressive model
    positions: Literal["plain", "real"] = "real"  # a left-padded batch counts the padding, or starts at the first token
    mask_token: bool = True  # whether a masked diffusion model has a token that means "not yet written"
    adapter: Literal["merged", "apart"] = (
        "merged"  # apart: kept beside the weights, so that a sampler can switch it off
    )
    other_mode: str = ""  # family of the other kind that the same checkpoints have, if they write both ways
    because: str = ""  # how its checkpoints are recognised; by default by model_type and architecture

    def native_key(self, key: str) -> str:
        """The name of a checkpoint's tensor in the native model."""
        for pattern, replacement in self.renames.items():
            key = re.sub(pattern, replacement, key)
        return key


# Fields of published configs about code, training or inference.
NOT_OF_THE_MODEL = (
    "architectures", "auto_map", "block_size", "debug", "dtype", "ep_size", "fuse_cross_entropy", "is_causal",
    "micro_forward", "model_type", "skip_checkpoint", "torch_dtype", "transformers_version", "use_deepep",
)  # fmt: skip
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
MODULES = ("a2d", "diffusion_gemma", "dream", "generic", "llada", "llada2", "mamba", "nemotron", "sdar")
FAMILIES: Registry[Family] = Registry("family", "floatlens.models", MODULES)


def register_family(family: Family, *, priority: int = 0) -> Family:
    """Register a family and return it; a higher priority is asked first: `masked` has -10, `causal` -20."""
    return FAMILIES.add(family.name, family, priority=priority, source=family.recognises or family.native)


def family_of(config: Config, where: str = "config.json") -> Family:
    """The first family that recognises a checkpoint's config.

    >>> family_of({"model_type": "Dream"}).name, family_of({"model_type": "gpt2"}).name
    ('dream', 'causal')
    """
    kind = config.get("model_type")
    if not isinstance(kind, str | None):
        raise FloatLensError(f"{where}: field 'model_type' is {kind!r}; expected a string")
    for family in FAMILIES.values():
        if (kind or "").lower() in family.types or (family.recognises is not None and family.recognises(config)):
            return family
    raise FloatLensError(
        f"{where}: field 'model_type' is {kind!r} (architecture {architecture(config) or None!r}), "
        f"which belongs to none of the families {', '.join(FAMILIES)}"
    )


def auto_class(family: Family) -> Any:
    """The transformers class that loads a family's checkpoints."""
    import transformers

    names = {"causal": "CausalLM", "masked": "MaskedLM", "multimodal": "ImageTextToText"}
    return getattr(transformers, f"AutoModelFor{names[family.head]}")


def expect(right: bool, config: Config, name: str, expected: str) -> None:
    """Raise an error for a field of a config, unless it is right."""
    if not right:
        found = repr(config[name]) if name in config else "missing"
        raise FloatLensError(f"config.json: field {name!r} is {found}; expected {expected}")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(config: Config, name: str, default: float | None = None) -> Any:
    """A numeric field of a config; raise an error if it is missing or not a number."""
    value = config.get(name, default)
    expect(is_number(value), config, name, "a number")
    return value


def positive(config: Config, name: str, default: int) -> int:
    """An integer of 1 or more in a config."""
    value = number(config, name, default)
    expect(value % 1 == 0 and value >= 1, config, name, "an integer of 1 or more")
    return int(value)


def token_ids(config: Config) -> dict[str, Any]:
    """The special token ids that a config names, for the native config."""
    return {name: config.get(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}


def bidirectional(native: Any, config: Config) -> Any:
    """Mark a native decoder config as bidirectional, and copy the mask token."""
    native.is_causal = False
    native.use_cache = False
    native.mask_token_id = config.get("mask_token_id")
    return native


def refuse_other(config: Config, supported: Mapping[str, Any], way_out: str) -> None:
    """Raise an error for a config with values that the native class does not support."""
    for name, value in supported.items():
        expect(config.get(name) in (value, None), config, name, f"{value!r}, the only one that is supported; {way_out}")


def refuse_windows(config: Config, name: str) -> None:
    """Raise an error for a config with sliding windows, of a family that has full attention in every layer."""
    way_out = f"{name} models have full attention in every layer, so use a checkpoint without it"
    refuse_other(config, {"use_sliding_window": False}, way_out)
    full = all(kind == "full_attention" for kind in config.get("layer_types") or ())
    expect(full, config, "layer_types", f"only 'full_attention'; {way_out}")


def native_config(kind: str, config: Config, *numbers: str, **fields: Any) -> Any:
    """The config of a native decoder: the fields of a published config, and `fields` in place of or besides them.

    `numbers` are the fields that the published config must have in addition to the sizes of any decoder.
    """
    from transformers import AutoConfig

    for name in (*SIZES, *numbers):
        number(config, name)
    same = {name: value for name, value in config.items() if name not in NOT_OF_THE_MODEL}
    heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    return AutoConfig.for_model(kind, **same | {"num_key_value_heads": heads} | token_ids(config) | fields)


def decoder(kind: str, config: Config, *numbers: str, **fields: Any) -> Any:
    """The native config of a decoder that is made bidirectional; see `native_config`."""
    return bidirectional(native_config(kind, config, *numbers, **fields), config)


def plain_rope(config: Config, **more: Any) -> dict[str, Any]:
    """Rotary embeddings without scaling, with the base of a published config."""
    return {"rope_type": "default", "rope_theta": number(config, "rope_theta", 10000.0), **more}


def architecture(config: Config) -> str:
    """The first architecture that a config names, or an empty string."""
    names = config.get("architectures") or [""]
    return str(names[0]) if isinstance(names, list) and names else ""
