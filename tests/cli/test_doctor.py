"""floatlens doctor: the check that users run on their own machines."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from floatlens.attention.statistics.entropy import Entropy
from floatlens.cli import doctor
from tests.commands import run


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One model and one type, to be quick."""
    monkeypatch.setattr(doctor, "MODELS", ("tiny-mdm",))
    monkeypatch.setattr(doctor, "dtypes", lambda device: ["float32"])


def test_all_ways_agree_here() -> None:
    done = run("doctor", "--device", "cpu", "--json")
    found = json.loads(done.stdout)
    assert found["agree"] and found["cost"]["ratio"] > 0
    assert [check["implementation"] for check in found["checks"]] == ["fused", "sdpa"]
    assert all(check["error"] <= 1e-4 and check["same_tokens"] for check in found["checks"])
    assert {"torch", "transformers", "floatlens"} <= set(found["versions"])


def test_a_wrong_statistic_is_found_and_the_exit_code_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    result = Entropy.result
    monkeypatch.setattr(Entropy, "result", lambda self, call: result(self, call) * 1.001)
    monkeypatch.setattr(doctor, "cost", lambda device: {"model": "", "positions": 0, "steps": 0, "ratio": 1.0})
    done = run("doctor", "--device", "cpu", code=1)
    assert "entropy" in done.stdout and "differs" in done.stdout


def test_statistics_that_are_missing_somewhere_differ() -> None:
    class Stub:
        def __init__(self, hole: bool) -> None:
            value = np.array([1.0, np.nan if hole else 1.0])
            self.data: Any = {name: type("V", (), {"values": value}) for name in doctor.COMPARED}
            self.final_tokens = np.array([1])

    assert doctor.difference(Stub(True), Stub(False))[0] == float("inf")


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = run("doctor", "--device", "cuda", code=2)
    assert "finds no NVIDIA GPU" in done.stderr
