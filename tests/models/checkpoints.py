"""Tiny random checkpoints, written in the layouts in which they are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from tests.small_tokenizers import byte_level

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
ABSOLUTE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
MASK = 63

# name: native config class and the fields that make the case what it is
NATIVE: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", SIZES),
    "qwen2": ("Qwen2Config", SIZES),
    "qwen3": ("Qwen3Config", SIZES | {"head_dim": 8}),
    "mistral-window": ("MistralConfig", SIZES | {"sliding_window": 6}),
    "gemma2-softcap": (
        "Gemma2Config",
        SIZES | {"head_dim": 8, "sliding_window": 6, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 8},
    ),
    "gpt2": (
        "GPT2Config",
        {"vocab_size": 64, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128, "eos_token_id": 2},
    ),
    "gpt-oss-sinks": (
        "GptOssConfig",
        SIZES | {"head_dim": 8, "sliding_window": 6, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    "bert": ("BertConfig", ABSOLUTE),
    "roberta": ("RobertaConfig", ABSOLUTE | {"pad_token_id": 1}),
    "modernbert": (
        "ModernBertConfig",
        ABSOLUTE | {"local_attention": 8, "global_attn_every_n_layers": 2, "pad_token_id": 0},
    ),
}
MASKED = ("bert", "roberta", "modernbert")


def native(folder: Path, name: str, seed: int = 0) -> Path:
    """A model that transformers reads as it is."""
    torch.manual_seed(seed)
    kind, fields = NATIVE[name]
    config = getattr(transformers, kind)(**fields)
    auto = transformers.AutoModelForMaskedLM if name in MASKED else transformers.AutoModelForCausalLM
    model = auto.from_config(config)
    roughen(model)
    model.save_pretrained(folder)
    if name in MASKED:
        edit_config(folder, mask_token_id=MASK)
    return folder


def roughen(model: torch.nn.Module) -> None:
    """Larger weights than the usual start, so that attention is not nearly uniform."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6.0)


def edit_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def a2d(folder: Path) -> Path:
    """Qwen3 made bidirectional: same keys, another model type."""
    native(folder, "qwen3")
    edit_config(folder, model_type="a2d-qwen3", architectures=["A2DQwen3LMHeadModel"], mask_token_id=MASK)
    return folder


def sdar(folder: Path) -> Path:
    """SDAR: Qwen3's keys, another model type, the block length in its config."""
    native(folder, "qwen3")
    fields = {"model_type": "sdar", "architectures": ["SDARForCausalLM"], "mask_token_id": MASK, "block_size": 4}
    edit_config(folder, **fields, fuse_cross_entropy=True, rope_theta=10000.0)
    return folder


