"""Nemotron-Labs-Diffusion (nvidia/Nemotron-Labs-Diffusion-3B, -8B, -14B): Ministral 3, autoregressive or diffusion.

One set of weights writes both ways: the family `nemotron` denoises a block on a causal cache of what stands before it,
`nemotron-arm` appends tokens. The config does not tell them apart: `fl.load(name, mode="arm")` chooses the second.
"""

from dataclasses import replace
from typing import Any

from floatlens.errors import FloatLensError
from floatlens.models import family
from floatlens.models.family import Config, Family, expect, register_family

ROPE = (
    "beta_fast", "beta_slow", "factor", "llama_4_scaling_beta", "mscale", "mscale_all_dim",
    "original_max_position_embeddings", "rope_theta", "rope_type", "type",
)  # fmt: skip
RENAMES = {r"^encoder\.": "model.", r"^diffusion_head\.": "lm_head."}


def block_length(config: Config) -> int:
    return family.positive(config, "block_size", 32)


def causal(config: Config) -> Any:
    """The native config of the autoregressive model."""
    expected = {"dlm_paradigm": "bidirectional", "attention_bias": False, "mlp_bias": False, "sliding_window": None}
    family.refuse_other(config, expected, "use a published checkpoint of the bidirectional paradigm")
    rope = config.get("rope_parameters")
    expect(isinstance(rope, dict), config, "rope_parameters", "an object")
    if unknown := [name for name in rope or () if name not in ROPE]:
        raise FloatLensError(f"config.json: field 'rope_parameters' has {unknown[0]!r}, which is not supported")
    return family.native_config("ministral3", config)


def native(config: Config) -> Any:
    block_length(config)
    return family.bidirectional(causal(config), config)


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
