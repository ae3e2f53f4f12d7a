"""Arrays of a stored trace, read when they are used: half precision as single precision, damaged chunks as an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing

from floatlens.errors import FloatLensError


class StoredArray(BackendArray):
    """An array on disk; only the requested part is read, float16 as float32 so that means are computed in float32."""

    def __init__(self, stored: xr.Variable, name: str) -> None:
        self.stored, self.name, self.shape = stored, name, stored.shape
        self.dtype = np.dtype(np.float32) if stored.dtype == np.float16 else stored.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        try:
            return np.asarray(self.stored[key].values, self.dtype)
        except (ValueError, RuntimeError, OSError) as error:  # a checksum that does not match, a chunk that is no Blosc
            raise FloatLensError(f"{self.name} is damaged ({error}); copy or record the trace again") from None


def widen(data: xr.Dataset, path: str) -> xr.Dataset:
    """The dataset of a stored trace with its arrays as `StoredArray`; nothing is read yet."""
    lazy = {
        name: xr.Variable(
            one.dims, indexing.LazilyIndexedArray(StoredArray(one.variable, f"{path}/{name}")), one.attrs, one.encoding
        )
        for name, one in data.data_vars.items()
    }
    return data.assign(lazy)
