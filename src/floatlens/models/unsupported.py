"""Architectures whose attention cannot be observed, with the reason: loading them raises an error.

A type that is not listed here is observed, or gives an error at its first step; it never gives a trace without attention.
`docs/what-works.md` lists every class of transformers with its state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from floatlens.errors import FloatLensError
from floatlens.models.family import Family

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

NO_ATTENTION = "it has no softmax attention: {}"
OTHER_KEYS = "its queries do not attend to the positions of the sequence: {}"
REASONS: dict[str, str] = {
    "falcon_mamba": NO_ATTENTION.format("it is a state space model"),
    "fnet": NO_ATTENTION.format("it mixes tokens by Fourier transforms"),
    "rwkv": NO_ATTENTION.format("it is a recurrent network"),
    "xlstm": NO_ATTENTION.format("it is a recurrent network"),
    "yoso": NO_ATTENTION.format("it samples attention by hashing"),
    "blt": OTHER_KEYS.format("bytes are grouped into patches"),
    "cpmant": OTHER_KEYS.format("it puts learned positions before the text"),
    "deepseek_v4": OTHER_KEYS.format("layers add compressed keys to them"),
    "funnel": OTHER_KEYS.format("it pools them from layer to layer"),
    "perceiver": OTHER_KEYS.format("they are latents"),
    "longformer": "it computes attention in overlapping chunks, and never a row of weights over the sequence",
    "mra": "it approximates attention by blocks, and never computes a row of weights over the sequence",
    "reformer": "it attends within hash buckets, and never computes a row of weights over the sequence",
    "prophetnet": "it predicts several tokens at once with several streams of queries, so rows are not positions",
    "xlnet": "it is a permutation model with two streams of queries, so rows are not positions",
    "hrm_text": "its layers run several times per forward pass, and a layer has no single attention",
    "musicgen": "it writes audio codes of several codebooks instead of a sequence of tokens",
    "musicgen_melody": "it writes audio codes of several codebooks instead of a sequence of tokens",
    "gemma4_assistant": "it drafts from the hidden states and the cache of another model, and cannot run alone",
    "gemma4_unified_assistant": "it drafts from the hidden states and the cache of another model, and cannot run alone",
}  # fmt: skip


def refusal(config: PreTrainedConfig, family: Family) -> str | None:
    """The reason why a model cannot be traced as a family, from its native config; None if no reason is known."""
    kind = getattr(config, "model_type", "")
    if kind in REASONS:
        return REASONS[kind]
    if kind == "big_bird" and config.attention_type != "original_full":
        return "block-sparse attention never computes a row of weights; set attention_type to 'original_full' in config.json"
    if kind == "nystromformer" and config.num_landmarks != config.segment_means_seq_len:
        return OTHER_KEYS.format(f"they are {config.num_landmarks} landmarks")
    if family.head == "masked" and getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder model; observe it in your own loop with floatlens.observe"
    if family.kind == "arm" and kind in ("xlm", "flaubert") and not getattr(config, "causal", False):
        return "its config does not set it as causal, so it attends in both directions; use the family 'masked'"
    encoder = kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_encoder_decoder", False)
    if family.kind == "arm" and encoder and getattr(config, "is_decoder", None) is False:
        return "its config does not set is_decoder, so it attends in both directions; use the family 'masked'"
    from floatlens.models.describe import attention_layers, shape

    if shape(config)["layers"] and not attention_layers(config):
        return NO_ATTENTION.format("none of its layers is an attention layer")
    return None


def check_supported(name: str, config: PreTrainedConfig, family: Family) -> None:
    """Raise an error for a model that cannot be traced, before its weights are read."""
    if reason := refusal(config, family):
        kind = getattr(config, "model_type", type(config).__name__)
        raise FloatLensError(f"{name} is a {kind} model, which cannot be traced as {family.name}: {reason}")
