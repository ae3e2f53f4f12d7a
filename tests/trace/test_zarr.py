"""The writer of traces, held against Zarr and xarray, which read what it wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from floatlens import FloatLensError
from floatlens.trace import zarr
from floatlens.untrusted import CHECKSUM, check_zarr

RNG = np.random.default_rng(0)


def read(folder: Path) -> xr.Dataset:
    check_zarr(folder)
    found = xr.open_dataset(folder, engine="zarr", zarr_format=3, consolidated=False, mask_and_scale=False).load()
    return found.drop_attrs(deep=False).assign_attrs({n: v for n, v in found.attrs.items() if n != CHECKSUM})


@pytest.mark.parametrize("limit", [64, 200, 4 << 20])  # bytes of a chunk: many chunks, some incomplete ones, one
def test_numbers_of_every_shape_and_type_are_read_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(zarr, "CHUNK_BYTES", limit)
    data = xr.Dataset(
        {
            "tokens": (("step", "position"), RNG.integers(-1, 2**40, (5, 7))),
            "wide": (("step", "layer", "position", "region"), RNG.normal(size=(5, 3, 7, 2)).astype(np.float32)),
            "other": (("layer", "head"), RNG.normal(size=(3, 4)).astype(np.float32)),
            "flags": (("rule", "step", "position"), RNG.random((2, 5, 7)) > 0.5),
            "nothing": (("step", "layer"), np.full((5, 3), np.nan, np.float32)),
            "empty": (("step", "none"), np.zeros((5, 0), np.float32)),
            "one": ((), np.float32(3.5)),
        },
        coords={"step": [0, 2, 4, 6, 8], "layer": [0, 1, 5], "label": ("position", np.arange(7))},
        attrs={"text": "ä„”\n", "number": 3},
    )
    zarr.write_group(data, tmp_path / "group", "float16")
    assert len(list((tmp_path / "group" / "wide").glob("c.*"))) == {64: 21, 200: 6, 4 << 20: 1}[limit]
    found = read(tmp_path / "group")
    xr.testing.assert_identical(found, data)
    assert {name: one.dtype for name, one in found.variables.items()} == {n: v.dtype for n, v in data.variables.items()}


def test_half_precision_rounds_to_the_nearest_number(tmp_path: Path) -> None:
    values = RNG.normal(size=(3, 2, 4, 5)).astype(np.float32)
    data = xr.Dataset({"qk": (("step", "layer", "head", "position"), values)})
    zarr.write_group(data, tmp_path / "group", "float16")
    np.testing.assert_array_equal(read(tmp_path / "group")["qk"], values.astype(np.float16))


def test_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FloatLensError, match="variable 'names' has the type"):
        zarr.write_group(xr.Dataset({"names": (("n",), ["a", "b"])}), tmp_path / "group", "float16")
