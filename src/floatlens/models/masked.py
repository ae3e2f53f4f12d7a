"""Any masked language model of transformers (BERT, RoBERTa, ModernBERT), decoded by LLaDA's sampler."""

from __future__ import annotations

from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from floatlens.models.family import Config, Family, architecture
from floatlens.models.registry import register_family


def recognises(config: Config) -> bool:
    if config.get("model_type") not in MODEL_FOR_MASKED_LM_MAPPING_NAMES or config.get("is_decoder"):
        return False
    return "MaskedLM" in architecture(config) or "ForPreTraining" in architecture(config)


FAMILY = register_family(
    Family(
        name="masked",
        about="any masked language model of transformers",
        example="answerdotai/ModernBERT-base",
        recognises=recognises,
        head="masked",
        sampler="llada",
    ),
    priority=-10,
)
