"""Bidirectional Mamba: a masked diffusion model without attention, one mixer forwards and one backwards in every layer.

A checkpoint's config.json has the fields of Mamba or Mamba-2, with `"model_type": "bimamba"` and `"mixer": "mamba"` or
`"mamba2"`; its keys are those of transformers' mixers below `backbone.layers.N.mixer.mamba_fwd` and `mamba_rev`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from floatlens.errors import FloatLensError
from floatlens.models.family import Config, Family
from floatlens.models.mamba import with_heads
from floatlens.models.registry import register_family

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

MIXERS = ("mamba", "mamba2")


def recognises(config: Config) -> bool:
    return config.get("model_type") == "bimamba"


def native(config: Config) -> PreTrainedConfig:
    from floatlens.models.bimamba_network import BiMamba2Config, BiMambaConfig

    mixer = config.get("mixer")
    if mixer not in MIXERS:
        raise FloatLensError(f"config.json: field 'mixer' is {mixer!r}; expected one of {', '.join(MIXERS)}")
    made = with_heads(BiMamba2Config if mixer == "mamba2" else BiMambaConfig, config, directions=2)
    made.is_causal = False
    made.mask_token_id = config.get("mask_token_id")
    return made


FAMILY = register_family(
    Family(
        name="bimamba",
        about="masked diffusion without attention, Mamba in both directions",
        example="tiny-ssm",
        recognises=recognises,
        native=native,
        head="masked",
        attention="two-way",
        sampler="llada",
        positions="plain",
    )
)
