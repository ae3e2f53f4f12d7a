"""floatlens doctor: the check that users run on their own machines."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from floatlens.attention.statistics.received import Entropy
from floatlens.cli import doctor
from floatlens.lens import Lens
from tests.commands import run


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One model and one type, to be quick."""
    monkeypatch.setattr(doctor, "MODELS", ("tiny-mdm",))
    monkeypatch.setattr(doctor, "DTYPES", ("float32",))


def test_all_ways_agree_here() -> None:
    done = run("doctor", "--device", "cpu", "--json")
    found = json.loads(done.stdout)
    assert found["agree"] and found["cost"]["ratio"] > 0
    assert [check["implementation"] for check in found["checks"]] == ["fused", "stream"]
    assert all(check["error"] <= 1e-4 and check["same_tokens"] for check in found["checks"])
    assert {"torch", "transformers", "floatlens"} <= set(found["versions"])


def test_a_wrong_statistic_is_found_and_the_exit_code_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    result = Entropy.result
    monkeypatch.setattr(Entropy, "result", lambda self, call: result(self, call) * 1.001)
    monkeypatch.setattr(doctor, "cost", lambda *_: {"model": "", "positions": 0, "steps": 0, "ratio": 1.0})
    done = run("doctor", "--device", "cpu", code=1)
    assert "entropy" in done.stdout and "differs" in done.stdout


def test_the_kernel_is_compared_with_stream_and_the_option_that_switches_it_on_is_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No GPU is needed: the comparison is given what a kernel that agrees, and one that does not compile, would give."""
    monkeypatch.setattr("floatlens.attention.kernel.available", lambda device: True)
    seconds = {"plain": 2.0, "trace": 3.0, "stream": 3.0, "kernel": 2.5}
    about: dict[str, Any] = {"model": "", "positions": 0, "steps": 0, "ratio": 1.5}
    monkeypatch.setattr(doctor, "cost", lambda device, kernel: about | (seconds if kernel else {}))
    trace = Lens.trace

    def agrees(lens: Lens, prompt: Any, implementation: str, **how: Any) -> Any:
        return trace(lens, prompt, implementation="stream" if implementation == "kernel" else implementation, **how)

    monkeypatch.setattr(Lens, "trace", agrees)
    said = " ".join(run("doctor", "--device", "cpu").stdout.split())
    assert doctor.KERNEL_AGREES in said and "stream 1.50, kernel 1.25" in said

    def fails(lens: Lens, prompt: Any, implementation: str, **how: Any) -> Any:
        if implementation == "kernel":
            raise RuntimeError("out of resource: shared memory")
        return trace(lens, prompt, implementation=implementation, **how)

    monkeypatch.setattr(Lens, "trace", fails)
    said = " ".join(run("doctor", "--device", "cpu").stdout.split())
    assert "do not use it" in said and "kernel 1.25" not in said and doctor.KERNEL_AGREES not in said


def test_statistics_that_are_missing_somewhere_differ() -> None:
    class Stub:
        def __init__(self, hole: bool) -> None:
            value = np.array([1.0, np.nan if hole else 1.0])
            self.data: Any = {name: type("V", (), {"values": value}) for name in doctor.COMPARED}
            self.final_tokens = np.array([1])

    assert doctor.difference(Stub(True), Stub(False))[0] == float("inf")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    done = run("doctor", "--device", "cuda", code=2)
    assert "--device cuda cannot be used on this machine" in done.stderr
