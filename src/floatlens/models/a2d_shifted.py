"""A2D with shifted logits: an autoregressive model made bidirectional, whose row j - 1 still writes token j, as in Dream.

Its config is that of the autoregressive model, so it is never recognised: pass the family, or load `smollm2-mdm`.
"""

from __future__ import annotations

from floatlens.models.a2d import native
from floatlens.models.family import Config, Family
from floatlens.models.registry import register_family


def recognises(config: Config) -> bool:
    return False


FAMILY = register_family(
    Family(
        name="a2d-shifted",
        about="masked diffusion, Llama or Qwen made bidirectional by an adapter, logits shifted by one",
        example="smollm2-mdm",
        recognises=recognises,
        native=native,
        sampler="a2d-shifted",
        other_samplers=("dream",),
        shifted=True,
    )
)
