"""Any causal language model of transformers (Llama, Qwen, Mistral, Gemma, GPT-2, SmolLM, ...), and any masked one (BERT,
RoBERTa, ModernBERT), which is decoded by LLaDA's sampler. These families are tried last."""

from __future__ import annotations

from floatlens.models.family import Config, Family, register_family


def is_causal(config: Config) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return config.get("model_type") in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def is_masked(config: Config) -> bool:
    """Whether the config is of an encoder: for these model types, only `is_decoder` makes a model causal."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    decoder = config.get("is_decoder") or config.get("is_encoder_decoder")
    return config.get("model_type") in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not decoder


CAUSAL = register_family(
    Family(
        name="causal",
        about="autoregressive, any causal language model of transformers",
        example="Qwen/Qwen2.5-7B-Instruct",
        recognises=is_causal,
        kind="arm",
        attention="causal",
        cached=True,
        sampler="autoregressive",
        shifted=True,
        because="a causal language model type of transformers",
    ),
    priority=-20,
)
MASKED = register_family(
    Family(
        name="masked",
        about="any masked language model of transformers",
        example="answerdotai/ModernBERT-base",
        recognises=is_masked,
        head="masked",
        sampler="llada",
        because="an encoder type of transformers, and is_decoder is not set",
    ),
    priority=-10,
)
