"""Convert the full matrices of a trace to the arguments of BertViz and CircuitsVis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    from floatlens.trace.trace import Trace


def bertviz(trace: Trace, step: int | None) -> dict[str, Any]:
    """Arguments of `bertviz.head_view` and `bertviz.model_view`."""
    import torch

    weights, tokens, _, _ = matrices(trace, step)
    return {"attention": [torch.from_numpy(layer[None].copy()) for layer in weights], "tokens": tokens}


def circuitsvis(trace: Trace, step: int | None, layer: int | None) -> dict[str, Any]:
    """Arguments of `circuitsvis.attention.attention_heads`."""
    weights, tokens, layers, heads = matrices(trace, step)
    if layer is not None:
        if layer not in layers:
            known = ", ".join(map(str, layers))
            raise FloatLensError(f"the matrices of layer {layer} were not recorded; the recorded layers are {known}")
        weights, layers = weights[[layers.index(layer)]], [layer]
    T = len(tokens)
    return {
        "attention": weights.reshape(-1, T, T),
        "tokens": tokens,
        "attention_head_names": [f"L{number}H{head}" for number in layers for head in heads],
        "mask_upper_tri": trace.attention == "causal",
    }


def matrices(trace: Trace, step: int | None) -> tuple[np.ndarray[Any, Any], list[str], list[int], list[str]]:
    """Weights (layer, head, T, T) at a step, the token strings, and the numbers of layers and heads.

    Rows that an autoregressive model computed at earlier steps do not change and are taken from there. Rows that were never
    recorded, such as those of finished blocks, are 0. The mean over heads counts as one head.
    """
    data = trace.data
    name = next((name for name in ("attention", "attention_mean") if name in data), None)
    if name is None:
        raise FloatLensError("this trace holds no attention matrices; record it again with matrices=['attention']")
    recorded = [int(number) for number in data["step"].values]
    chosen = recorded[-1] if step is None else step
    tokens = trace.strings(chosen)  # refuses a step that was not recorded
    at = recorded.index(chosen)
    T = int((data["tokens"].isel(step=at) >= 0).sum())
    array = data[name]
    layer_dim = str(array.dims[1])
    whole = np.asarray(array.isel(step=at).values, np.float32)
    if trace.cached:
        for earlier in range(at - 1, -1, -1):
            before = np.asarray(array.isel(step=earlier).values, np.float32)
            row = np.isnan(whole).all(-1, keepdims=True)
            whole = np.where(row, before, whole)
    if name == "attention_mean":
        whole = whole[:, None]
    heads = [str(head) for head in data["head"].values] if name == "attention" and "head" in data else ["mean"]
    layers = [int(layer) for layer in data[layer_dim].values]
    return np.nan_to_num(whole[..., :T, :T]), tokens[:T], layers, heads
