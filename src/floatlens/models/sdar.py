"""SDAR (JetLM/SDAR-1.7B-Chat and siblings): Qwen3, made block-causal, same keys; SDAR-MoE (JetLM/SDAR-30B-A3B-Chat and
siblings): the same of Qwen3-MoE, decoded as SDAR."""

from dataclasses import replace
from typing import Any

from floatlens.models.family import Config, Family, decoder, positive, refuse_windows, register_family

# The class defaults of the published config and of transformers differ, so each of these must be in the file.
EXPERTS = ("moe_intermediate_size", "num_experts", "num_experts_per_tok")


def block_length(config: Config) -> int:
    return positive(config, "block_size", 4)


def native(config: Config) -> Any:
    refuse_windows(config, "SDAR")
    block_length(config)
    if config.get("model_type") == "sdar_moe":
        return decoder("qwen3_moe", config, *EXPERTS)
    return decoder("qwen3", config)


SDAR = register_family(
    Family(
        name="sdar",
        about="block diffusion, Qwen3 made block-causal",
        example="JetLM/SDAR-1.7B-Chat",
        types=("sdar",),
        native=native,
        attention="block",
        cached=True,
        sampler="sdar",
        block_length=block_length,
    )
)
SDAR_MOE = register_family(
    replace(
        SDAR,
        name="sdar-moe",
        about="block diffusion, Qwen3-MoE made block-causal",
        example="JetLM/SDAR-30B-A3B-Chat",
        types=("sdar_moe",),
    )
)
