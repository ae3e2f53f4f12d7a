"""The paper's own files become traces; a pickle that asks for more than NumPy is refused by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from floatlens import FloatLensError, import_npz
from tests import golden_data


def paper_file(path: Path, steps: int = 3, layers: int = 2, length: int = 6) -> dict[str, Any]:
    random = np.random.default_rng(0)

    def stochastic(*shape: int) -> np.ndarray:
        raw = random.random(shape)
        return (raw / raw.sum(-1, keepdims=True)).astype(np.float32)

    data = [
        {"step": s, "sequence": np.arange(length) + s * (np.arange(length) > 3)}
        | {f"layer_{n}_attention_avg": stochastic(length, length) for n in range(layers)}
        for s in range(steps)
    ]
    fields: dict[str, Any] = {
        "step_attention_data": np.array(data, dtype=object),
        "input_length": 4,
        "num_generated_tokens": 2,
    }
    fields |= {"question": np.array("why?"), "gold_answer": np.array(["because"], dtype=object)}
    np.savez(path, **fields)
    return {"steps": data, **fields}


def test_step_data_becomes_a_trace(tmp_path: Path) -> None:
    wanted = paper_file(tmp_path / "llada.npz")
    trace = import_npz(tmp_path / "llada.npz", model="LLaDA")
    assert trace.data["received"].dims == ("step", "layer", "head", "position")
    for s, step in enumerate(wanted["steps"]):
        for n in range(2):
            found = trace.data["received"].sel(step=s, layer=n, head=-1)
            np.testing.assert_allclose(found, step[f"layer_{n}_attention_avg"].mean(0), atol=1e-6)
    assert trace.question == "why?" and trace.answers == ["because"] and trace.prompt_length == 4
    assert trace.anchors("top(1)").sum() == 6
    np.testing.assert_array_equal(trace.data["committed_at"], [-1, -1, -1, -1, 1, 1])


@pytest.mark.golden
@pytest.mark.parametrize("name", golden_data.names("attention"))
def test_full_matrices_become_one_step_with_the_right_key_heads(name: str, tmp_path: Path) -> None:
    arrays = golden_data.arrays(f"attention/{name}.npz")
    fields = {"input_length": arrays["input_length"]}
    for n, heads in enumerate(arrays["attention_heads"]):
        fields |= {f"layer_{n}_full_attention": heads.mean(0), f"layer_{n}_full_attention_heads": heads}
        fields |= {
            f"layer_{n}_query_states": arrays["query_states"][n],
            f"layer_{n}_key_states": arrays["key_states"][n],
        }
    np.savez(tmp_path / "full.npz", **fields)
    trace = import_npz(tmp_path / "full.npz")
    np.testing.assert_allclose(trace.data["received"][0], arrays["attention_heads"].mean(-2), atol=1e-6)
    groups = arrays["query_states"].shape[1] // arrays["key_states"].shape[1]
    for h in range(arrays["query_states"].shape[1]):
        score = np.einsum("lqd,ltd->lqt", arrays["query_states"][:, h], arrays["key_states"][:, h // groups])
        np.testing.assert_allclose(trace.data["qk"][0].sel(head=h), score.mean(1), atol=1e-4)


class Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch hacked",)


def test_a_pickle_that_calls_anything_else_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("evil.npz", step_attention_data=np.array([Evil()], dtype=object))
    with pytest.raises(FloatLensError, match=r"asks to call posix\.system"):
        import_npz("evil.npz")
    assert not Path("hacked").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nothing", b"\x00" * 100])
def test_what_is_no_npz_is_said(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(FloatLensError, match="is not a readable"):
        import_npz(tmp_path / "x.npz")


def test_other_contents_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", something=np.ones(3))
    with pytest.raises(FloatLensError, match="neither step_attention_data nor layer_N_full_attention"):
        import_npz(tmp_path / "x.npz")
