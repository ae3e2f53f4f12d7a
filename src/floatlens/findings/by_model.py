"""Split a measurement by model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr

from floatlens.findings.samples import Array, mean_over, models_of
from floatlens.findings.style import short


def by_model(measured: xr.Dataset) -> Iterator[tuple[str, str, xr.Dataset]]:
    """Name, kind (MDM or ARM) and samples of each model."""
    for model in models_of(measured):
        part = measured.isel(sample=np.flatnonzero(measured["model"].values == model))
        yield short(model), str(part["model_kind"].values[0]).upper(), part


def mean(values: Array) -> float:
    """Mean of all finite values."""
    return float(mean_over(np.asarray(values, float).ravel(), 0))


def per_layer(part: xr.Dataset, name: str) -> Array:
    """Mean over samples at each layer; NaN where the model has no such layer."""
    return np.asarray(mean_over(part[name].values.astype(float), 0))


def extreme(part: xr.Dataset, name: str, most: bool = True) -> tuple[int, float]:
    """The layer at which a number is largest (or smallest), and its value there; layer −1 if it is NaN everywhere."""
    values = per_layer(part, name)
    if not np.isfinite(values).any():
        return -1, float("nan")
    index = int(np.nanargmax(values) if most else np.nanargmin(values))
    return int(part["layer"].values[index]), float(values[index])
