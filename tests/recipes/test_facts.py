"""The definitions applied to the published figures, compared with values computed by hand and with the page."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from floatlens import paper
from floatlens.findings import definitions as d
from floatlens.findings.finding import TEXTS
from recipes.results.facts import PublishedFact, facts, mass, received, shift, table

PAGE = Path(__file__).parents[2] / "docs" / "paper-figures.md"


@pytest.fixture(scope="module")
def found() -> dict[str, PublishedFact]:
    every = facts()
    assert len({fact.statistic for fact in every}) == len(every)
    return {fact.statistic: fact for fact in every}


def test_floating_of_layer_0_is_that_of_three_moves(found: dict[str, PublishedFact]) -> None:
    # anchors: {3, 17} at step 0, {17, 20} at 1 to 25, {45} at 26 to 30, {45, 51} at 31. By hand, with 17 and 20 alike:
    # 1·25 pairs at 1/2, 26·6 at 1, 5·1 at the share of 51 in the last step
    share = mass(0)[31, 51]
    by_hand = (25 * 0.5 + 26 * 6 + 5 * share) / (32 * 31 / 2)
    assert found["floating"].values["layer 0"] == pytest.approx(by_hand, abs=0.003)


def test_floating_of_layer_31_is_that_of_two_steps_away(found: dict[str, PublishedFact]) -> None:
    # position 17 but for two steps: 30·2 + 1 of 496 pairs differ wholly
    assert found["floating"].values["layer 31"] == pytest.approx(61 / 496)


@pytest.mark.parametrize("layer", paper.figures.TEMPORAL_LAYERS)
@pytest.mark.parametrize("u", [0.07, 0.16, 0.3])
def test_floating_and_renewal_do_not_depend_on_the_unknown_offset(layer: int, u: float) -> None:
    assert d.floating(mass(layer, u)) == pytest.approx(d.floating(mass(layer)), abs=0.0005)
    assert d.renewal(mass(layer, u)) == pytest.approx(d.renewal(mass(layer)), abs=0.0005)


def test_an_anchor_hidden_by_the_legend_would_not_make_layer_31_float_like_layer_0():
    hidden = mass(31)
    hidden[1:4] = np.eye(52)[30:33]  # the worst case: a new one in each of the three steps, and nothing else
    assert d.floating(hidden) == pytest.approx(0.24, abs=0.005)
    assert d.floating(hidden) < d.floating(mass(0))


@pytest.mark.parametrize(("layer", "low", "high"), [(0, 0.02, 0.035), (31, -0.15, -0.10)])
def test_shift_keeps_its_sign_and_size_for_every_plausible_offset(layer: int, low: float, high: float) -> None:
    for u in (0.0, 0.07, 0.16, 0.3):
        assert low < shift(layer, u) < high


def test_shift_is_the_movement_of_the_readme_minus_the_null(found: dict[str, PublishedFact]) -> None:
    moved = found["movement of the centre (shares of the answer)"].values
    assert moved["layer 0"] == pytest.approx((29.4 - 10.8) / 32, abs=0.003)
    for layer in paper.figures.TEMPORAL_LAYERS:
        # by hand: the mask part lies at the middle of the masks, the rest at the middle of the visible positions
        centres = []
        masked_ST = paper.reveal_order()["masked"].values
        for step in (0, 31):
            on_masks = received(layer)[step, masked_ST[step]].sum()
            places = np.arange(52)
            middle = on_masks * places[masked_ST[step]].mean() + (1 - on_masks) * places[~masked_ST[step]].mean()
            centres.append(middle)
        null = (centres[1] - centres[0]) / 32
        assert found["movement under the null"].values[f"layer {layer}"] == pytest.approx(null)
        expected = moved[f"layer {layer}"] - null
        assert found["shift beyond the null"].values[f"layer {layer}"] == pytest.approx(expected)


def test_the_two_layers_are_compared_over_pairs_of_different_steps(found: dict[str, PublishedFact]) -> None:
    p = {layer: mass(layer) for layer in (0, 31)}
    between = [d.total_variation(p[0][s], p[31][t]) for s in range(32) for t in range(32) if s != t]
    within = [d.total_variation(x[s], x[t]) for x in p.values() for s, t in combinations(range(32), 2)]
    values = found["distance of anchor mass, layers 0 and 31"].values
    assert values == pytest.approx({"between": np.mean(between), "within": np.mean(within)})


def test_the_headline_numbers(found: dict[str, PublishedFact]) -> None:
    expected = {
        "turnover per step (1 − Jaccard)": (0.070, 0.129),
        "turnover from first to last step": (1, 0),
        "slope of the centre (positions per step)": (0.614, 0.048, 0.500),
        "share of the angle in the advantage (%)": (61.5, 134.5),
        "share of the norm in the advantage (%)": (38.4, -34.8),
        "heads above 0.5 that lie in the deep half (%)": (91, 85),
        "rank correlation of layer and score": (0.87, 0.77),
        "gain of the MDM over that of the ARM": (25.68 / 7.36, 13.23 / 9.65),
        "gain of the MDM minus twice that of the ARM (points)": (25.68 - 14.72, 13.23 - 19.30),
    }
    for statistic, values in expected.items():
        fact = found[statistic]
        assert list(fact.values.values()) == pytest.approx(values, abs=max(0.6 * 10**-fact.digits, 0.005)), statistic


def test_the_note_of_the_figure_has_the_published_shares(found: dict[str, PublishedFact]) -> None:
    shares = found["share of the angle in the advantage (%)"].values
    note = TEXTS["geometry"]["views"]["split"]["note"]
    assert note.endswith(", ".join(f"{value:.0f} % at {layer}" for layer, value in shares.items()))


def test_the_page_holds_the_table_that_the_command_prints():
    ran = subprocess.run([sys.executable, "-m", "recipes.results.facts"], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == table(facts())
    assert ran.stdout.strip() in PAGE.read_text(encoding="utf-8")


def test_the_code_of_the_page_runs():
    code = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    exec(compile(code, str(PAGE), "exec"), {})
