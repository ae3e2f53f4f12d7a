"""The published numbers beside those of a run."""

import numpy as np
import pytest

from floatlens.findings import published
from floatlens.findings.drift import drift
from floatlens.findings.finding import FINDINGS
from recipes.results import facts
from tests.findings.planted import planted


@pytest.mark.parametrize("name", ["absorption", "drift", "heads", "flow"])
def test_a_figure_shows_the_published_one_too(name):
    traces = [planted(seed=i, layers=2, copying=(1, 0), gold=1 + i) for i in range(2)]
    traces += [planted(model="arm", kind="arm", layers=2)]
    alone = FINDINGS[name].figure(traces, backend="none")
    both = FINDINGS[name].figure(traces, backend="none", paper=True)
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