def llada2(folder: Path) -> Path:
    """LLaDA2: GLM-4-MoE's weights with queries, keys and values in one matrix, under its own keys and field names."""
    torch.manual_seed(0)
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "n_shared_experts": 1}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    fields = SIZES | experts | {"head_dim": 8, "moe_intermediate_size": 16, "use_qk_norm": True, "num_mtp_layers": 0}
    config = transformers.Glm4MoeConfig(**fields, rope_parameters=rope, routed_scaling_factor=2.5)
    model = transformers.AutoModelForCausalLM.from_config(config)
    torch.nn.init.normal_(model.model.layers[1].mlp.gate.weight)
    torch.nn.init.normal_(model.model.layers[2].mlp.gate.weight)
    roughen(model)
    names = {"embed_tokens": "word_embeddings", "self_attn.o_proj": "attention.dense"}
    names |= {"self_attn.q_norm": "attention.query_layernorm", "self_attn.k_norm": "attention.key_layernorm"}
    names |= {"e_score_correction_bias": "expert_bias"}
    tensors: dict[str, torch.Tensor] = {}
    for key, value in model.state_dict().items():
        if "mlp.experts.gate_up_proj" in key or "mlp.experts.down_proj" in key:
            for number, matrix in enumerate(value):
                parts = (
                    {"gate_proj": matrix[:16], "up_proj": matrix[16:]} if "gate_up" in key else {"down_proj": matrix}
                )
                at = key[: key.index(".experts.") + 9]
                tensors |= {f"{at}{number}.{name}.weight": part.contiguous() for name, part in parts.items()}
        elif any(name in key for name in ("q_proj", "k_proj", "v_proj")):
            if "q_proj" in key:
                three = [model.state_dict()[key.replace("q_proj", name)] for name in ("q_proj", "k_proj", "v_proj")]
                tensors[key.replace("self_attn.q_proj", "attention.query_key_value")] = torch.cat(three)
        else:
            for native_name, published in names.items():
                key = key.replace(native_name, published)
            tensors[key] = value.contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    published_fields = SIZES | {
        "model_type": "llada2_moe", "architectures": ["LLaDA2MoeModelLM"], "num_experts": 4, "num_experts_per_tok": 2,
        "n_group": 2, "topk_group": 1, "num_shared_experts": 1, "head_dim": 8, "moe_intermediate_size": 16,
        "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "score_function": "sigmoid", "use_bias": False,
        "use_qkv_bias": False, "use_qk_norm": True, "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-5, "norm_topk_prob": True, "mask_token_id": MASK, "rope_scaling": None,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(published_fields))
    return folder


def diffusion_gemma(folder: Path, canvas: int = 8) -> Path:
    """DiffusionGemma with two sliding layers and a full one, whose heads are of another number and size."""
    text = {
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 16, "num_global_key_value_heads": 1,
        "max_position_embeddings": 256, "sliding_window": 6, "num_experts": 4, "top_k_experts": 2,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "moe_intermediate_size": 16,
        "eos_token_id": 1, "pad_token_id": 0, "bos_token_id": 2,
    }  # fmt: skip
    vision = {"model_type": "gemma4_vision", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 8}
    images = {"image_token_id": 60, "boi_token_id": 61, "eoi_token_id": 62}
    torch.manual_seed(0)
    config = transformers.DiffusionGemmaConfig(text_config=text, vision_config=vision, canvas_length=canvas, **images)
    model = transformers.DiffusionGemmaForBlockDiffusion(config)
    roughen(model)
    model.save_pretrained(folder)
    return folder


def llada_moe(folder: Path) -> Path:
    """LLaDA-MoE: Qwen3-MoE's keys, its own field names, the model type of LLaDA."""
    torch.manual_seed(0)
    fields = SIZES | {"head_dim": 8, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
    config = transformers.Qwen3MoeConfig(**fields, norm_topk_prob=False)
    model = transformers.AutoModelForCausalLM.from_config(config)
    roughen(model)
    model.save_pretrained(folder)
    published = {k: v for k, v in SIZES.items()} | {
        "model_type": "llada",
        "architectures": ["LLaDAMoEModelLM"],
        "auto_map": {"AutoModel": "modeling_lladamoe.LLaDAMoEModelLM"},
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "expert_intermediate_size": 16,
        "norm_topk_prob": None,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "mask_token_id": MASK,
    }
    (folder / "config.json").write_text(json.dumps(published))
    return folder


def llada(
    folder: Path,
    *,
    shards: int = 1,
    tied: bool = False,
    width: int = 32,
    layers: int = 3,
    heads: int = 4,
    vocab: int = 64,
    context: int = 128,
    mlp: int | None = None,
) -> Path:
    """LLaDA's published fields and keys, in one file or several."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    inner = 3 * width // 2 if mlp is None else mlp
    shapes = {"q_proj": (width, width), "k_proj": (width, width), "v_proj": (width, width), "attn_out": (width, width)}
    shapes |= {"ff_proj": (inner, width), "up_proj": (inner, width), "ff_out": (width, inner)}
    tensors = {
        "model.transformer.wte.weight": torch.randn(vocab, width),
        "model.transformer.ln_f.weight": torch.ones(width),
    }
    if not tied:
        tensors["model.transformer.ff_out.weight"] = torch.randn(vocab, width)
    for layer in range(layers):
        block = f"model.transformer.blocks.{layer}."
        tensors |= {f"{block}{name}.weight": torch.randn(shape) * 1.7 * width**-0.5 for name, shape in shapes.items()}
        tensors |= {f"{block}{name}.weight": torch.ones(width) for name in ("attn_norm", "ff_norm")}
    config = {
        "model_type": "llada", "architectures": ["LLaDAModelLM"], "d_model": width, "n_layers": layers, "n_heads": heads,
        "n_kv_heads": heads, "mlp_hidden_size": inner, "vocab_size": vocab, "embedding_size": vocab, "rms_norm_eps": 1e-5,
        "rope_theta": 5e5, "max_sequence_length": context, "weight_tying": tied, "mask_token_id": vocab - 1,
        "eos_token_id": 2, "pad_token_id": 2, "block_type": "llama",
        "auto_map": {"AutoConfig": "configuration_llada.LLaDAConfig"},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    names = sorted(tensors)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    weight_map = {}
    for number in range(shards):
        part = {name: tensors[name] for name in names[number::shards]}
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def dream(folder: Path) -> Path:
    """Dream's published fields: Qwen2's keys, another model type, a tokenizer that is published as remote code."""
    native(folder, "qwen2")
    edit_config(folder, model_type="Dream", architectures=["DreamModel"], mask_token_id=MASK, rope_theta=10000.0)
    return folder


def readable(folder: Path, kind: str = "llama", seed: int = 0) -> Path:
    """A random model with a byte-level tokenizer, so that it can be asked; `kind` is its model type."""
    tokenizer = byte_level()
    torch.manual_seed(seed)
    architecture = "Qwen3" if kind == "sdar" else "Llama"
    config = getattr(transformers, f"{architecture}Config")(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id, pad_token_id=tokenizer.pad_token_id, initializer_range=0.5,
    )  # fmt: skip
    getattr(transformers, f"{architecture}ForCausalLM")(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    written |= {"model_type": kind, "mask_token_id": tokenizer.mask_token_id}
    (folder / "config.json").write_text(json.dumps(written))
    return folder
