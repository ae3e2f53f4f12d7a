"""The digitised figures give the facts that were worked out when they were read, to the stated uncertainty."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import xarray as xr
from scipy import stats as scipy_stats

from floatlens import paper
from floatlens.errors import FloatLensError
from floatlens.findings import definitions as d
from recipes.results import facts
from recipes.results.facts import slope, split_advantage
from tests.oracle import find_anchors, wasserstein

POSITIONS = 52
PROMPT = 20


def rows_of(layer: int, u: float = 0.0) -> np.ndarray:
    """Received attention (step, position) with u/52 everywhere; rows sum to 1, or are NaN if partly hidden."""
    value_ST = u / POSITIONS + (1 - u) * paper.temporal(layer)["value"].values
    return value_ST / value_ST.sum(axis=1, keepdims=True)


def anchors_of(layer: int) -> np.ndarray:
    return paper.temporal(layer)["anchor"].values


class TestTemporal:
    def test_cells_steps_and_positions(self):
        for layer in paper.figures.TEMPORAL_LAYERS:
            found = paper.temporal(layer)
            assert dict(found.sizes) == {"step": 32, "position": 52}
            hidden = np.argwhere(np.isnan(found["value"].values))
            assert len(hidden) == 63
            assert {*hidden[:, 0]} == {1, 2, 3} and {*hidden[:, 1]} == {*range(30, 51)}
            seen = np.isfinite(found["value"].values)
            assert (found["low"].values < found["value"].values)[seen].all()
            assert (found["value"].values < found["high"].values)[seen].all()

    @pytest.mark.parametrize(("layer", "spread"), [(0, 0.0065), (31, 0.0020)])
    def test_rows_sum_to_one_as_column_means_of_attention_must(self, layer: int, spread: float) -> None:
        sums = paper.temporal(layer)["value"].sum("position", skipna=False).dropna("step").values
        assert len(sums) == 29
        assert sums.mean() == pytest.approx(1)
        assert sums.std() == pytest.approx(spread, abs=0.0001)

    @pytest.mark.parametrize(("layer", "missed"), [(0, []), (31, [(1, 17)])])
    def test_the_published_hatches_are_three_standard_deviations(
        self, layer: int, missed: list[tuple[int, int]]
    ) -> None:
        found = paper.temporal(layer)
        value_ST = found["value"].values
        # what is hidden is spread evenly over the hidden cells, so that the row sums to 1 here too
        rest = (1 - np.nansum(value_ST, axis=1)) / np.maximum(np.isnan(value_ST).sum(axis=1), 1)
        filled = np.where(np.isnan(value_ST), rest[:, None], value_ST)
        ours = find_anchors(filled, np.full(POSITIONS, 1 / POSITIONS))
        assert list(map(tuple, np.argwhere(ours != found["anchor"].values))) == missed
        if missed:
            z = (filled[1, 17] - filled[1].mean()) / filled[1].std()
            assert z == pytest.approx(3.14, abs=0.01)

    @pytest.mark.parametrize(
        ("layer", "mean", "held"),
        [(0, 1.84, {17: 26, 20: 25, 45: 6, 3: 1, 51: 1}), (31, 1.00, {17: 30, 20: 1, 22: 1})],
    )
    def test_anchors_and_how_long_they_hold(self, layer: int, mean: float, held: dict[int, int]) -> None:
        anchors_ST = anchors_of(layer)
        count_S = anchors_ST.sum(axis=1)
        assert count_S.mean() == pytest.approx(mean, abs=0.005)
        assert (count_S.min(), count_S.max()) == ((1, 2) if layer == 0 else (1, 1))
        assert Counter(np.nonzero(anchors_ST)[1].tolist()) == held

    @pytest.mark.parametrize(
        ("layer", "mean", "changes", "total", "dwell"),
        [
            (0, 0.070, {1: 0.667, 26: 1.0, 31: 0.5}, 1.0, 11.8),
            (31, 0.129, {1: 1.0, 2: 1.0, 4: 1.0, 5: 1.0}, 0.0, 6.4),
        ],
    )
    def test_turnover_and_dwell(
        self, layer: int, mean: float, changes: dict[int, float], total: float, dwell: float
    ) -> None:
        anchors_ST = anchors_of(layer)
        turnover = facts.turnover(anchors_ST)
        assert turnover.mean() == pytest.approx(mean, abs=0.0005)
        found = {int(step) + 1: turnover[step] for step in np.flatnonzero(turnover)}
        assert found == pytest.approx(changes, abs=0.001)
        assert facts.turnover(anchors_ST[[0, -1]])[0] == total
        assert facts.dwell(anchors_ST) == pytest.approx(dwell, abs=0.05)

    @pytest.mark.parametrize(
        ("layer", "u", "mean", "least", "most"),
        [
            (0, 0, 0.259, 0.122, 0.406),
            (31, 0, 0.174, 0.119, 0.207),
            (0, 0.07, 0.243, None, None),
            (31, 0.3, 0.127, None, None),
        ],
    )
    def test_anchor_mass(self, layer: int, u: float, mean: float, least: float | None, most: float | None) -> None:
        # hidden steps have no row sum; there the scale of the figure stands
        value_ST = u / POSITIONS + (1 - u) * paper.temporal(layer)["value"].values
        rows = rows_of(layer, u)
        mass = np.where(anchors_of(layer), np.where(np.isnan(rows), value_ST, rows), 0).sum(axis=1)
        assert mass.mean() == pytest.approx(mean, abs=0.0015)
        if least is not None:
            assert (mass.min(), mass.max()) == pytest.approx((least, most), abs=0.0015)

    @pytest.mark.parametrize(("layer", "expected"), [(0, 0.0), (31, 0.953)])
    def test_mass_on_anchors_that_hold_nine_in_ten_steps(self, layer: int, expected: float) -> None:
        anchors_ST = anchors_of(layer)
        mass = np.where(anchors_ST, paper.temporal(layer)["value"].values, 0)
        lasting = anchors_ST.mean(axis=0) >= 0.9
        assert mass[:, lasting].sum() / mass.sum() == pytest.approx(expected, abs=0.001)

    @pytest.mark.parametrize(("layer", "first", "last"), [(0, 10.8, 29.4), (31, 19.4, 21.3)])
    def test_the_centre_of_mass_moves_right(self, layer: int, first: float, last: float) -> None:
        centre = d.centre(rows_of(layer)[[0, -1]])
        assert centre == pytest.approx([first, last], abs=0.06)

    @pytest.mark.parametrize(
        ("layer", "u", "all_positions", "generated"),
        [
            (0, 0.0, 0.614, 0.613),
            (0, 0.07, 0.571, 0.544),
            (0, 0.16, 0.515, 0.465),
            (0, 0.30, 0.430, 0.359),
            (31, 0.0, 0.048, 0.118),
            (31, 0.07, 0.044, 0.107),
            (31, 0.16, 0.040, 0.093),
            (31, 0.30, 0.033, 0.074),
        ],
    )
    def test_slopes_of_the_centre(self, layer: int, u: float, all_positions: float, generated: float) -> None:
        rows = rows_of(layer, u)
        assert slope(_centre(rows)) == pytest.approx(all_positions, abs=0.001)
        assert slope(_centre(rows[:, PROMPT:])[4:]) == pytest.approx(generated, abs=0.001)

    @pytest.mark.parametrize(
        ("layer", "step_4", "step_31", "per_step"), [(0, 22.5, 38.3, 0.487), (31, 32.0, 34.1, 0.088)]
    )
    def test_the_generated_part(self, layer: int, step_4: float, step_31: float, per_step: float) -> None:
        centre = PROMPT + _centre(rows_of(layer)[:, PROMPT:])
        assert (centre[4], centre[31]) == pytest.approx((step_4, step_31), abs=0.06)
        assert slope(centre) == pytest.approx(per_step, abs=0.001)

    @pytest.mark.parametrize(
        ("layer", "mean", "most", "into", "total"), [(0, 0.594, 3.41, 26, 18.6), (31, 0.387, 1.83, 5, 1.97)]
    )
    def test_wasserstein_distances(self, layer: int, mean: float, most: float, into: int, total: float) -> None:
        rows = rows_of(layer)
        distance = wasserstein(rows[1:], rows[:-1])
        assert np.isfinite(distance).sum() == 27
        assert np.nanmean(distance) == pytest.approx(mean, abs=0.001)
        assert np.nanmax(distance) == pytest.approx(most, abs=0.01)
        assert np.nanargmax(distance) + 1 == into
        assert wasserstein(rows[0], rows[-1]) == pytest.approx(total, abs=0.05)

    @pytest.mark.parametrize(
        ("layer", "shares"), [(0, [0.016, 0.047, 0.094, 0.132, 0.096]), (31, [0.351, 0.224, 0.129, 0.054, 0.007])]
    )
    def test_the_share_on_masks(self, layer: int, shares: list[float]) -> None:
        masked_ST = paper.reveal_order()["masked"].values
        found = np.where(masked_ST, rows_of(layer), 0).sum(axis=1)
        assert found[[0, 8, 16, 24, 31]] == pytest.approx(shares, abs=0.0007)


def _centre(rows: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(rows).any(axis=1), np.nan, d.centre(rows))


class TestRevealOrder:
    def test_one_position_is_revealed_per_step_almost_from_left_to_right(self):
        found = paper.reveal_order()
        answer = found["revealed_at"].values[PROMPT:]
        assert sorted(answer) == list(range(1, 33))
        assert scipy_stats.spearmanr(np.arange(32), answer).statistic == pytest.approx(0.997, abs=0.0005)
        assert np.flatnonzero(~found["certain"].values).tolist() == [42, 44]
        assert answer[36 - PROMPT] < answer[34 - PROMPT]

    def test_equal_attention_on_what_is_visible_moves_right_by_half_a_position_per_step(self):
        visible_ST = ~paper.reveal_order()["masked"].values
        assert visible_ST.sum(axis=1).tolist() == list(range(20, 52))
        assert slope(d.centre(visible_ST.astype(float))) == pytest.approx(0.500, abs=0.0006)

    def test_new_anchors_of_the_answer_appear_when_they_are_revealed(self):
        revealed_at = paper.reveal_order()["revealed_at"].values
        for layer, expected in ((0, {20: 1, 45: 26, 51: 31}), (31, {20: 1, 22: 4})):
            first = {
                int(p): int(np.flatnonzero(anchors_of(layer)[:, p])[0])
                for p in np.flatnonzero(anchors_of(layer).any(axis=0))
                if p >= PROMPT
            }
            assert first == expected
            assert all(step == revealed_at[p] for p, step in first.items() if p != 51)
        assert paper.reveal_order()["masked"].values[31, 51]


BY_LAYER = {
    ("llada", 0.1): "25 17 24 10 19 21 19 30 21 25 31 19 18 29 16 19 27 23 22 23 17 23 24 23 21 28 26 30 24 29 27 26",
    ("llada", 0.3): "2 4 0 1 2 1 2 4 2 1 6 3 2 13 3 7 16 9 6 16 5 12 16 18 11 15 17 19 16 17 19 21",
    ("llada", 0.5): "0 0 0 0 0 0 0 1 0 1 4 0 1 5 3 4 10 5 5 10 5 9 14 16 9 13 12 16 12 15 16 18",
    ("dream", 0.1): "4 1 8 2 7 9 3 6 11 15 5 15 16 6 25 11 22 13 7 21 7 13 24 20 16 10 24 23",
    ("dream", 0.3): "1 0 3 1 7 6 0 2 7 5 1 9 7 0 22 6 17 6 4 19 5 12 18 19 8 10 21 19",
    ("dream", 0.5): "0 0 1 0 6 4 0 1 4 2 0 6 2 0 12 6 14 5 2 13 3 11 15 17 5 10 19 16",
}


class TestRetrievalHeads:
    @pytest.mark.parametrize(("model", "above"), BY_LAYER)
    def test_heads_above_a_threshold_by_layer(self, model: str, above: float) -> None:
        score_LH = paper.retrieval_heads(model)["score"].values
        assert " ".join(map(str, (score_LH > above).sum(axis=1))) == BY_LAYER[model, above]

    @pytest.mark.parametrize(
        ("model", "mean", "median", "shares", "depth", "halves", "correlation"),
        [
            ("llada", 0.273, 0.178, (0.53, 0.81, 0.91), 0.761, (0.174, 0.371), (0.87, 0.87)),
            ("dream", 0.231, 0.068, (0.69, 0.79, 0.85), 0.711, (0.113, 0.348), (0.72, 0.77)),
        ],
    )
    def test_scores_by_depth(
        self,
        model: str,
        mean: float,
        median: float,
        shares: tuple[float, ...],
        depth: float,
        halves: tuple[float, float],
        correlation: tuple[float, float],
    ) -> None:
        score_LH = paper.retrieval_heads(model)["score"].values
        assert (score_LH.mean(), np.median(score_LH)) == pytest.approx((mean, median), abs=0.0006)
        assert [facts.deep_share(score_LH, above) for above in (0.1, 0.3, 0.5)] == pytest.approx(shares, abs=0.005)
        assert d.retrieval_depth(np.where(score_LH > 0.5, score_LH, 0)) == pytest.approx(depth, abs=0.0006)
        half = len(score_LH) // 2
        assert (score_LH[:half].mean(), score_LH[half:].mean()) == pytest.approx(halves, abs=0.0006)
        pearson = np.corrcoef(np.arange(len(score_LH)), score_LH.mean(axis=1))[0, 1]
        assert (pearson, facts.depth_correlation(score_LH)) == pytest.approx(correlation, abs=0.0055)

    def test_a_threshold_of_one_tenth_separates_nothing_in_llada(self):
        assert float((paper.retrieval_heads("llada")["score"] > 0.1).mean()) == pytest.approx(0.72, abs=0.005)

    def test_a_cell_is_known_to_half_a_colour_step(self):
        found = paper.retrieval_heads("dream")
        np.testing.assert_allclose((found["high"] - found["low"]).values, 1 / 256)
        assert (np.abs(found["score"] - 0.5) < 0.0025).sum() == 1


class TestAbsorption:
    @pytest.mark.parametrize(
        ("model", "mean", "shallow", "deep", "most", "at", "band", "relative"),
        [
            ("llama", 74.5, 68.7, 80.2, 91.4, 2, 3.9, 0.06),
            ("qwen", 63.3, 55.6, 71.0, 83.9, 5, 4.1, 0.08),
            ("llada", 18.4, 13.9, 23.0, 32.1, 27, 12.5, 0.62),
            ("dream", 34.0, 27.2, 40.9, 55.2, 26, 10.3, 0.30),
        ],
    )
    def test_facts_by_model(
        self, model: str, mean: float, shallow: float, deep: float, most: float, at: int, band: float, relative: float
    ) -> None:
        found = paper.absorption().sel(model=model).dropna("layer", subset=["mean"])
        curve = found["mean"].values
        half = len(curve) // 2
        assert (curve.mean(), curve[:half].mean(), curve[half:].mean()) == pytest.approx(
            (mean, shallow, deep), abs=0.06
        )
        assert (curve.max(), curve.argmax()) == (pytest.approx(most, abs=0.06), at)
        width = ((found["high"] - found["low"]) / 2).values
        assert width.mean() == pytest.approx(band, abs=0.06)
        assert (width / curve).mean() == pytest.approx(relative, abs=0.01)

    def test_jumps_and_ends(self):
        curve = paper.absorption()["mean"]
        assert curve.sel(model="dream", layer=[3, 4]).values == pytest.approx([6.4, 49.4], abs=0.06)
        assert curve.sel(model="qwen", layer=[3, 4]).values == pytest.approx([15.8, 81.7], abs=0.06)
        assert curve.sel(model="llada", layer=[0, 31]).values == pytest.approx([11.8, 10.2], abs=0.06)
        assert curve.sel(model="dream", layer=28).isnull() and curve.sel(model="llada", layer=31).notnull()

    def test_points_under_the_legend_are_named(self):
        uncertain = paper.absorption()["uncertain"]
        assert uncertain.sel(model="llama", layer=25).item() == "legend:mean+high+low"
        assert (uncertain.sel(model="llada", layer=0) == "").item()


class TestQK:
    ROWS = slice(7, 52)

    @pytest.mark.parametrize(
        ("layer", "score", "cos", "norm", "ranks", "tops"),
        [
            (11, (3.610, 1.882, 8.3), (0.566, 0.378, 5.5), (6.404, 4.987, 4.1), (1, 1, 1), (45, 38)),
            (28, (1.763, 0.268, 6.1), (0.370, 0.039, 9.6), (4.767, 7.314, -4.8), (1, 1, 53), (36, 45)),
        ],
    )
    def test_the_marked_key_against_the_others(
        self,
        layer: int,
        score: tuple[float, ...],
        cos: tuple[float, ...],
        norm: tuple[float, ...],
        ranks: tuple[int, ...],
        tops: tuple[int, int],
    ) -> None:
        found = paper.qk(layer).isel(query=self.ROWS)
        for name, expected, rank in zip(("score", "cos", "norm"), (score, cos, norm), ranks, strict=True):
            columns = found[name].mean("query").values
            others = np.delete(columns, 45)
            z = (columns[45] - others.mean()) / others.std()
            assert (columns[45], others.mean()) == pytest.approx(expected[:2], abs=0.0006)
            assert z == pytest.approx(expected[2], abs=0.06)
            assert 1 + (others > columns[45]).sum() == rank
        first = tuple((found[name].max("key") == found[name].sel(key=45)).sum().item() for name in ("score", "cos"))
        assert first == tops

    @pytest.mark.parametrize(("layer", "angle", "norm"), [(11, 0.615, 0.384), (28, 1.345, -0.348)])
    def test_the_split_into_angle_and_norm(self, layer: int, angle: float, norm: float) -> None:
        found = paper.qk(layer).isel(query=self.ROWS)
        cos_QT, norm_QT, marked_T = (found[name].values for name in ("cos", "norm", "marked"))
        shares = split_advantage(cos_QT * norm_QT, cos_QT, norm_QT, marked_T).shares()
        assert shares[:2] == pytest.approx((angle, norm), abs=0.0006)
        assert abs(shares[2]) < 0.004  # the covariance of the two factors among other keys
        drawn = split_advantage(found["score"].values, cos_QT, norm_QT, marked_T)
        assert drawn.advantage.mean() == pytest.approx({11: 1.728, 28: 1.495}[layer], abs=0.001)
        assert drawn.shares()[:2] == pytest.approx((angle, norm), abs=0.005)  # the score was read to 0.02 only

    @pytest.mark.parametrize(
        ("layer", "angle_first", "norm_first"),
        [(11, (0.539, 0.461), (0.692, 0.308)), (28, (1.628, -0.632), (1.061, -0.065))],
    )
    def test_the_sign_does_not_depend_on_what_is_changed_first(
        self, layer: int, angle_first: tuple[float, float], norm_first: tuple[float, float]
    ) -> None:
        found = paper.qk(layer).isel(query=self.ROWS)
        cos, norm = (found[name].sel(key=45).values for name in ("cos", "norm"))
        cos_, norm_ = (found[name].drop_sel(key=45).mean("key").values for name in ("cos", "norm"))
        product = found["cos"] * found["norm"]
        whole = float((product.sel(key=45) - product.drop_sel(key=45).mean("key")).mean())
        first = ((cos - cos_) * norm_).mean() / whole, ((norm - norm_) * cos).mean() / whole
        last = ((cos - cos_) * norm).mean() / whole, ((norm - norm_) * cos_).mean() / whole
        assert first == pytest.approx(angle_first, abs=0.001)
        assert last == pytest.approx(norm_first, abs=0.001)

    @pytest.mark.parametrize(("layer", "rms", "rank_one"), [(11, 0.012, 0.0019), (28, 0.014, 0.0014)])
    def test_the_three_panels_agree_with_one_another(self, layer: int, rms: float, rank_one: float) -> None:
        found = paper.qk(layer)
        residual = found["score"] - found["cos"] * found["norm"]
        assert float(np.sqrt((residual**2).mean())) == pytest.approx(rms, abs=0.0006)
        relative = found["norm"] / found["norm_fitted"] - 1
        assert float(np.sqrt((relative**2).mean())) == pytest.approx(rank_one, abs=0.0001)
        assert not found["norm_fitted"].isnull().any() and found["norm"].isnull().any()


class TestRollout:
    @pytest.mark.parametrize(
        ("gold", "column", "others", "spread", "z", "z_all", "largest"),
        [
            (1, 0.1362, 0.0924, 0.0112, 3.9, 2.39, 0.108),
            (5, 0.1394, 0.0925, 0.0115, 4.1, 2.42, 0.109),
            (10, 0.1327, 0.0932, 0.0119, 3.3, 2.23, 0.110),
        ],
    )
    def test_the_gold_column_against_the_other_documents(
        self, gold: int, column: float, others: float, spread: float, z: float, z_all: float, largest: float
    ) -> None:
        found = paper.rollout("llada", gold=gold)
        documents = [f"doc{i}" for i in range(1, 11)]
        values = found["value"].mean("region").sel(region_to=documents).values
        rest = np.delete(values, gold - 1)
        assert found.attrs["gold"] == f"doc{gold}"
        assert values[gold - 1] == pytest.approx(column, abs=0.0001)
        assert (rest.mean(), rest.std(ddof=1)) == pytest.approx((others, spread), abs=0.0006)
        assert (values[gold - 1] - rest.mean()) / rest.std(ddof=1) == pytest.approx(z, abs=0.06)
        assert (values[gold - 1] - values.mean()) / values.std() == pytest.approx(z_all, abs=0.03)
        assert rest.max() == pytest.approx(largest, abs=0.0006)

    @pytest.mark.parametrize("gold", paper.figures.GOLD_POSITIONS)
    def test_every_source_row_is_the_same_within_one_colour_step(self, gold: int) -> None:
        found = paper.rollout("llada", gold=gold)["value"]
        assert float((found.max("region") - found.min("region")).max()) < 0.0011
        assert found.sum("region_to").values == pytest.approx(np.ones(13), abs=0.0008)

    def test_values_follow_the_document_and_not_the_slot(self):
        columns = {}
        for gold in paper.figures.GOLD_POSITIONS:
            documents = [f"doc{i}" for i in range(1, 11) if i != gold]
            columns[gold] = paper.rollout("llada", gold=gold)["value"].mean("region").sel(region_to=documents).values
        for one, other in ((1, 5), (1, 10), (5, 10)):
            assert np.corrcoef(columns[one], columns[other])[0, 1] == pytest.approx(0.9975, abs=0.002)

    def test_llama_puts_everything_on_bos(self):
        found = paper.rollout("llama")
        assert float(found["low"].sel(region_to="bos").min()) >= 0.996
        assert float(found["high"].drop_sel(region_to="bos").max()) <= 0.004


class TestTable1:
    def test_the_printed_averages_are_those_of_the_cells(self):
        found = paper.table1()
        assert dict(found.sizes) == {"model": 4, "condition": 2, "dataset": 5, "metric": 2}
        assert float(np.abs(found["score"].mean(["dataset", "metric"]) - found["average"]).max()) < 0.0125

    def test_a_masked_model_gains_more_but_only_one_of_two_gains_twice_as_much(self):
        average = paper.table1()["average"]
        gain = average.sel(condition="open-book") - average.sel(condition="closed-book")
        assert float(gain.sel(model="llada") / gain.sel(model="llama")) == pytest.approx(3.5, abs=0.05)
        assert float(gain.sel(model="dream") / gain.sel(model="qwen")) == pytest.approx(1.37, abs=0.005)


class TestLoading:
    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: paper.temporal(layer=7), "no temporal figure of layer 7 in the paper; use one of 0, 31"),
            (lambda: paper.retrieval_heads("llama"), "model 'llama' in the paper; use one of llada, dream"),
            (lambda: paper.qk(layer=0), "no QK figure of layer 0 in the paper; use one of 11, 28"),
            (lambda: paper.rollout("dream"), "model 'dream' in the paper; use one of llada, llama"),
            (lambda: paper.rollout("llada", gold=2), "gold at 2 in the paper; use one of 1, 5, 10"),
            (lambda: paper.rollout("llama", gold=1), "one picture for all placements .* leave out gold=1"),
        ],
    )
    def test_what_the_paper_does_not_show_is_an_error_that_says_what_it_shows(self, call, message: str) -> None:
        with pytest.raises(FloatLensError, match=message):
            call()

    def test_every_figure_says_where_it_comes_from_and_how_sure_it_is(self):
        figures = [
            paper.absorption(),
            *map(paper.temporal, paper.figures.TEMPORAL_LAYERS),
            paper.reveal_order(),
            *map(paper.retrieval_heads, paper.figures.RETRIEVAL_MODELS),
            *map(paper.qk, paper.figures.QK_LAYERS),
            *(paper.rollout("llada", gold) for gold in paper.figures.GOLD_POSITIONS),
            paper.rollout("llama"),
            paper.table1(),
        ]
        for found in figures:
            assert isinstance(found, xr.Dataset)
            assert {"source", "figure", "method", "uncertainty"} <= found.attrs.keys()
            assert all(found.attrs.values()) or "layer" in found.attrs  # layer 0 is a value too
