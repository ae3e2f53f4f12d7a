"""Any causal language model of transformers (Llama, Qwen, Mistral, Gemma, GPT-2, SmolLM, ...)."""

from __future__ import annotations

from floatlens.models.family import Config, Family
from floatlens.models.registry import register_family


def recognises(config: Config) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return config.get("model_type") in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


FAMILY = register_family(
    Family(
        name="causal",
        about="autoregressive, any causal language model of transformers",
        example="Qwen/Qwen2.5-7B-Instruct",
        recognises=recognises,
        kind="arm",
        attention="causal",
        cached=True,
        sampler="autoregressive",
        shifted=True,
        because="a causal language model type of transformers",
    ),
    priority=-20,
)
