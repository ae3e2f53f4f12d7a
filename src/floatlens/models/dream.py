"""Dream (Dream-org/Dream-v0-Base-7B, -Instruct, Dream-Coder, DiffuCoder): Qwen2, made bidirectional, logits shifted."""

from typing import Any

from floatlens.models.family import Config, Family, decoder, register_family


def native(config: Config) -> Any:
    return decoder("qwen2", config, "intermediate_size", "max_position_embeddings", use_sliding_window=False)


FAMILY = register_family(
    Family(
        name="dream",
        about="masked diffusion, Qwen2 made bidirectional, logits shifted by one",
        example="Dream-org/Dream-v0-Instruct-7B",
        types=("dream",),
        native=native,
        tokenizer="Qwen2Tokenizer",
        sampler="dream",
        shifted=True,
    )
)
