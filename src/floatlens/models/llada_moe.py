"""LLaDA-MoE (inclusionAI/LLaDA-MoE-7B-A1B): Qwen3-MoE, made bidirectional.

Its `model_type` is also `llada`; it is recognised by the experts in its config. Routing weights are not renormalised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from floatlens.models.family import Config, Family, bidirectional, number, token_ids
from floatlens.models.registry import register_family

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def recognises(config: Config) -> bool:
    return config.get("model_type") in ("llada", "llada_moe") and "num_experts" in config


def native(config: Config) -> PreTrainedConfig:
    from transformers import Qwen3MoeConfig

    width, heads = number(config, "hidden_size"), number(config, "num_attention_heads")
    expert = config.get("expert_intermediate_size") or number(config, "moe_intermediate_size")
    made = Qwen3MoeConfig(
        hidden_size=width,
        num_hidden_layers=number(config, "num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or width // heads,
        intermediate_size=config.get("dense_intermediate_size") or config.get("intermediate_size") or expert,
        moe_intermediate_size=expert,
        num_experts=number(config, "num_experts"),
        num_experts_per_tok=number(config, "num_experts_per_tok"),
        norm_topk_prob=bool(config.get("norm_topk_prob") or False),
        vocab_size=number(config, "vocab_size"),
        rms_norm_eps=number(config, "rms_norm_eps", 1e-5),
        rope_parameters={"rope_type": "default", "rope_theta": number(config, "rope_theta", 10000.0)},
        max_position_embeddings=number(config, "max_position_embeddings", 4096),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        **token_ids(config),
    )
    return bidirectional(made, config)


FAMILY = register_family(
    Family(
        name="llada-moe",
        about="masked diffusion, Qwen3-MoE made bidirectional",
        example="inclusionAI/LLaDA-MoE-7B-A1B-Instruct",
        recognises=recognises,
        native=native,
        sampler="llada",
    )
)
