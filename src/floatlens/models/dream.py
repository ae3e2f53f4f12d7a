"""Dream (Dream-org/Dream-v0-Base-7B, -Instruct, Dream-Coder, DiffuCoder): Qwen2, made bidirectional, logits shifted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from floatlens.models.family import Config, Family, bidirectional, number, register_family, token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def recognises(config: Config) -> bool:
    return str(config.get("model_type", "")).lower() == "dream"


def native(config: Config) -> PreTrainedConfig:
    from transformers import Qwen2Config

    heads = number(config, "num_attention_heads")
    made = Qwen2Config(
        hidden_size=number(config, "hidden_size"),
        num_hidden_layers=number(config, "num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=config.get("num_key_value_heads") or heads,
        intermediate_size=number(config, "intermediate_size"),
        vocab_size=number(config, "vocab_size"),
        rms_norm_eps=number(config, "rms_norm_eps", 1e-6),
        rope_parameters=config.get("rope_scaling")
        or {"rope_type": "default", "rope_theta": number(config, "rope_theta", 10000.0)},
        max_position_embeddings=number(config, "max_position_embeddings"),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        use_sliding_window=False,
        **token_ids(config),
    )
    return bidirectional(made, config)


FAMILY = register_family(
    Family(
        name="dream",
        about="masked diffusion, Qwen2 made bidirectional, logits shifted by one",
        example="Dream-org/Dream-v0-Instruct-7B",
        recognises=recognises,
        native=native,
        tokenizer="Qwen2Tokenizer",
        sampler="dream",
        shifted=True,
    )
)
