"""Traces from outputs of transformers, compared with what `observe` records of the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import floatlens as fl
from tests.models import checkpoints

IDS = [[5, 9, 40, 7, 22, 31]]
REGIONS = {"fact": (0, 3), "question": (3, 6)}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Models of transformers that return their attention; the end token is out of reach."""
    made = {}
    for name in ("llama", "mistral-window", "bert"):
        folder = checkpoints.native(tmp_path_factory.mktemp(name), name)
        auto = transformers.AutoModelForMaskedLM if name == "bert" else transformers.AutoModelForCausalLM
        made[name] = auto.from_pretrained(folder, attn_implementation="eager").eval()
    return made


def generate(model: Any, ids: torch.Tensor, **options: Any) -> Any:
    wanted = {"output_attentions": True, "return_dict_in_generate": True, "output_logits": True}
    return model.generate(ids, do_sample=False, max_new_tokens=5, min_new_tokens=5, **wanted, **options)


def assert_same(made: fl.Trace, expected: fl.Trace) -> None:
    for name in made.data.data_vars:
        got, wanted = made.data[name], expected.data[name]
        assert got.dims == wanted.dims, name
        np.testing.assert_allclose(got.values, wanted.values, atol=2e-5, err_msg=str(name))
    for name in ("kind", "attention", "cached", "prompt_length", "regions", "output"):
        assert made.data.attrs[name] == expected.data.attrs[name], name


@pytest.mark.parametrize("cache", [{}, {"use_cache": False}, {"cache_implementation": "static"}], ids=str)
@pytest.mark.parametrize("name", ["llama", "mistral-window"])
def test_the_outputs_of_generate_make_the_trace_that_observe_makes(
    name: str, cache: dict[str, Any], models: dict[str, Any]
) -> None:
    model, ids = models[name], torch.tensor(IDS)
    with fl.observe(model, regions=REGIONS, matrices=["attention"]) as watch:
        outputs = generate(model, ids, **cache)
    made = fl.Trace.from_transformers(outputs, regions=REGIONS, matrices=["attention"])
    assert_same(made, watch.trace())
    assert {"received", "received_writing", "entropy", "flow", "attention"} <= set(made.data.data_vars)
    assert np.isfinite(made.data["confidence"].values).sum() == 5
    assert fl.findings.absorption.measure(made)["absorption"].notnull().all()


def test_a_padded_row_makes_the_trace_of_the_row_alone(models: dict[str, Any], tmp_path: Path) -> None:
    model = models["llama"]
    padded = torch.tensor([[0, 0, *IDS[0]], [8, 3, 17, 4, 9, 11, 30, 6]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1], [1] * 8])
    together = fl.Trace.from_transformers(
        generate(model, padded, attention_mask=mask), attention_mask=mask, sample_id="padded"
    )
    alone = fl.Trace.from_transformers(generate(model, torch.tensor(IDS)))
    assert_same(together, alone)
    assert fl.Trace.open(together.save(tmp_path / "trace")).data.attrs["sample_id"] == "padded"


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_a_forward_pass_is_a_trace_of_one_step(name: str, models: dict[str, Any]) -> None:
    model, ids = models[name], torch.tensor([[*IDS[0], 0], [8, 3, 17, 4, 9, 11, 30]])
    mask = torch.tensor([[1] * 6 + [0], [1] * 7])
    with torch.no_grad():
        outputs = model(ids, attention_mask=mask, output_attentions=True)
    made = fl.Trace.from_transformers(outputs, ids, attention_mask=mask, matrices=["attention", "attention_mean"])
    weights = torch.stack(outputs.attentions)[:, 0, :, :6, :6].numpy()
    np.testing.assert_allclose(made.data["received"].values[0], weights.mean(2), atol=1e-6)
    np.testing.assert_allclose(made.data["attention_mean"].values[0], weights.mean(1), atol=1e-6)
    assert (made.kind, made.data.sizes["step"], made.final_tokens.tolist()) == (
        "mdm" if name == "bert" else "arm", 1, IDS[0],
    )  # fmt: skip
    assert made.anchors("top(1)").any()


def test_outputs_without_a_trace_are_refused(models: dict[str, Any]) -> None:
    model, ids = models["llama"], torch.tensor(IDS)
    with torch.no_grad():
        outputs = model(ids, output_attentions=True)
        with pytest.raises(fl.FloatLensError, match="output_attentions=True"):
            fl.Trace.from_transformers(model(ids), ids)
    with pytest.raises(fl.FloatLensError, match="pass them as input_ids="):
        fl.Trace.from_transformers(outputs)
    with pytest.raises(fl.FloatLensError, match="input_ids have 2 tokens, but the attention has 6 keys"):
        fl.Trace.from_transformers(outputs, ids[:, :2])
    with pytest.raises(fl.FloatLensError, match="generate with num_beams=1"):
        fl.Trace.from_transformers(generate(model, ids, num_beams=2))
    with pytest.raises(fl.FloatLensError, match="'queries' cannot be computed from attention"):
        fl.Trace.from_transformers(outputs, ids, matrices=["queries"])
