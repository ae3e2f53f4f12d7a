"""Read half-precision arrays of a stored trace as single precision, so that means are not computed in half precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing


class WidenedArray(BackendArray):
    """An array on disk that is converted to float32 when it is read; only the requested part is read."""

    def __init__(self, stored: xr.Variable) -> None:
        self.stored, self.shape, self.dtype = stored, stored.shape, np.dtype(np.float32)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        return np.asarray(self.stored[key].values, self.dtype)


def widen(data: xr.Dataset) -> xr.Dataset:
    """The dataset with its float16 variables as float32; nothing is read yet."""
    halves = {name: one.variable for name, one in data.data_vars.items() if one.dtype == np.float16}
    wide = {
        name: xr.Variable(one.dims, indexing.LazilyIndexedArray(WidenedArray(one)), one.attrs, one.encoding)
        for name, one in halves.items()
    }
    return data.assign(wide)
