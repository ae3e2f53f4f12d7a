"""The networks of the bundled models and their initial weights.

They are native transformers classes: Llama for `tiny-arm` and `tiny-mdm`, Qwen2 for `tiny-dream`, which starts from the
trained weights of `tiny-arm`. The others start from the same weights for a seed; only mask and objective differ.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from recipes.tiny.prompts import BOS, EOS
from recipes.tiny.tokenizer import CONTEXT, shared, token_id

WIDTH, LAYERS, HEADS, INNER, THETA, EPSILON = 128, 6, 4, 256, 500_000.0, 1e-5
OFFSETS = (-1.0, 1.0, -2.0, 2.0)  # offsets that the heads of the first layer attend to initially


def sizes() -> dict:
    """The configuration that all three share."""
    return {
        "vocab_size": -(-shared().get_vocab_size() // 64) * 64,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": EPSILON,
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
        "tie_word_embeddings": True,
        "bos_token_id": token_id(BOS),
        "eos_token_id": token_id(EOS),
        "pad_token_id": token_id(EOS),
        "use_cache": True,
    }


def start(seed: int) -> LlamaForCausalLM:
    """A Llama with the initial weights of a seed."""
    model = LlamaForCausalLM(LlamaConfig(**sizes()))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                continue
            std = 0.1 if "embed_tokens" in name else weight.shape[1] ** -0.5
            if "o_proj" in name or "down_proj" in name:
                std *= 0.4 / (2 * LAYERS) ** 0.5
            weight.normal_(std=std, generator=generator)
        look_alike(model)
        look_around(model, generator)
    return model


def look_alike(model: LlamaForCausalLM) -> None:
    """Initialise the heads above layer 0 to attend to positions similar to the query: their q and k start equal.

    After layer 0 every token represents its neighbours, so a mask after a name is similar to the town after the same name.
    With this and `look_around` the bidirectional model learns plain recall as fast as the causal one (160 steps of 4 k
    tokens); with `look_around` alone it was at chance after 480.
    """
    for layer in model.model.layers[1:]:
        layer.self_attn.k_proj.weight.copy_(layer.self_attn.q_proj.weight)


def look_around(model: LlamaForCausalLM, generator: torch.Generator, amplitude: float = 0.5) -> None:
    """Initialise the heads of layer 0 to attend to the neighbours −1, +1, −2, +2, through RoPE.

    A causal mask gives information about positions; a bidirectional model must first learn "the token before me", and gets
    no gradient for it until matching works, which depends on it. So all embeddings get a common direction u; along u, q is
    constant and k is q rotated back by the offset, so that their product is largest where key − query = offset.
    """
    width = WIDTH // HEADS
    u_D = torch.randn(WIDTH, generator=generator)
    u_D /= u_D.norm()
    embedding = model.model.embed_tokens.weight
    embedding += embedding.norm(dim=1).mean() * u_D
    attention = model.model.layers[0].self_attn
    frequency = THETA ** -(torch.arange(0, width, 2).float() / width)
    amplitudes = torch.zeros(width // 2)
    amplitudes[: width // 4] = amplitude  # the high-frequency half distinguishes neighbours
    for head in range(HEADS):
        angle = -OFFSETS[head % 4] * frequency
        rows = slice(head * width, (head + 1) * width)
        attention.q_proj.weight[rows] += torch.outer(torch.cat([amplitudes, torch.zeros(width // 2)]), u_D)
        turned = torch.cat([amplitudes * angle.cos(), amplitudes * angle.sin()])
        attention.k_proj.weight[rows] += torch.outer(turned, u_D)


def adapt(arm: LlamaForCausalLM) -> Qwen2ForCausalLM:
    """The trained ARM as a Qwen2 with biases of zero: the same function until it is trained further."""
    model = Qwen2ForCausalLM(Qwen2Config(**sizes()))
    missing = model.load_state_dict(arm.state_dict(), strict=False).missing_keys
    with torch.no_grad():
        for name in missing:
            if name.endswith(".bias"):
                model.get_parameter(name).zero_()
    return model


def embedding(model: Any) -> Tensor:
    """The embedding (V, D), which is also the output layer."""
    return model.get_input_embeddings().weight


def hidden(model: Any, ids_BT: Tensor, causal: bool) -> Tensor:
    """The last hidden states (B, T, D), by transformers' own forward pass."""
    return model.model(input_ids=ids_BT, is_causal=causal, use_cache=False).last_hidden_state
