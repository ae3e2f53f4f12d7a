"""The functions of the findings on arrays so small that the result is worked out by hand."""

import numpy as np
import pytest
import xarray as xr

from floatlens.findings import absorption, drift, flow, geometry, heads, other_papers, reuse, sink, stress, tokens
from floatlens.findings.draw import plain
from floatlens.findings.finding import describe_setting
from floatlens.findings.published import absorption_rows
from floatlens.findings.samples import halves, mean_over, question_of, samples_per_model, split_id, spread
from floatlens.findings.spelling import count, listed, points
from floatlens.findings.style import looks_of, short
from floatlens.findings.window import profile

YES, NO, NAN = True, False, np.nan
ATTENDED = np.array([[[0.2, 0.7, 0.1]], [[0.1, 0.2, 0.7]]])  # the attention of the step before counts
CHANGE = np.array([[[NAN] * 3], [[0.3, 0.1, 0.2]]])
CHANNELS = np.array([3.0, 5.0, 3.0, NAN])
RATIO = np.array([[[1.0, 9.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]])
NEXT = np.array([[[NO, NO, NO, NO], [NO, YES, NO, NO]]])
REGIONS = ["answer", "doc10", "doc2", "bos", "other", "query"]


@pytest.mark.parametrize(
    ("found", "by_hand"),
    [
        (absorption.absorb(np.array([0.5, 0.25, 0.25]), np.array([YES, NO, NO])), 50),
        (reuse.share_below(np.array([0.05, 0.2, NAN]), 0.1), 0.5),
        (reuse.rank_of_attended(ATTENDED, CHANGE), [0.5]),
        (other_papers.decision_layer(np.array([YES, NO, YES, YES])), 2),
        (other_papers.leads_from_half(np.array([NO, NO, YES, YES, YES])), YES),
        (other_papers.leads_from_half(np.array([YES, YES, NO])), NO),
        (flow.follows(np.array([0.6, 0.2, 0.2]), ["doc1", "doc2", "answer"], ["doc1"]), 1),
        (flow.columns_of("others", ["bos", "doc1", "doc2"], ["doc2"]), [1]),
        ([flow.document_number(name) for name in ("doc12", "query")], [12, -1]),
        (
            geometry.factors(np.array([[[3.0, 4.0]]]), np.array([[[1.0, 0.0]]])),
            np.array([3, 5, 0.6]).reshape(3, 1, 1, 1),
        ),
        (heads.step_mean(np.array([[[1.0]], [[NAN]], [[0.0]]]), np.array([1, 0, 3])), [[0.25]]),
        (other_papers.has_far_masks(np.array([[YES, NO, YES], [YES, YES, NO], [NO, NO, NO]]), 1), [YES, NO, NO]),
        (other_papers.commonest(CHANNELS), 3),
        (other_papers.share_of_commonest(CHANNELS[None, None]), [[2 / 3]]),
        (other_papers.at_next_anchors(RATIO, NEXT, np.ones((1, 2, 4), bool)), [0.75, NAN]),
        (other_papers.top(np.array([[0.2, 0.5, NAN]])), [1]),
        (
            other_papers.soft_scores(np.array([[[1.0, 0.0]], [[1.0, 0.0]]])),
            [[1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))]],
        ),
        (stress.weigh_ends_of_axis(["0", "4", "8"], np.array([0.0, 0.8, 0.9])), [1, 0, -1]),
        (stress.weigh_ends_against_middle(["0", "1", "2", "3"], np.arange(4.0)), [0.5, -0.5, -0.5, 0.5]),
        (stress.weigh_together_against_others(["together", "apart 2", "reversed"], np.zeros(3)), [1, -0.5, -0.5]),
        (tokens.shares(np.array([[[YES, YES]]]), np.array([[[YES, NO]], [[NO, YES]]])), [[0.5, 0.5]]),
        (tokens.shares(np.array([[[0.3, 0.1]]]), np.array([[[YES, NO]], [[NO, YES]]])), [[0.75, 0.25]]),
        (np.array(halves(np.array([[1.0, 3.0, 8.0]]), np.array([[0.0, 0.5, 1.0]]))), [[1], [8]]),
        (np.array(spread(np.array([[1.0], [3.0], [NAN]]))), [[2], [1], [2]]),
        (mean_over(np.array([[1.0, NAN], [3.0, NAN]]), 0), [2, NAN]),
        (profile(np.array([[[0.25, 0.25, 0.5], [0.1, 0.3, 0.6]]]), first=10), [[0.375, 0.625]]),
        (flow.recency(np.array([0.1, 0.9, 0.2]), ["doc1", "doc2", "doc3"], ["doc2"]), 0.25),
        ([tokens.log_odds(0.5), tokens.log_odds(0.6)], [0, np.log(1.5)]),
        (tokens.log_odds(1.0), tokens.log_odds(0.995)),
        (sink._nats_saved([1.0, 2.0, 9.0], [9.0, 0.5, 1.5], 5), 1.5 - 1.0),  # one token later with the inserted one
        (drift.weighted_mean(np.array([1.0, 0.0, NAN]), np.array([3.0, 1.0, 5.0])), 0.75),
    ],
)
def test_a_small_case(found, by_hand):
    np.testing.assert_allclose(found, by_hand, atol=1e-12)


def test_regions_stand_in_the_order_of_a_prompt():
    assert flow.ordered(REGIONS) == ["bos", "doc2", "doc10", "query", "answer", "other"]


def test_a_token_that_does_not_lead_at_the_last_layer_is_not_decided():
    assert other_papers.decision_layer(np.array([YES, NO])) is None


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((points(0.125), points(-0.03), points(-0.0001)), ("+12.5", "−3.0", "0")),
        ((listed(["a", "b", "c"]), listed(["a"])), ("a, b and c", "a")),
        ((count(1, "trace"), count(1200, "trace")), ("1 trace", "1,200 traces")),
        (samples_per_model(xr.Dataset(coords={"model": ("sample", ["a", "a", "b"])})), "1 to 2 samples"),
        ([question_of(name) for name in ("world:fresh, short, 3", "mine")], ["world:fresh: 3", "mine"]),
        ([split_id(name)[1] for name in ("world:fresh, short, 3", "mine")], ["short", ""]),
        (describe_setting("passages, short"), "questions with passages, short questions without passages"),
        ([short(name) for name in ("GSAI-ML/LLaDA-8B", "/a/Smol.Q4_1.gguf")], ["LLaDA-8B", "Smol.Q4_1"]),
        (looks_of(["org/a"])["org/a"], {"color": "#0072B2", "marker": "o", "label": "a"}),
        ([plain(token) for token in (" the", "Ċ", "▁the")], ["the", "⏎", "the"]),
        (absorption_rows().groupby("model")["layer"].max().to_dict()["LLaDA (paper)"], 31),
    ],
)
def test_texts_of_a_small_case(found, expected):
    assert found == expected
