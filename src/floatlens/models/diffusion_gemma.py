"""DiffusionGemma (google/diffusiongemma-26B-A4B-it): an encoder reads the text, a decoder denoises a canvas after it.

Loaded with transformers' own class. Encoder and decoder share their weights; the encoder is causal and fills a cache, the
decoder's canvas sees that cache and all of itself. There is no mask token: a canvas begins with random tokens, and a token
may be replaced at any step. Layers alternate between sliding windows and full attention.
"""

from typing import Any

from floatlens.models.family import Config, Family, positive, register_family


def native(config: Config) -> Any:
    from transformers import DiffusionGemmaConfig

    block_length(config)
    return DiffusionGemmaConfig.from_dict(dict(config))


def block_length(config: Config) -> int:
    return positive(config, "canvas_length", 256)


FAMILY = register_family(
    Family(
        name="diffusion-gemma",
        about="diffusion on canvases of random tokens after a causal prompt, Gemma 4",
        example="google/diffusiongemma-26B-A4B-it",
        types=("diffusion_gemma",),
        native=native,
        head="multimodal",
        attention="block",
        cached=True,
        sampler="diffusion-gemma",
        block_length=block_length,
        mask_token=False,
    )
)
