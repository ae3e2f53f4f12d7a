"""Any masked language model of transformers (BERT, RoBERTa, ModernBERT), decoded by LLaDA's sampler."""

from __future__ import annotations

from floatlens.models.family import Config, Family
from floatlens.models.registry import register_family


def recognises(config: Config) -> bool:
    """Whether the config is of an encoder: for these model types, only `is_decoder` makes a model causal."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    decoder = config.get("is_decoder") or config.get("is_encoder_decoder")
    return config.get("model_type") in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not decoder


FAMILY = register_family(
    Family(
        name="masked",
        about="any masked language model of transformers",
        example="answerdotai/ModernBERT-base",
        recognises=recognises,
        head="masked",
        sampler="llada",
        because="an encoder type of transformers, and is_decoder is not set",
    ),
    priority=-10,
)
