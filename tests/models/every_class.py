"""One language model class of transformers, examined: are the numbers of its trace right, or is it refused?

The reference is the class's own eager implementation, which returns its attention matrices: the received attention of a
step is their column mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from floatlens import Lens
from floatlens.attention.hook import passes_interface
from floatlens.models.checkpoint import Checkpoint
from floatlens.models.describe import REASONS, attention_layers, is_state_space, refusal
from floatlens.models.family import FAMILIES
from tests.models.tiny_configs import VOCABULARY, tiny_config

IDS = [5, 17, 40, 9, 61, 33, 12, 70]
MASK = VOCABULARY - 1
NEW = 3
TOLERANCE = 2e-6


@dataclass(frozen=True)
class Examined:
    """`state` is "observed", "refused" or "not examined"; `detail` the largest difference from eager, or the reason."""

    state: str
    way: str
    detail: str


def build(kind: str, model_type: str, implementation: str = "eager") -> Any:
    """A tiny random model of a class."""
    torch.manual_seed(0)
    auto = AutoModelForCausalLM if kind == "causal" else AutoModelForMaskedLM
    model = auto.from_config(tiny_config(kind, model_type), attn_implementation=implementation).eval()
    model.config.mask_token_id = MASK
    with torch.no_grad():  # weights that are large enough to attend to something
        for name, weight in model.named_parameters():
            if weight.ndim > 1 and "embed" not in name:
                weight.mul_(4.0)
            if name.endswith("sinks") and model_type in EAGER_WITHOUT_SINK:
                weight.fill_(-50.0)
    return model


# The eager functions of these return the weights as they are without the learned sink, which takes a share of them.
EAGER_WITHOUT_SINK = ("granite_swa", "granitemoe_swa")
# These return scores in place of weights.
EAGER_RETURNS_SCORES = ("squeezebert",)
# The recurrent layers of these give other numbers with a cache than without: eager attention reads step by step too.
STEP_BY_STEP = ("bamba",)


def lens_of(kind: str, model: Any) -> Lens:
    """A lens on a model that was never saved."""
    config = model.config.to_dict() | {"model_type": model.config.model_type}
    lens = Lens(Checkpoint(type(model).__name__, "nowhere", config, FAMILIES[kind]))
    lens.__dict__ |= {"model": model, "tokenizer": None, "end_ids": (), "special_ids": ()}
    return lens


def eager_received(model: Any, ids: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Column means (H, T) of the matrices that the eager implementation returns, layer by layer."""
    if model.config.model_type in STEP_BY_STEP:
        return eager_received_step_by_step(model, ids)
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids.tolist()]), output_attentions=True)
    matrices = [matrix for matrix in out.attentions if matrix is not None]
    if model.config.model_type in EAGER_RETURNS_SCORES:
        matrices = [matrix.softmax(-1) for matrix in matrices]
    layers = attention_layers(model.config)
    if len(matrices) > len(layers):  # layers of linear attention return something too
        matrices = [matrices[layer] for layer in layers]
    return [matrix[0].mean(1).float().numpy() for matrix in matrices]


@torch.no_grad()
def eager_received_step_by_step(model: Any, ids: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """The same from a cache: the prompt, then one token at a time."""
    sums: list[np.ndarray[Any, Any]] = []
    cache, T = None, len(ids)
    for start, end in [(0, len(IDS)), *((t, t + 1) for t in range(len(IDS), T))]:
        part = torch.tensor([ids[start:end].tolist()])
        out = model(input_ids=part, past_key_values=cache, use_cache=True, output_attentions=True)
        cache = out.past_key_values
        matrices = [m[0].sum(1).numpy() for m in out.attentions if m is not None]
        sums = sums or [np.zeros((len(m), T), np.float32) for m in matrices]
        for total, m in zip(sums, matrices, strict=True):
            total[:, : m.shape[1]] += m
    return [total / T for total in sums]


def examine(kind: str, model_type: str) -> Examined:
    """Trace a tiny model of a class and compare every layer with eager attention."""
    if model_type in REASONS:  # some of these cannot even be built from a small config
        return Examined("refused", "", REASONS[model_type])
    config = tiny_config(kind, model_type)
    if is_state_space(config):
        return Examined(
            "observed", "mixers", "no attention; the [implicit attention](without-attention.md) of its mixers"
        )
    if reason := refusal(config, FAMILIES[kind]):
        return Examined("refused", "", reason)
    try:
        model = build(kind, model_type)
    except ImportError as error:
        return Examined("not examined", "", " ".join(str(error).split()).split(". ")[0].rstrip("."))
    lens = lens_of(kind, model)
    way = "interface" if passes_interface(model) else "functions"
    trace = lens.trace(IDS, max_new_tokens=NEW, record=("received", "entropy"))
    data = trace.data["received"]
    worst = 0.0
    for step in (int(data["step"][0]), int(data["step"][-1])):
        ids = trace.data["tokens"].sel(step=step).values
        wanted = eager_received(model, ids[ids >= 0])
        found = data.sel(step=step).values[..., : (ids >= 0).sum()]
        if len(wanted) != len(found):
            raise AssertionError(f"{len(found)} layers were observed, and eager attention has {len(wanted)}")
        for layer, matrix in zip(found, wanted, strict=True):
            layer = layer[~np.isnan(layer).any(-1)]  # layers may differ in their number of heads
            if matrix.shape != layer.shape:
                raise AssertionError(f"shapes {layer.shape} and {matrix.shape}")
            worst = max(worst, float(np.abs(layer - matrix).max()))  # no NaN: those were left out above
    if worst > TOLERANCE:
        raise AssertionError(f"{worst:.1e} off")
    check_change(lens)
    return Examined("observed", way, f"{worst:.0e}")


def check_change(lens: Lens) -> None:
    """Hide position 0: nobody but itself may attend to it any more."""
    with lens.intervene("mask-positions(0)"):
        after = lens.trace(IDS, max_new_tokens=1, record=("received",))
    left = after.data["received"].isel(step=0, position=0).values
    length = int((after.data["tokens"].isel(step=0).values >= 0).sum())
    if (left > 1 / length + 1e-6).any():
        raise AssertionError("mask-positions(0) left attention on position 0")
