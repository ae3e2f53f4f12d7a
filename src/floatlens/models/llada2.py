"""LLaDA2.0 (inclusionAI/LLaDA2.0-mini, -flash): GLM-4-MoE, made block-causal.

Queries, keys and values are one matrix in the checkpoint, and are split; the rest is renamed. The config names neither the
mask token nor the block length: both are defaults of the published `generate`. LLaDA2.1 (inclusionAI/LLaDA2.1-mini, -flash)
is the same model with a sampler that edits written tokens; if its config is that of LLaDA2.0, pass the family "llada2.1".
"""

from dataclasses import replace
from typing import Any

from floatlens.models.family import Config, Family, decoder, expect, number, plain_rope, refuse_other, register_family

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
NUMBERS = (
    "first_k_dense_replace", "intermediate_size", "max_position_embeddings", "moe_intermediate_size", "rope_theta",
    "routed_scaling_factor",
)  # fmt: skip
WITHOUT_BIAS = "the native GLM-4-MoE class has no such option; use a checkpoint without it, such as the published ones"


def native(config: Config) -> Any:
    refuse_other({"use_bias": True, **config}, PLAIN, WITHOUT_BIAS)  # the default of the published class is True
    shared = number(config, "num_shared_experts")
    expect(shared >= 1, config, "num_shared_experts", "1 or more, since every GLM-4-MoE layer has a shared expert")
    check_groups(config)
    known = {"mask_token_id": MASK, "eos_token_id": END} if number(config, "vocab_size") > MASK else {}
    known |= {name: value for name, value in config.items() if value is not None}
    per_token = number(config, "num_experts_per_tok")
    return decoder(
        "glm4_moe",
        known,
        *NUMBERS,
        head_dim=config.get("head_dim") or number(config, "hidden_size") // number(config, "num_attention_heads"),
        n_routed_experts=number(config, "num_experts"),
        n_shared_experts=shared,
        norm_topk_prob=per_token > 1,
        attention_bias=bool(config.get("use_qkv_bias", False)),
        use_qk_norm=bool(config.get("use_qk_norm", True)),
        rope_parameters=plain_rope(config, partial_rotary_factor=number(config, "partial_rotary_factor", 1.0)),
        num_nextn_predict_layers=0,
    )


def check_groups(config: Config) -> None:
    """Raise an error for experts that cannot be grouped or chosen as the config asks."""
    experts, groups, kept = (number(config, name) for name in ("num_experts", "n_group", "topk_group"))
    divides = groups >= 1 and not experts % groups
    expect(divides, config, "n_group", f"a divisor of num_experts {experts}")
    expect(1 <= kept <= groups, config, "topk_group", f"1 to n_group {groups}")
    chosen, most = number(config, "num_experts_per_tok"), experts // groups * kept
    expect(1 <= chosen <= most, config, "num_experts_per_tok", f"1 to {most}, the experts of {kept} groups")


LLADA2 = register_family(
    Family(
        name="llada2",
        about="block diffusion, GLM-4-MoE made block-causal",
        example="inclusionAI/LLaDA2.0-mini",
        types=("llada2_moe",),
        native=native,
        renames=RENAMES,
        splits=SPLITS,
        attention="block",
        cached=True,
        sampler="llada2",
        other_samplers=("llada2.1",),
        block_length=lambda config: BLOCK_LENGTH,
    )
)
LLADA21 = register_family(
    replace(
        LLADA2,
        name="llada2.1",
        about="block diffusion that edits its tokens, GLM-4-MoE made block-causal",
        example="inclusionAI/LLaDA2.1-mini",
        types=("llada21_moe",),
        sampler="llada2.1",
        other_samplers=("llada2",),
    )
)
