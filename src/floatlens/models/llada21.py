"""LLaDA2.1 (inclusionAI/LLaDA2.1-mini, -flash): the model of LLaDA2.0, with a sampler that edits written tokens.

Its config may be that of LLaDA2.0; then pass the family: `fl.load(..., family="llada2.1")`.
"""

from __future__ import annotations

from dataclasses import replace

from floatlens.models import llada2
from floatlens.models.family import Config
from floatlens.models.registry import register_family


def recognises(config: Config) -> bool:
    return config.get("model_type") == "llada21_moe"


FAMILY = register_family(
    replace(
        llada2.FAMILY,
        name="llada2.1",
        about="block diffusion that edits its tokens, GLM-4-MoE made block-causal",
        example="inclusionAI/LLaDA2.1-mini",
        recognises=recognises,
        sampler="llada2.1",
        other_samplers=("llada2",),
    )
)
