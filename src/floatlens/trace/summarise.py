"""A summary of a trace: means over heads instead of single heads, for runs of many or large models.

`Trace.save(detail="summary")` and `--detail summary` store it. It keeps all variables without a number per head and
position, matrices that were requested, and:

| variable | dims | what |
|---|---|---|
| received_mean, qk_mean, value_norm_mean, … | step, layer, position | mean over heads |
| anchors | rule, step, layer, position | anchors by each of `COMMON_RULES`, in the mean over heads |
| received_prompt | layer, head | share of received attention on the prompt, mean over steps |
| received_lasting | layer, head | overlap of received attention in the first and the last quarter of the steps |
| qk_advantage, qk_norm_part, qk_angle_part | rule, step, layer, head | the anchors' advantage in score, and its split |

A finding that needs a single head at a position, or anchors of single heads by another rule, raises an error. Findings
compute the same numbers from whole traces with the functions at the end.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import xarray as xr

from floatlens.anchors import COMMON_RULES, find_anchors, parse_rule

Array: TypeAlias = np.ndarray[Any, Any]
Detail = Literal["full", "summary"]
HEADS = ("head", "kv_head")
PARTS = ("qk_advantage", "qk_norm_part", "qk_angle_part")


def summarise(data: xr.Dataset, attention: str) -> xr.Dataset:
    """The dataset of a trace without single heads at single positions."""
    wide = [str(name) for name, one in data.data_vars.items() if is_per_head(one)]
    means = {f"{name}_mean": mean_over_heads(data[name]) for name in wide}
    made = data.drop_vars(wide).assign(means)
    if "received" in wide:
        made = made.assign(_of_single_heads(data, made["received_mean"], attention))
    return made.assign_attrs(detail="summary")


def is_per_head(variable: xr.DataArray) -> bool:
    """Whether a variable has a number per head and position; queries and keys have more."""
    dims = set(variable.dims)
    return "position" in dims and bool(dims.intersection(HEADS)) and "dim" not in dims


def mean_over_heads(variable: xr.DataArray) -> xr.DataArray:
    """Mean over heads; NaN where a position does not exist. Heads that a layer does not have are left out."""
    head = next(dim for dim in variable.dims if dim in HEADS)
    values = np.moveaxis(variable.values, variable.dims.index(head), 0)
    mean = np.asarray(values.mean(axis=0, dtype=np.float32))
    missing = np.isnan(mean)
    if missing.any():  # NaN in all heads: the position does not exist yet; in some: the layer has fewer heads
        of_missing = values[:, missing]
        count = np.isfinite(of_missing).sum(axis=0)
        mean[missing] = np.where(count > 0, np.nansum(of_missing, axis=0) / np.maximum(count, 1), np.nan)
    dims = [dim for dim in variable.dims if dim != head]
    coords = {name: one for name, one in variable.coords.items() if head not in one.dims}
    return xr.DataArray(mean, coords=coords, dims=dims, name=variable.name, attrs=variable.attrs)


def _of_single_heads(data: xr.Dataset, mean: xr.DataArray, attention: str) -> dict[str, Any]:
    """The numbers of single heads that findings need, and the anchors that they use."""
    rules = [parse_rule(rule).id for rule in COMMON_RULES]
    layer = str(mean.dims[1])
    anchors_RSLT = np.array([find_anchors(mean.values, rule, attention) for rule in rules])
    received = data["received"].transpose("step", layer, "head", "position")
    S, L, H, _ = received.shape
    lasting_LH = np.full((L, H), np.nan, np.float32)
    for n in range(L):
        lasting_LH[n] = quarters_overlap(received[:, n].values)
    kept: dict[str, Any] = {
        "anchors": (("rule", "step", layer, "position"), anchors_RSLT),
        "received_prompt": ((layer, "head"), prompt_share(received.values, int(data.attrs.get("prompt_length", 0)))),
        "received_lasting": ((layer, "head"), lasting_LH),
        "rule": ("rule", rules),
    }
    if {"qk", "qk_norm"} <= set(data.data_vars) and data["qk"].dims == data["qk_norm"].dims == received.dims:
        others_SLT = np.isfinite(mean.values)
        parts = np.full((len(PARTS), len(rules), S, L, H), np.nan, np.float32)
        for n in range(L):
            score_SHT, norm_SHT = (data[name][:, n].values for name in ("qk", "qk_norm"))
            for r in range(len(rules)):
                anchors_ST = anchors_RSLT[r, :, n]
                others_ST = others_SLT[:, n] & ~anchors_ST
                parts[:, r, :, n] = split(score_SHT, norm_SHT, anchors_ST[:, None], others_ST[:, None])
        kept |= {name: (("rule", "step", layer, "head"), one) for name, one in zip(PARTS, parts, strict=True)}
    return kept


def prompt_share(a_SLHT: Array, prompt_length: int) -> Array:
    """Share of received attention on the prompt (layer, head), mean over steps.

    >>> prompt_share(np.array([0.5, 0.25, 0.25]).reshape(1, 1, 1, 3), 2)
    array([[0.75]])
    """
    return np.asarray(np.nansum(a_SLHT[..., :prompt_length], axis=-1).mean(axis=0, dtype=np.float64))


def quarters_overlap(a: Array) -> Array:
    """Overlap of the mean received attention of the first quarter of the steps with that of the last (all but T).

    >>> a = np.zeros((4, 1, 1, 2)); a[:2, ..., 0] = 1; a[2:, ..., 0] = a[2:, ..., 1] = 0.5
    >>> quarters_overlap(a)
    array([[0.5]])
    """
    quarter = max(1, len(a) // 4)
    first, last = (np.nan_to_num(part).mean(axis=0, dtype=np.float64) for part in (a[:quarter], a[-quarter:]))
    return np.asarray(np.minimum(first, last).sum(axis=-1))


def group_mean(values: Array, group: Array) -> Array:
    """Mean over the last axis of the members of a group; NaN for an empty one.

    >>> group_mean(np.array([1.0, 3.0, np.nan]), np.array([True, True, False])).item()
    2.0
    """
    total = np.einsum("...t,...t->...", np.nan_to_num(values), group.astype(values.dtype))
    count = group.sum(axis=-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def split(score: Array, norm: Array, anchors: Array, others: Array) -> tuple[Array, Array, Array]:
    """Advantage of anchors over other keys, and its norm and angle parts: Shapley values, averaged over pairs of keys.

    >>> n, c = np.array([3.0, 1.0]), np.array([0.5, 0.5])
    >>> [x.item() for x in split(n * c, n, np.array([True, False]), np.array([False, True]))]
    [1.0, 1.0, 0.0]
    """
    # a key of norm zero has no direction; its score is zero for any cosine
    cosine = np.divide(score, norm, out=np.zeros_like(score), where=norm != 0)
    S, N, C = (tuple(group_mean(x, g) for g in (anchors, others)) for x in (score, norm, cosine))
    advantage = S[0] - S[1]
    cross = N[0] * C[1] - N[1] * C[0]
    return advantage, (advantage + cross) / 2, (advantage - cross) / 2
