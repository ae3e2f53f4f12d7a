"""SDAR-MoE (JetLM/SDAR-30B-A3B-Chat and siblings): Qwen3-MoE, made block-causal, same keys, decoded as SDAR."""

from __future__ import annotations

from typing import TYPE_CHECKING

from floatlens.models.family import Config, Family, bidirectional, number, refuse_windows
from floatlens.models.registry import register_family
from floatlens.models.sdar import DROP, block_length

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# The class defaults of the published config and of transformers differ, so each of these must be in the file.
NEEDED = (
    "hidden_size",
    "moe_intermediate_size",
    "num_attention_heads",
    "num_experts",
    "num_experts_per_tok",
    "num_hidden_layers",
    "vocab_size",
)


def recognises(config: Config) -> bool:
    return config.get("model_type") == "sdar_moe"


def native(config: Config) -> PreTrainedConfig:
    from transformers import Qwen3MoeConfig

    refuse_windows(config, "SDAR-MoE")
    block_length(config)
    for name in NEEDED:
        number(config, name)
    made = Qwen3MoeConfig(**{key: value for key, value in config.items() if key not in DROP})
    return bidirectional(made, config)


FAMILY = register_family(
    Family(
        name="sdar-moe",
        about="block diffusion, Qwen3-MoE made block-causal",
        example="JetLM/SDAR-30B-A3B-Chat",
        recognises=recognises,
        native=native,
        attention="block",
        cached=True,
        sampler="sdar",
        block_length=block_length,
    )
)
