"""LLaDA (GSAI-ML/LLaDA-8B-Base, -Instruct, LLaDA-1.5): Llama, made bidirectional.

LLaDA-MoE (inclusionAI/LLaDA-MoE-7B-A1B) has the same model type; it is recognised by the experts in its config.
"""

from typing import Any

from floatlens.models.family import Config, Family, decoder, number, plain_rope, refuse_other, register_family

BLOCK = r"^model\.transformer\.blocks\.(\d+)\."
LAYER = r"model.layers.\1."
RENAMES = {
    r"^model\.transformer\.wte\.": "model.embed_tokens.",
    r"^model\.transformer\.ln_f\.": "model.norm.",
    # ff_out means two things: the output head at the top level, the down projection inside a block.
    r"^model\.transformer\.ff_out\.": "lm_head.",
    BLOCK + r"attn_norm\.": LAYER + "input_layernorm.",
    BLOCK + r"ff_norm\.": LAYER + "post_attention_layernorm.",
    BLOCK + r"q_proj\.": LAYER + "self_attn.q_proj.",
    BLOCK + r"k_proj\.": LAYER + "self_attn.k_proj.",
    BLOCK + r"v_proj\.": LAYER + "self_attn.v_proj.",
    BLOCK + r"attn_out\.": LAYER + "self_attn.o_proj.",
    BLOCK + r"ff_proj\.": LAYER + "mlp.gate_proj.",
    BLOCK + r"up_proj\.": LAYER + "mlp.up_proj.",
    BLOCK + r"ff_out\.": LAYER + "mlp.down_proj.",
}

# Variants of the published code that a plain Llama does not support; a checkpoint that uses one is rejected.
PLAIN = {
    "block_type": "llama",
    "layer_norm_type": "rms",
    "activation_type": "silu",
    "rope": True,
    "alibi": False,
    "attention_layer_norm": False,
    "input_emb_norm": False,
    "scale_logits": False,
    "include_bias": False,
    "include_qkv_bias": False,
}


def is_llada(config: Config) -> bool:
    return config.get("model_type") == "llada" and "num_experts" not in config


def native_llada(config: Config) -> Any:
    refuse_other(config, PLAIN, "use a checkpoint in the published layout")
    heads, width = number(config, "n_heads"), number(config, "d_model")
    named = {
        "rms_norm_eps": 1e-5,
        **config,
        "hidden_size": width,
        "num_hidden_layers": number(config, "n_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": config.get("n_kv_heads") or (1 if config.get("multi_query_attention") else heads),
        "vocab_size": config.get("embedding_size") or number(config, "vocab_size"),
        "max_position_embeddings": number(config, "max_sequence_length"),
        "tie_word_embeddings": config.get("weight_tying", False),
    }
    inner = config.get("mlp_hidden_size") or number(config, "mlp_ratio") * width
    return decoder("llama", named, intermediate_size=inner, rope_parameters=plain_rope(config))


def is_moe(config: Config) -> bool:
    return config.get("model_type") in ("llada", "llada_moe") and "num_experts" in config


def native_moe(config: Config) -> Any:
    """Qwen3-MoE, made bidirectional; its routing weights are not renormalised."""
    expert = config.get("expert_intermediate_size") or number(config, "moe_intermediate_size")
    return decoder(
        "qwen3_moe",
        {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, **config},
        "num_experts",
        "num_experts_per_tok",
        head_dim=config.get("head_dim") or number(config, "hidden_size") // number(config, "num_attention_heads"),
        intermediate_size=config.get("dense_intermediate_size") or config.get("intermediate_size") or expert,
        moe_intermediate_size=expert,
        norm_topk_prob=bool(config.get("norm_topk_prob") or False),
        rope_parameters=plain_rope(config),
    )


LLADA = register_family(
    Family(
        name="llada",
        about="masked diffusion, Llama made bidirectional",
        example="GSAI-ML/LLaDA-8B-Instruct",
        recognises=is_llada,
        native=native_llada,
        renames=RENAMES,
        sampler="llada",
        positions="plain",
    )
)
LLADA_MOE = register_family(
    Family(
        name="llada-moe",
        about="masked diffusion, Qwen3-MoE made bidirectional",
        example="inclusionAI/LLaDA-MoE-7B-A1B-Instruct",
        recognises=is_moe,
        native=native_moe,
        sampler="llada",
    )
)
