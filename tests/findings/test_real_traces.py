"""The findings on traces of the small random models of the golden data."""

import numpy as np
import pytest

from floatlens.errors import FloatLensError
from floatlens.findings.finding import FINDINGS
from floatlens.trace.trace import Trace
from recipes.results import facts
from tests import golden_data

pytestmark = pytest.mark.golden


@pytest.fixture(scope="module", params=golden_data.names("models"))
def trace(request, tmp_path_factory):
    made = golden_data.lens(request.param).trace(golden_data.special()["prompts"][-1], max_new_tokens=8, steps=4)
    return Trace.open(made.save(tmp_path_factory.mktemp("trace") / "one", dtype="float32"))


def test_drift_and_absorption(trace):
    drift, absorption = FINDINGS["drift"](trace, rule="top(1)"), FINDINGS["absorption"](trace, rule="top(1)")
    received = trace.data["received"].mean("head")
    np.testing.assert_allclose(
        absorption["absorption"].squeeze(), 100 * received.max("position").mean("step"), rtol=1e-5
    )
    top = received.argmax("position")
    changes = (top.isel(step=slice(1, None)).values != top.isel(step=slice(None, -1)).values).mean(axis=0)
    anchors = trace.anchors("top(1)").transpose("step", "layer", "position").values
    np.testing.assert_allclose(facts.turnover(anchors).mean(axis=0), changes, atol=1e-9)
    np.testing.assert_allclose(drift["n_anchors"], 1.0)


def test_geometry_splits_the_recorded_scores(trace):
    found = FINDINGS["geometry"](trace, rule="top(2)")
    anchors = trace.anchors("top(2)")
    score = trace.data["qk"]
    expected = (score.where(anchors).mean("position") - score.where(~anchors).mean("position")).mean(("step", "head"))
    np.testing.assert_allclose(found["advantage"].squeeze(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["norm_part"] + found["angle_part"], found["advantage"], rtol=1e-5, atol=1e-7)


def test_flow_of_a_prompt_without_documents(trace):
    found = FINDINGS["flow"](trace)
    np.testing.assert_allclose(found["rollout"].sum("region_to"), 1.0, rtol=1e-5)
    assert found["gold_position"].item() == -1 and np.isnan(found["follows"].item())
    assert FINDINGS["flow"].figure(trace, backend="none")["flow"].between(0, 1).all()


def test_what_a_trace_cannot_say_is_said(trace):
    assert FINDINGS["heads"](trace)["reason"].item() == "no gold document is named"
    with pytest.raises(FloatLensError, match="holds no token strings"):
        FINDINGS["tokens"](trace)
