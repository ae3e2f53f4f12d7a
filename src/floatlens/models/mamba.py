"""Mamba and Mamba-2 (state-spaces/mamba-130m-hf, mamba2 checkpoints in transformers' layout): autoregressive, no attention.

Traces record the implicit attention of the mixers: see `floatlens.attention.implicit`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from floatlens.models.family import Config, Family
from floatlens.models.registry import register_family

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

TYPES = ("mamba", "mamba2")


def recognises(config: Config) -> bool:
    return config.get("model_type") in TYPES


def with_heads(kind: type, config: Config, directions: int = 1) -> Any:
    """The native config with the number of heads in a trace: Mamba-2's own, or one for Mamba; per direction."""
    fields = {name: value for name, value in config.items() if name not in ("model_type", "architectures", "mixer")}
    made = kind(**fields)
    made.num_attention_heads = directions * getattr(made, "num_heads", 1)
    return made


def native(config: Config) -> PreTrainedConfig:
    from transformers import Mamba2Config, MambaConfig

    return with_heads(Mamba2Config if config["model_type"] == "mamba2" else MambaConfig, config)


FAMILY = register_family(
    Family(
        name="mamba",
        about="autoregressive without attention, Mamba and Mamba-2",
        example="state-spaces/mamba-130m-hf",
        recognises=recognises,
        native=native,
        kind="arm",
        attention="causal",
        sampler="autoregressive",
        shifted=True,
    )
)
