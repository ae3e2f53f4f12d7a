"""Canvas: an autoregressive model that writes its answer on a bidirectional canvas, denoised with an adapter.

The prompt is causal and runs without the adapter, so its keys and values are those of the unchanged model. The last prompt
token and the masks after it run with the adapter, and each sees the whole prompt and the whole canvas; row j - 1 writes
position j. This is block diffusion with one block. The config is that of the autoregressive model, so it is never
recognised: pass the family, or load `smollm2-canvas`.
"""

from __future__ import annotations

from floatlens.models.family import Config, Family
from floatlens.models.registry import register_family


def recognises(config: Config) -> bool:
    return False


FAMILY = register_family(
    Family(
        name="canvas",
        about="masked diffusion on a canvas after a causal prompt, any causal language model with an adapter",
        example="smollm2-canvas",
        recognises=recognises,
        attention="block",
        cached=True,
        sampler="canvas",
        shifted=True,
        adapter="apart",
    )
)
