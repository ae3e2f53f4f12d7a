"""The published numbers compared with a run: in figures, and as distances."""

import numpy as np
import pytest
import xarray as xr

from floatlens import paper
from floatlens.findings import nearness, published
from floatlens.findings.drift import drift
from floatlens.findings.finding import FINDINGS
from floatlens.paper import facts
from tests.findings.planted import planted


@pytest.mark.parametrize("name", ["absorption", "drift", "heads", "flow", "geometry"])
def test_a_figure_shows_the_published_one_too(name):
    traces = [planted(seed=i, layers=2, copying=(1, 0), gold=1 + i) for i in range(2)]
    traces += [planted(model="arm", kind="arm", layers=2)]
    alone = FINDINGS[name].figure(traces, backend="none")
    both = FINDINGS[name].figure(traces, backend="none", paper=True)
    if name != "geometry":  # the split is not in the same units, so it is told in the caption
        added = set(both["model"]) - set(alone["model"])
        assert added and all(model.endswith("(paper)") for model in added)
    figure = FINDINGS[name].figure(traces, paper=True)
    texts = [text.get_text() for text in figure.findobj(lambda item: hasattr(item, "get_text"))]
    assert any("(paper)" in text for text in texts)


def test_the_published_temporal_figures_make_a_trace_with_the_published_statistics():
    trace = published.temporal_trace()
    np.testing.assert_allclose(trace.data["received"].sum("position"), 1.0, rtol=1e-5)
    assert (trace.data["committed_at"].values[:20] == -1).all() and (trace.data["committed_at"].values[20:] >= 0).all()
    found = drift(trace)
    known = {fact.statistic: fact.values for fact in facts.facts() if fact.finding == "drift"}
    # anchors are found in the numbers, not taken from the hatching, of which one cell in 3202 differs
    assert found["floating"].values[0, 0] == pytest.approx(known["floating"]["layer 0"], abs=0.03)
    assert found["shift"].values[0].tolist() == pytest.approx(list(known["shift beyond the null"].values()), abs=0.01)


def planted_heads(score_LH, kind="mdm"):
    layers = len(score_LH)
    return xr.Dataset(
        {
            "hit": (("sample", "layer", "head"), score_LH[None]),
            "depth": (("sample", "layer"), np.linspace(0, 1, layers)[None]),
        },
        coords={"sample": [0], "model": ("sample", ["m"]), "model_kind": ("sample", [kind])},
    )


def test_the_published_heads_are_as_near_to_themselves_as_can_be():
    score = paper.retrieval_heads("llada")["score"].values
    found = {row.number: row for row in nearness.compare({"heads": planted_heads(score)}) if row.published == "LLaDA"}
    assert found["rank correlation over heads"].run == pytest.approx(1.0)
    assert found["overlap of the strongest 5 % of heads (Jaccard)"].run == 1.0
    assert found["score-weighted depth"].run == pytest.approx(found["score-weighted depth"].paper)
    turned = nearness.compare({"heads": planted_heads(score[::-1])})
    assert turned[1].run < 0.5
    small = nearness.compare({"heads": planted_heads(np.array([[0.0, 0.1], [0.2, 0.2], [0.9, 0.5]]))})
    assert "by relative depth" in small[1].number and small[1].run > 0.5


def test_the_published_curve_is_at_distance_zero_from_itself():
    curve = paper.absorption()["mean"].sel(model="llama").dropna("layer").values
    measured = xr.Dataset(
        {
            "absorption": (("sample", "rule", "layer"), curve[None, None]),
            "depth": (("sample", "layer"), np.linspace(0, 1, len(curve))[None]),
        },
        coords={"sample": [0], "rule": ["first"], "model": ("sample", ["m"]), "model_kind": ("sample", ["arm"])},
    )
    found = {(row.published, row.number): row.run for row in nearness.compare({"absorption": measured})}
    assert found["Llama", "correlation of the curves"] == pytest.approx(1.0)
    assert found["Llama", "mean distance of the curves (points)"] == pytest.approx(0.0)
    assert found["Qwen", "mean distance of the curves (points)"] > 3


def test_a_measured_drift_stands_beside_the_published_one():
    rows = nearness.compare({"drift": drift([planted(seed=i) for i in range(2)])})
    first = next(row for row in rows if row.number == "floating, first layer")
    assert (first.run, first.paper) == (pytest.approx(0.0), pytest.approx(0.345, abs=0.001))
