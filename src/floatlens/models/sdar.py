"""SDAR (JetLM/SDAR-1.7B-Chat and siblings): Qwen3, made block-causal, same keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from floatlens.models.family import Config, Family, bidirectional, number, positive, refuse_windows
from floatlens.models.registry import register_family

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# Fields of the published config about training or inference, not about the model.
DROP = (
    "architectures",
    "auto_map",
    "block_size",
    "debug",
    "dtype",
    "ep_size",
    "fuse_cross_entropy",
    "is_causal",
    "micro_forward",
    "model_type",
    "skip_checkpoint",
    "torch_dtype",
    "transformers_version",
    "use_deepep",
)


def recognises(config: Config) -> bool:
    return config.get("model_type") == "sdar"


def block_length(config: Config) -> int:
    return positive(config, "block_size", 4)


def native(config: Config) -> PreTrainedConfig:
    from transformers import Qwen3Config

    refuse_windows(config, "SDAR")
    block_length(config)
    for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        number(config, name)
    made = Qwen3Config(**{key: value for key, value in config.items() if key not in DROP})
    return bidirectional(made, config)


FAMILY = register_family(
    Family(
        name="sdar",
        about="block diffusion, Qwen3 made block-causal",
        example="JetLM/SDAR-1.7B-Chat",
        recognises=recognises,
        native=native,
        attention="block",
        cached=True,
        sampler="sdar",
        block_length=block_length,
    )
)
