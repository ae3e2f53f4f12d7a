"""What findings share: reading traces or answers as samples, stacking the numbers of all samples, and means per model.

The base class (`finding.py`) stacks with `per_sample`; findings and studies use the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import xarray as xr

from floatlens.errors import FloatLensError
from floatlens.findings.spelling import count
from floatlens.findings.style import short
from floatlens.stats import Array
from floatlens.trace.trace import Trace

Traces: TypeAlias = Trace | xr.Dataset | Iterable[Trace | xr.Dataset]


def as_traces(traces: Traces) -> Sequence[Trace]:
    """Convert one trace, its Dataset, or a sequence of either to a sequence of traces.

    A sequence that opens its traces on access is returned unchanged, so that it stays lazy: findings read one trace at a
    time and keep only their numbers.
    """
    if isinstance(traces, Trace | xr.Dataset):
        traces = [traces]
    lazy = isinstance(traces, Sequence) and not isinstance(traces, list | tuple)
    found: Any = traces if lazy else [Trace(t) if isinstance(t, xr.Dataset) else t for t in traces]
    if not len(found):
        raise FloatLensError("there are no traces to measure; trace at least one sample first")
    return found


def per_sample(traces: Traces, measure_one: Callable[[Trace], xr.Dataset]) -> xr.Dataset:
    """Measure each trace and stack the results along `sample`, labelled by model and sample id.

    Models of different depth, and samples of different length, are aligned by label; missing values are NaN.
    `depth` is the layer's relative depth in its own model, 0 at the first and 1 at the last layer.
    """
    rows, about = [], []
    for trace in as_traces(traces):
        row = measure_one(trace)
        if "layer" in row.dims:
            row = row.assign(depth=("layer", depths(trace, row["layer"].values)))
        rows.append(row)
        about.append((sample_name(trace), trace.model, trace.kind, setting_of(trace)))
    stacked = (
        rows[0].expand_dims("sample") if len(rows) == 1 else xr.concat(rows, "sample", join="outer", data_vars="all")
    )
    ids, models, kinds, settings = zip(*about, strict=True)
    return stacked.assign_coords(
        sample=np.arange(len(rows)),
        sample_id=("sample", np.array(ids, dtype=object)),
        model=("sample", np.array(models, dtype=object)),
        model_kind=("sample", np.array(kinds, dtype=str)),
        setting=("sample", np.array(settings, dtype=object)),
    )


def sample_name(trace: Trace) -> str:
    """The id of the traced sample; empty if it has none."""
    return str(trace.data.attrs.get("sample_id", ""))


def setting_of(trace: Trace) -> str:
    """What a model was given: "passages" with a question, a question alone ("short"), or any other text ("text")."""
    names = {region.name for region in trace.regions}
    if any(name.startswith("doc") for name in names):
        return "passages"
    return "short" if "query" in names else "text"


def per_question(table: pd.DataFrame, key: Sequence[str]) -> tuple[pd.MultiIndex, dict[str, Any]]:
    """The rows of a table of answers with different keys, in order, and their coordinates along `sample`."""
    order = pd.MultiIndex.from_frame(table[list(key)].drop_duplicates())
    columns = {name: order.get_level_values(name).to_numpy(object) for name in key}
    ids = [f"{data}: {name}" for data, name in zip(columns["data"], columns.pop("id"), strict=True)]
    kinds = table.drop_duplicates("model").set_index("model")["kind"]
    return order, {
        "sample": np.arange(len(order)),
        **{name: ("sample", values) for name, values in columns.items()},
        "sample_id": ("sample", np.array(ids, object)),
        "model_kind": ("sample", kinds.reindex(columns["model"]).to_numpy(str)),
    }


def split_id(sample_id: str) -> tuple[str, str, str]:
    """Data set, condition and question of a study's sample; the first two are empty for a sample of another run."""
    parts = sample_id.rsplit(", ", 2)
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 else ("", "", sample_id)


def question_of(sample_id: str) -> str:
    """The question of a study's sample, without the condition under which it was asked."""
    data, _, question = split_id(sample_id)
    return f"{data}: {question}" if data else question


