"""Nemotron-Labs-Diffusion (nvidia/Nemotron-Labs-Diffusion-3B, -8B, -14B): Ministral 3, autoregressive or diffusion.

One set of weights writes both ways: the family `nemotron` denoises a block on a causal cache of what stands before it,
`nemotron-arm` appends tokens. The config does not tell them apart: `fl.load(name, mode="arm")` chooses the second.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from floatlens.errors import FloatLensError
from floatlens.models import family
from floatlens.models.family import Config, Family, expect, number, register_family

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

SAME = (
    "attention_dropout", "head_dim", "hidden_act", "hidden_size", "initializer_range", "intermediate_size",
    "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps",
    "rope_parameters", "tie_word_embeddings", "vocab_size",
)  # fmt: skip
ROPE = (
    "beta_fast", "beta_slow", "factor", "llama_4_scaling_beta", "mscale", "mscale_all_dim",
    "original_max_position_embeddings", "rope_theta", "rope_type", "type",
)  # fmt: skip
RENAMES = {r"^encoder\.": "model.", r"^diffusion_head\.": "lm_head."}


def block_length(config: Config) -> int:
    return family.positive(config, "block_size", 32)


def causal(config: Config) -> PreTrainedConfig:
    """The native config of the autoregressive model."""
    from transformers import Ministral3Config

    expected = {"dlm_paradigm": "bidirectional", "attention_bias": False, "mlp_bias": False, "sliding_window": None}
    family.refuse_other(config, expected, "use a published checkpoint of the bidirectional paradigm")
    for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        number(config, name)
    rope = config.get("rope_parameters")
    expect(isinstance(rope, dict), config, "rope_parameters", "an object")
    if unknown := [name for name in rope or () if name not in ROPE]:
        raise FloatLensError(f"config.json: field 'rope_parameters' has {unknown[0]!r}, which is not supported")
    return Ministral3Config(**{name: config[name] for name in SAME if name in config}, **family.token_ids(config))


def native(config: Config) -> PreTrainedConfig:
    block_length(config)
    made: PreTrainedConfig = family.bidirectional(causal(config), config)
    return made


FAMILY = register_family(
    Family(
        name="nemotron",
        about="block diffusion on a causal cache, Ministral 3; as NAME:arm autoregressive",
        example="nvidia/Nemotron-Labs-Diffusion-8B",
        types=("nemotron_labs_diffusion",),
        native=native,
        renames=RENAMES,
        attention="block",
        cached=True,
        sampler="nemotron",
        other_samplers=("nemotron-spec",),
        block_length=block_length,
        other_mode="nemotron-arm",
    )
)

AUTOREGRESSIVE = register_family(
    replace(
        FAMILY,
        name="nemotron-arm",
        about="the same weights as nemotron, autoregressive",
        types=(),
        native=causal,
        kind="arm",
        attention="causal",
        sampler="autoregressive",
        other_samplers=(),
        block_length=None,
        shifted=True,
        other_mode="nemotron",
    )
)
