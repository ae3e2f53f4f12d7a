"""A tiny random config for every causal and masked language model class of transformers.

Sizes are set by their usual names, wherever a config has them; what some class needs beside that is in `EXTRAS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

LAYERS, WIDTH, HEADS, VOCABULARY = 2, 32, 4, 96
SIZES: dict[str, Any] = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), LAYERS),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embedding_size", "emb_dim", "dim", "decoder_hidden_size"), WIDTH),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), HEADS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "ffn_intermediate_size"), 64),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim", "d_ff", "dff"), 64),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "top_k_experts"), 2),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group"), 1),
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 64),
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "sliding_window": 4,
    "attention_dropout": 0.0, "hidden_dropout": 0.0,
}  # fmt: skip
OWN_KEYS = {"num_key_value_heads": HEADS}  # multi-head latent attention has as many keys as queries
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
EXTRAS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        ("axk1", "axk2", "bailing_hybrid", "deepseek_v2", "deepseek_v3", "deepseek_v32", "esmc", "glm4_moe_lite",
         "glm_moe_dsa", "kimi_linear", "longcat_flash", "minicpm3", "youtu"), OWN_KEYS),
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8},
    "beam": {"n_group": 1, "topk_group": 1},
    "big_bird": {"attention_type": "original_full"},
    "blt": {"encoder_hash_byte_group_vocab": 16},
    "codegen": {"rotary_dim": 4},
    "cohere_compass_text": {"layer_types": ["full_attention", "sliding_attention"],
                            "rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}},
    "cpmant": {"prompt_types": 2, "prompt_length": 2},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10_000.0, "clip_qkv": 8.0},
             "ffn_config": {"hidden_size": WIDTH, "ffn_hidden_size": 64}},
    "dots1": OWN_KEYS | {"n_shared_experts": 1},
    "funnel": {"block_sizes": [1, 1], "num_hidden_layers": None},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": {"mamba_n_heads": 8, "mamba_d_head": 8, "layer_types": ["mamba", "attention"]},
    "inkling_text": {"swa_num_attention_heads": 8, "swa_num_key_value_heads": 4, "swa_head_dim": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "luke": {"entity_vocab_size": 16, "entity_emb_size": 16},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "moshi": {"sliding_window": 64},
    "neomme": {"head_dim": 16},
    "nemotron_h": {"layers_block_type": ["mamba", "full_attention"], "mamba_num_heads": 8, "mamba_head_dim": 8,
                   "n_groups": 2},
    "prophetnet": {"num_encoder_layers": 2, "num_decoder_layers": 2, "num_hidden_layers": None},
    "qwen4_exp_text": {
        "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 64,
        "indexer_compress_ratio": 1, "ngram_vocab_size_base": 64, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local", "lsh"]},
    "roc_bert": {"shape_vocab_size": 16, "pronunciation_vocab_size": 16},
    "xlm": {"causal": False},
    "xlnet": {"max_position_embeddings": None},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"]},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip

# (head, model type, class), for every class of transformers that writes text by a causal or a masked head
CLASSES: list[tuple[str, str, str]] = [
    *(("causal", model_type, str(name)) for model_type, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()),
    *(("masked", model_type, str(name)) for model_type, name in MODEL_FOR_MASKED_LM_MAPPING_NAMES.items()),
]


def tiny_config(kind: str, model_type: str) -> Any:
    """The config of a tiny model of this type, made for a causal or a masked head."""
    made = _tiny(CONFIG_MAPPING[model_type], EXTRAS.get(model_type, {}))
    both = model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not made.is_encoder_decoder
    if kind == "causal" and both and hasattr(made, "is_decoder"):
        made.is_decoder = True  # else an encoder with a causal head attends in both directions
    if kind == "causal" and model_type in ("xlm", "flaubert"):
        made.causal = True
    return made


def _tiny(kind: Any, extra: Mapping[str, Any]) -> Any:
    plain = kind()
    given: dict[str, Any] = {}
    known = {field.name for field in fields(kind)} | set(plain.__dict__)
    for name, value in SIZES.items():
        if name in known and name not in kind.attribute_map and not isinstance(getattr(kind, name, None), property):
            given[name] = value
    for name in kind.sub_configs or {}:
        own = getattr(plain, name, None)
        if own is not None and not isinstance(own, dict) and type(own).__name__ != "AutoConfig":
            given[name] = extra[name] if name in extra else _tiny(type(own), EXTRAS.get(own.model_type, {})).to_dict()
    for name in ("layer_types", "mlp_layer_types", "layers_block_type"):
        types = getattr(plain, name, None)
        if name in known and isinstance(types, list) and len(types) > LAYERS:
            given[name] = [types[0], next((t for t in types if t != types[0]), types[1])]
    given |= extra
    return kind(**{name: value for name, value in given.items() if value is not None})
