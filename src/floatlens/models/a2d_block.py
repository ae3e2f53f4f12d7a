"""A2D with blocks (dllm-hub/Qwen3-0.6B-diffusion-bd3lm and siblings): an autoregressive checkpoint made block-causal.

No field of the config distinguishes it from a bidirectional A2D model, and none gives its block length, so it is
never recognised: `fl.load(..., family="a2d-block", block_length=32)`.
"""

from __future__ import annotations

from floatlens.models.a2d import native
from floatlens.models.family import Config, Family
from floatlens.models.registry import register_family

BLOCK_LENGTH = 32  # of the published checkpoints


def recognises(config: Config) -> bool:
    return False


FAMILY = register_family(
    Family(
        name="a2d-block",
        about="block diffusion, Qwen3, Qwen2 or Llama made block-causal",
        example="dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1",
        recognises=recognises,
        native=native,
        attention="block",
        cached=True,
        sampler="bd3lm",
        block_length=lambda config: BLOCK_LENGTH,
    )
)
