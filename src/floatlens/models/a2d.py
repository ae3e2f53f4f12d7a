"""A2D (dllm-hub/Qwen3-0.6B-diffusion-mdlm and siblings): an autoregressive checkpoint made bidirectional, same keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from floatlens.errors import FloatLensError
from floatlens.models.family import Config, Family, architecture, bidirectional, refuse_windows
from floatlens.models.registry import register_family

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

PREFIX = "a2d-"
BASES = ("qwen3", "qwen2", "llama")


def recognises(config: Config) -> bool:
    return str(config.get("model_type", "")).lower().startswith(PREFIX) or architecture(config).startswith("A2D")


def native(config: Config) -> PreTrainedConfig:
    """The config of the base model, made bidirectional; layers with a sliding window are refused."""
    from transformers import AutoConfig

    refuse_windows(config, "A2D")
    base = str(config.get("model_type", "")).lower().removeprefix(PREFIX)
    if base not in BASES:
        raise FloatLensError(
            f"config.json: field 'model_type' is {config.get('model_type')!r}; A2D models are based on {', '.join(BASES)}"
        )
    drop = ("model_type", "architectures", "auto_map", "transformers_version", "dtype", "torch_dtype", "is_causal")
    made = AutoConfig.for_model(base, **{key: value for key, value in config.items() if key not in drop})
    return bidirectional(made, config)


FAMILY = register_family(
    Family(
        name="a2d",
        about="masked diffusion, Qwen3, Qwen2 or Llama made bidirectional",
        example="dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1",
        recognises=recognises,
        native=native,
        sampler="llada",
    )
)
