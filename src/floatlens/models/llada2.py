"""LLaDA2.0 (inclusionAI/LLaDA2.0-mini, -flash): GLM-4-MoE, made block-causal.

Queries, keys and values are one matrix in the checkpoint, and are split; the rest is renamed. The config names neither the
mask token nor the block length: both are defaults of the published `generate`. LLaDA2.1 (inclusionAI/LLaDA2.1-mini, -flash)
is the same model with a sampler that edits written tokens; if its config is that of LLaDA2.0, pass the family "llada2.1".
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from floatlens.errors import FloatLensError
from floatlens.models.family import Config, Family, bidirectional, number, refuse_other, register_family, token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

MASK, END, BLOCK_LENGTH = 156895, 156892, 32  # defaults of the published generate()

RENAMES = {
    r"^model\.word_embeddings\.": "model.embed_tokens.",
    r"\.attention\.dense\.": ".self_attn.o_proj.",
    r"\.attention\.query_layernorm\.": ".self_attn.q_norm.",
    r"\.attention\.key_layernorm\.": ".self_attn.k_norm.",
    r"\.mlp\.gate\.expert_bias$": ".mlp.gate.e_score_correction_bias",
}
SPLITS = {"attention.query_key_value": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")}

# Variants that GLM-4-MoE does not support; a checkpoint that uses one is rejected. Other fields of the
# published config (norm_head, rotary_dim, router_dtype, use_rmsnorm, norm_topk_prob) are not read by its own code either.
PLAIN = {"use_bias": False, "score_function": "sigmoid", "rope_scaling": None, "use_sliding_window": False}
WITHOUT_BIAS = "the native GLM-4-MoE class has no such option; use a checkpoint without it, such as the published ones"


def recognises(config: Config) -> bool:
    return config.get("model_type") == "llada2_moe"


def native(config: Config) -> PreTrainedConfig:
    from transformers import Glm4MoeConfig

    if "use_bias" not in config:  # the default of the published class is True
        config = {**config, "use_bias": True}
    refuse_other(config, PLAIN, WITHOUT_BIAS)
    if number(config, "num_shared_experts") < 1:
        raise FloatLensError(
            f"config.json: field 'num_shared_experts' is {config['num_shared_experts']!r}; "
            f"expected 1 or more, since every GLM-4-MoE layer has a shared expert"
        )
    check_groups(config)
    heads, vocabulary = number(config, "num_attention_heads"), number(config, "vocab_size")
    per_token = number(config, "num_experts_per_tok")
    known = {
        "mask_token_id": MASK if vocabulary > MASK else None,
        "eos_token_id": END if vocabulary > END else None,
        **{name: value for name, value in config.items() if value is not None},
    }
    made = Glm4MoeConfig(
        hidden_size=number(config, "hidden_size"),
        num_hidden_layers=number(config, "num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or number(config, "hidden_size") // heads,
        hidden_act=config.get("hidden_act", "silu"),
        intermediate_size=number(config, "intermediate_size"),
        moe_intermediate_size=number(config, "moe_intermediate_size"),
        n_routed_experts=number(config, "num_experts"),
        n_shared_experts=number(config, "num_shared_experts"),
        num_experts_per_tok=per_token,
        n_group=number(config, "n_group"),
        topk_group=number(config, "topk_group"),
        routed_scaling_factor=number(config, "routed_scaling_factor"),
        first_k_dense_replace=number(config, "first_k_dense_replace"),
        norm_topk_prob=per_token > 1,
        attention_bias=bool(config.get("use_qkv_bias", False)),
        use_qk_norm=bool(config.get("use_qk_norm", True)),
        vocab_size=vocabulary,
        rms_norm_eps=number(config, "rms_norm_eps", 1e-6),
        rope_parameters={
            "rope_type": "default",
            "rope_theta": number(config, "rope_theta"),
            "partial_rotary_factor": number(config, "partial_rotary_factor", 1.0),
        },
        max_position_embeddings=number(config, "max_position_embeddings"),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        num_mtp_layers=0,
        **token_ids(known),
    )
    return bidirectional(made, known)


def check_groups(config: Config) -> None:
    """Raise an error for experts that cannot be grouped or chosen as the config asks."""
    experts, groups, kept = (number(config, name) for name in ("num_experts", "n_group", "topk_group"))
    if groups < 1 or experts % groups:
        raise FloatLensError(f"config.json: field 'n_group' is {groups}; expected a divisor of num_experts {experts}")
    if not 1 <= kept <= groups:
        raise FloatLensError(f"config.json: field 'topk_group' is {kept}; expected 1 to n_group {groups}")
    chosen, most = number(config, "num_experts_per_tok"), experts // groups * kept
    if not 1 <= chosen <= most:
        raise FloatLensError(
            f"config.json: field 'num_experts_per_tok' is {chosen}; expected 1 to {most}, the experts of {kept} groups"
        )


def block_length(config: Config) -> int:
    return BLOCK_LENGTH


LLADA2 = register_family(
    Family(
        name="llada2",
        about="block diffusion, GLM-4-MoE made block-causal",
        example="inclusionAI/LLaDA2.0-mini",
        recognises=recognises,
        native=native,
        renames=RENAMES,
        splits=SPLITS,
        attention="block",
        cached=True,
        sampler="llada2",
        other_samplers=("llada2.1",),
        block_length=block_length,
    )
)
LLADA21 = register_family(
    replace(
        LLADA2,
        name="llada2.1",
        about="block diffusion that edits its tokens, GLM-4-MoE made block-causal",
        example="inclusionAI/LLaDA2.1-mini",
        recognises=lambda config: config.get("model_type") == "llada21_moe",
        sampler="llada2.1",
        other_samplers=("llada2",),
    )
)
