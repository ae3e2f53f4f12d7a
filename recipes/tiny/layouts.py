"""Write a trained model to disk in the published layout of the corresponding model.

`tiny-arm` is written as Llama, `tiny-mdm` as LLaDA, `tiny-dream` as Dream, so that the same code loads these and the large
models; `tiny-ssm` as Mamba-2 with two mixers per layer.
"""

import json
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from floatlens.version import __version__
from recipes.tiny import ssm
from recipes.tiny.model import EPSILON, HEADS, INNER, LAYERS, THETA, WIDTH, sizes
from recipes.tiny.prompts import MASK
from recipes.tiny.tokenizer import CONTEXT, save, token_id

# native Llama name -> LLaDA's, within a block
LLADA_BLOCK = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm",
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.o_proj": "attn_out",
    "mlp.gate_proj": "ff_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out",
}
LLADA_TOP = {"model.embed_tokens.weight": "wte.weight", "model.norm.weight": "ln_f.weight"}


def llada_name(native: str) -> str:
    """LLaDA's name of a native Llama tensor.

    >>> llada_name("model.layers.3.mlp.down_proj.weight")
    'model.transformer.blocks.3.ff_out.weight'
    """
    if native in LLADA_TOP:
        return f"model.transformer.{LLADA_TOP[native]}"
    _, _, layer, rest = native.split(".", 3)
    return f"model.transformer.blocks.{layer}.{LLADA_BLOCK[rest.removesuffix('.weight')]}.weight"


def _config(kind: str) -> dict:
    native = sizes()
    tokens = {key: native[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    mask = token_id(MASK)
    common = {"torch_dtype": "float16", "floatlens_version": __version__}
    if kind == "mdm":
        return {
            "architectures": ["LLaDAModelLM"],
            "model_type": "llada",
            "d_model": WIDTH,
            "n_layers": LAYERS,
            "n_heads": HEADS,
            "n_kv_heads": HEADS,
            "mlp_hidden_size": INNER,
            "vocab_size": native["vocab_size"],
            "embedding_size": native["vocab_size"],
            "max_sequence_length": CONTEXT,
            "rope": True,
            "rope_theta": THETA,
            "rms_norm_eps": EPSILON,
            "layer_norm_type": "rms",
            "activation_type": "silu",
            "block_type": "llama",
            "include_bias": False,
            "include_qkv_bias": False,
            "weight_tying": True,
            "mask_token_id": mask,
            **tokens,
            **common,
        }
    if kind == "ssm":
        made = ssm.config().to_diff_dict()
        del made["time_step_limit"]  # the default; its infinity is not JSON
        made |= {"architectures": ["BiMamba2ForMaskedLM"], "model_type": "bimamba", "mixer": "mamba2"}
        return {**made, "max_position_embeddings": CONTEXT, "mask_token_id": mask, **tokens, **common}
    named = {key: value for key, value in native.items() if key not in ("rope_parameters",)}
    named |= {"rope_theta": THETA, "hidden_act": "silu", "attention_dropout": 0.0, **common}
    if kind == "dream":
        return {
            "architectures": ["DreamModel"],
            "model_type": "Dream",
            "mask_token_id": mask,
            **named,
            "use_cache": False,
            "use_sliding_window": False,
        }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "head_dim": WIDTH // HEADS,
        **named,
    }


def write(kind: str, weights: dict[str, Tensor], folder: Path) -> None:
    """Write config.json, generation_config.json, model.safetensors (in float16) and the tokenizer of a trained model."""
    folder.mkdir(parents=True, exist_ok=True)
    save(folder)
    config = _config(kind)
    tensors = {name: value.half().contiguous() for name, value in weights.items() if name != "lm_head.weight"}
    if kind == "mdm":
        tensors = {llada_name(name): value for name, value in tensors.items()}
    save_weights(tensors, folder)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokens = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    generation = {"_from_model_config": True, **tokens}
    if kind == "dream":
        generation |= {"mask_token_id": None, "alg": "origin", "alg_temp": None, "eps": 0.001, "steps": 512}
    if kind not in ("mdm", "ssm"):
        (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def save_weights(tensors: dict[str, Tensor], folder: Path) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def round_weights(folder: Path) -> None:
    """Round the weights of a published model to float16 in place, as `write` does for a new one."""
    tensors = load_file(folder / "model.safetensors")
    save_weights({name: value.half() for name, value in tensors.items()}, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": "float16"}, indent=2) + "\n")
