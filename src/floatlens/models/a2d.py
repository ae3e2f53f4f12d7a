"""Autoregressive checkpoints that write by diffusion, with the keys and the config of the model they were made from.

A2D (dllm-hub/Qwen3-0.6B-diffusion-mdlm and siblings) is recognised by its model type. No field of a config tells the others
apart, so pass the family: `a2d-block`, made block-causal (dllm-hub/Qwen3-0.6B-diffusion-bd3lm and siblings;
`fl.load(..., family="a2d-block", block_length=32)`), `a2d-shifted`, whose row j - 1 still writes token j, as in Dream
(`smollm2-mdm`), and `canvas` (`smollm2-canvas`).

The prompt of `canvas` is causal and runs without the adapter, so its keys and values are those of the unchanged model. The
last prompt token and the masks after it run with the adapter, and each sees the whole prompt and the whole canvas; row j - 1
writes position j. This is block diffusion with one block.
"""

from typing import Any

from floatlens.models.family import Config, Family, architecture, decoder, expect, refuse_windows, register_family

PREFIX = "a2d-"
BASES = ("qwen3", "qwen2", "llama")
BLOCK_LENGTH = 32  # of the published checkpoints of a2d-block


def recognises(config: Config) -> bool:
    return str(config.get("model_type", "")).lower().startswith(PREFIX) or architecture(config).startswith("A2D")


def native(config: Config) -> Any:
    """The config of the base model, made bidirectional; layers with a sliding window are refused."""
    refuse_windows(config, "A2D")
    base = str(config.get("model_type", "")).lower().removeprefix(PREFIX)
    expect(base in BASES, config, "model_type", f"one of {', '.join(BASES)}, on which A2D models are based")
    return decoder(base, config)


A2D = register_family(
    Family(
        name="a2d",
        about="masked diffusion, Qwen3, Qwen2 or Llama made bidirectional",
        example="dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1",
        recognises=recognises,
        native=native,
        sampler="llada",
    )
)
BLOCK = register_family(
    Family(
        name="a2d-block",
        about="block diffusion, Qwen3, Qwen2 or Llama made block-causal",
        example="dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1",
        native=native,
        attention="block",
        cached=True,
        sampler="bd3lm",
        block_length=lambda config: BLOCK_LENGTH,
    )
)
SHIFTED = register_family(
    Family(
        name="a2d-shifted",
        about="masked diffusion, Llama or Qwen made bidirectional by an adapter, logits shifted by one",
        example="smollm2-mdm",
        native=native,
        sampler="a2d-shifted",
        other_samplers=("dream",),
        shifted=True,
    )
)
CANVAS = register_family(
    Family(
        name="canvas",
        about="masked diffusion on a canvas after a causal prompt, any causal language model with an adapter",
        example="smollm2-canvas",
        recognises=lambda config: False,
        attention="block",
        cached=True,
        sampler="canvas",
        shifted=True,
        adapter="apart",
    )
)
