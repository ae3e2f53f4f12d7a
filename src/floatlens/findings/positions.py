"""What several findings read of a trace: attention per position, and which layers. It is the mean over heads, of all rows
(received attention) or of the writing rows.

The writing rows are the queries whose logits write the tokens, in the order of writing. An autoregressive model writes from
its newest query, a masked diffusion model from the query at (or before) the position that it commits. Only tokens of the
answer count, up to and including its first end token: a masked model fills the rest with end tokens, an autoregressive one
stops.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import xarray as xr

from floatlens.anchors import find_anchors
from floatlens.errors import FloatLensError
from floatlens.stats import Array
from floatlens.trace.summarise import mean_over_heads
from floatlens.trace.trace import Trace

Layers: TypeAlias = int | Sequence[int] | str | None
AVERAGE = -1  # the layer label of the average over all layers


def profile(trace: Trace, layer: Layers = None) -> xr.DataArray:
    """Received attention (step, layer, position), mean over heads; NaN where a position does not exist yet.

    `layer` is one layer, several, None for all that were recorded, or "average" for their mean (labelled −1).
    """
    chosen = choose_layers(trace, None if layer == "average" else layer)
    received = trace.data["received" if "received" in trace.data else "received_mean"]
    if len(chosen) < received.sizes["layer"]:
        received = received.sel(layer=chosen)
    found = mean_over_heads(received) if "head" in received.dims else received
    found = found.transpose("step", "layer", "position").rename("received")
    if layer == "average":
        found = found.mean("layer", skipna=False).expand_dims(layer=[AVERAGE], axis=1)
    return found


def anchors_of(trace: Trace, rule: str, layer: Layers = None) -> tuple[xr.DataArray, Array]:
    """The profile of some layers, and where its anchors are (same shape)."""
    a = profile(trace, layer)
    return a, find_anchors(a.values, rule, trace.attention_kind)


def choose_layers(trace: Trace, layer: Layers) -> list[int]:
    """Return the requested layers; an error names those that were recorded."""
    there = [int(n) for n in trace.data["layer"].values]
    if layer is None:
        return there
    if isinstance(layer, str):
        raise FloatLensError(f"unknown layer {layer!r}; use numbers, or 'average'")
    asked = [int(layer)] if isinstance(layer, int | np.integer) else [int(n) for n in layer]
    asked = [n + there[-1] + 1 if n < 0 else n for n in asked]
    for n in asked:
        index_of(trace, "layer", n)
    return asked


def index_of(trace: Trace, dim: str, label: int, of: str = "") -> int:
    """The index of a layer, head or step among those that were recorded; an error names them."""
    there = trace.data[dim].values.astype(int).tolist()
    if label not in there:
        what = f"{of or dim} {label}"
        raise FloatLensError(f"{what} was not recorded for {trace.model}; recorded: {spell(there)}")
    return int(there.index(label))


def few_layers(trace: Trace) -> list[int]:
    """First, middle and last recorded layer, which figures show by default."""
    there = [int(n) for n in trace.data["layer"].values]
    return sorted({there[0], there[len(there) // 2], there[-1]})


def spell(numbers: Iterable[int]) -> str:
    """A list of numbers as text, with ranges.

    >>> spell([0, 1, 2, 5])
    '0-2, 5'
    """
    runs: list[list[int]] = []
    for n in map(int, numbers):
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def region_positions(trace: Trace, *names: str) -> Array:
    """Positions of all regions with one of these names."""
    spans = [np.arange(region.start, region.end) for region in trace.regions if region.name in names]
    return np.concatenate(spans) if spans else np.arange(0)


def answer_positions(trace: Trace) -> Array:
    """Positions of the answer up to and including its first special token; for a text with masks, those of the masks.

    Without the ids of special tokens in the trace, all positions after the prompt.
    """
    if trace.infill:
        return np.flatnonzero(trace.data["committed_at"].values >= 0)
    start = trace.prompt_length
    final = trace.final_tokens[start:]
    special = json.loads(trace.data.attrs.get("special_ids", "[]"))
    ends = np.flatnonzero(np.isin(final, special))
    return np.arange(start, start + (int(ends[0]) + 1 if len(ends) else len(final)))


def writing_steps(trace: Trace) -> Array:
    """The recorded steps that write a token of the answer; a masked model's other steps write fill after its end."""
    written = trace.data["committed_at"].values[answer_positions(trace)]
    return np.intersect1d(trace.data["step"].values, written[written >= 0])


def writing_profile(trace: Trace) -> Array:
    """Attention of the writing rows (writing step, layer, position), mean over heads; NaN where there is no position."""
    steps = np.flatnonzero(np.isin(trace.data["step"].values, writing_steps(trace)))
    return np.asarray(trace.data["received_writing"].transpose("step", ..., "position").values[steps], np.float32)
