"""The frozen numbers agree: tokens and answers are equal, statistics to 1e-5."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import floatlens as fl
from tests.frozen.freeze import FOLDER, make_traces, numbers_of, results_of


@pytest.fixture(scope="module")
def traces() -> dict[str, fl.Trace]:
    return make_traces()


def test_traces_are_as_frozen(traces: dict[str, fl.Trace]) -> None:
    found = numbers_of(traces)
    with np.load(FOLDER / "traces.npz") as frozen:
        assert set(found) == set(frozen)
        for name, values in frozen.items():
            if values.dtype.kind == "f":
                np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-5, err_msg=name)
            else:
                np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_answers_and_verdicts_are_as_frozen(traces: dict[str, fl.Trace]) -> None:
    frozen = json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))
    compare(json.loads(json.dumps(results_of(traces))), frozen, "results")


def compare(found: Any, frozen: Any, where: str) -> None:
    """Compare plain values; numbers to 1e-5."""
    if isinstance(frozen, dict):
        assert isinstance(found, dict) and found.keys() == frozen.keys(), where
        for key in frozen:
            compare(found[key], frozen[key], f"{where}.{key}")
    elif isinstance(frozen, list):
        assert isinstance(found, list) and len(found) == len(frozen), where
        for index, (a, b) in enumerate(zip(found, frozen, strict=True)):
            compare(a, b, f"{where}[{index}]")
    elif isinstance(frozen, float):
        assert found == pytest.approx(frozen, rel=1e-5, abs=1e-5, nan_ok=True), where
    else:
        assert found == frozen, where