def depths(trace: Trace, layers: Array) -> Array:
    """Relative depth of each layer between 0 and 1; NaN for the average over layers (layer −1)."""
    count = int(trace.data.attrs.get("n_layers", int(trace.data["layer"].max()) + 1))
    return np.where(layers >= 0, layers / max(count - 1, 1), np.nan)


def require(trace: Trace, *names: str, means: Sequence[str] = (), finding: str) -> None:
    """Load the variables that the finding needs; raise an error if one was not recorded.

    Of `means`, the mean over heads is enough: a summary has it.
    """
    missing = [name for name in names if name not in trace.data]
    missing += [name for name in means if not trace.has_head_mean(name)]
    if missing:
        listed, sample = ", ".join(missing), sample_name(trace) or trace.model or "this trace"
        if trace.is_summary and all(trace.has_head_mean(name) for name in missing):
            raise FloatLensError(
                f"{finding} needs {listed} of single heads, and the trace of {sample!r} is a summary, which keeps means "
                f"over heads; trace again with --detail full"
            )
        raise FloatLensError(
            f"{finding} needs {listed}, which the trace of {sample!r} does not hold; "
            f"trace again with --record default,{','.join(missing)}"
        )
    for name in (*names, *(name if name in trace.data else f"{name}_mean" for name in means)):
        trace.data[name].load()


def pick(traces: Traces, sample: int | str | None) -> list[Trace]:
    """Select the traces to draw: for each model the one with this sample id or number, by default the first.

    A number counts the samples of each model from 0.
    """
    seen: Counter[str] = Counter()
    names: set[str] = set()
    chosen: dict[str, Trace] = {}
    for trace in as_traces(traces):
        name = sample_name(trace)
        if name == sample if isinstance(sample, str) else seen[trace.model] == (sample or 0):
            chosen.setdefault(trace.model, trace)
        seen[trace.model] += 1
        names.add(name)
    if not chosen:
        known = ", ".join(sorted(names - {""})[:5])
        raise FloatLensError(f"unknown sample {sample!r}; the traces have, for example, {known}")
    return list(chosen.values())


# The samples of each model


def models_of(measured: xr.Dataset) -> list[str]:
    """The models of the samples, each once, in order of appearance."""
    return list(dict.fromkeys(str(m) for m in measured["model"].values))


def parts_of(measured: xr.Dataset) -> Iterator[tuple[str, xr.Dataset]]:
    """Each model with its samples."""
    for model in models_of(measured):
        yield model, measured.isel(sample=np.flatnonzero(measured["model"].values == model))


def by_model(measured: xr.Dataset) -> Iterator[tuple[str, str, xr.Dataset]]:
    """Short name, kind (MDM or ARM) and samples of each model."""
    for model, part in parts_of(measured):
        yield short(model), str(part["model_kind"].values[0]).upper(), part


def samples_per_model(measured: xr.Dataset) -> str:
    """Format the number of samples per model, as a range if the models have different numbers."""
    counts = [int((measured["model"].values == model).sum()) for model in models_of(measured)]
    fewest, most = min(counts), max(counts)
    return count(most, "sample") if fewest == most else f"{fewest} to {count(most, 'sample')}"


# Means that ignore missing values


def mean_over(values: Array, axis: int | tuple[int, ...]) -> Array:
    """Mean of the finite values; NaN, without a warning, where there is none."""
    there = np.isfinite(values)
    count = there.sum(axis=axis)
    total = np.where(there, values, 0.0).sum(axis=axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def mean(values: Array) -> float:
    """Mean of all finite values."""
    return float(mean_over(np.asarray(values, float).ravel(), 0))


def spread(values: Array) -> tuple[Array, Array, Array]:
    """Mean, standard deviation and count over samples (first axis) of the finite values."""
    mean = mean_over(values, 0)
    return mean, np.sqrt(mean_over((values - mean) ** 2, 0)), np.isfinite(values).sum(axis=0)


def halves(values: Array, depth: Array) -> tuple[Array, Array]:
    """Means over the shallow (depth < 1/2) and over the deep half (> 1/2) of the layers, per sample."""
    shallow = mean_over(np.where(depth < 0.5, values, np.nan), -1)
    return shallow, mean_over(np.where(depth > 0.5, values, np.nan), -1)
