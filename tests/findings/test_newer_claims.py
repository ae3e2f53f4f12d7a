"""Claims of newer papers: each on samples where it was planted, and on samples where its opposite was."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from floatlens.findings import causes, reuse, stress
from floatlens.findings.finding import CLAIMS, FINDINGS
from floatlens.findings.verdict import Verdict
from floatlens.trace.trace import Trace
from tests.findings.planted import planted, row

SAMPLES = range(12)


def verdict(id: str, samples: Any) -> Verdict:
    return CLAIMS[id].verdict(FINDINGS[CLAIMS[id].finding].measure(samples))


def several(change: Callable[[Trace], None], **plan: Any) -> list[Trace]:
    traces = [planted(seed=i, **plan) for i in SAMPLES]
    for trace in traces:
        change(trace)
    return traces


def keep(trace: Trace) -> None:
    """Leave the trace as it was planted."""


# 2602.14209: the keys of the first step are those of the block


def test_keys_that_stay_are_shown_by_the_first_step_and_keys_that_move_are_not():
    def later(start: int) -> Callable[[int, int], dict[int, float]]:
        return lambda step, layer: {start * (step > 0) + k: 0.1 for k in range(7)}  # of 75 positions before the answer

    stay, move = (several(keep, anchors=later(start), noise=0.0) for start in (0, 20))
    held, rejected = verdict("similarity.first", stay), verdict("similarity.first", move)
    assert (held.verdict, held.value, rejected.verdict, rejected.value) == ("holds", 1.0, "fails", 0.0)


def test_blocks_are_those_of_the_order_of_writing():
    trace = planted(steps=8)
    P = trace.prompt_length
    trace.data["committed_at"].values[P:] = [1, 0, 2, 3, 5, 4, 7, 6]
    assert [steps.tolist() for steps, _ in reuse.blocks_of(trace)] == [list(range(8))]  # no blocks: one
    trace.data.attrs["settings"] = json.dumps({"block_length": 4})
    assert [(steps.tolist(), (own - P).tolist()) for steps, own in reuse.blocks_of(trace)] == [
        ([0, 1, 2, 3], [0, 1, 2, 3]),
        ([4, 5, 6, 7], [4, 5, 6, 7]),
    ]
    trace.data["committed_at"].values[P:] = [0, 2, 1, 4, 3, 5, 6, 7]  # blocks at multiples of four, and P = 4n + 3
    assert [len(own) for _, own in reuse.blocks_of(trace)] == [1, 4, 3]


# 2602.05305: steady outside the block, changing inside


@pytest.mark.parametrize(("where", "said"), [("inside", "holds"), ("outside", "fails")])
def test_the_side_of_the_block_that_changes_is_found(where, said):
    def plan(step: int, layer: int) -> dict[int, float]:
        fixed, moving = (5, 75) if where == "inside" else (75, 5)  # the answer begins at 75
        return {fixed: 0.3, moving + step % 2 * 6: 0.3}

    found = verdict("similarity.block", several(keep, anchors=plan, noise=0.0))
    assert found.verdict == said
    assert (found.details["change inside the block"][0] > 0.5) == (where == "inside")


# 2606.12273: tokens that attend to context are decided early


@pytest.mark.parametrize(("sign", "said"), [(1, "holds"), (-1, "fails")])
def test_context_and_early_decision_are_linked_as_planted(sign, said):
    def link(trace: Trace) -> None:
        committed, P = trace.data["committed_at"].values, trace.prompt_length
        lens, writing = trace.data["lens_token"].values, trace.data["received_writing"].values
        for rank, position in enumerate(range(P, len(committed))):
            at = int(committed[position])
            late = at - round(
                at * rank / len(committed[P:])
            )  # a share of the steps before its commit at which it leads
            lens[:late, :, position] = -1.0
            known = committed < at
            mass = np.clip(known.mean() + sign * (rank - 6) / 60, 0.01, 0.99)  # beyond an even share by its rank
            writing[at][:, known] = mass / known.sum()
            writing[at][:, ~known] = (1 - mass) / (~known).sum()

    found = verdict("decision.context", several(link, steps=16))
    assert found.verdict == said, found


# 2601.11342: the answer turns away from the query


@pytest.mark.parametrize(("first", "last", "said"), [(0.4, 0.1, "holds"), (0.1, 0.4, "fails"), (0.2, 0.2, "fails")])
def test_flow_to_the_query_falls_as_planted(first, last, said):
    def turn(trace: Trace) -> None:
        flow, names = trace.data["flow"].values, trace.data["region"].values.tolist()
        answer, query = names.index("answer"), names.index("query")
        share = np.linspace(first, last, len(flow))[:, None]
        flow[:, :, answer] = ((1 - share) / (len(names) - 1))[..., None]
        flow[:, :, answer, query] = share

    found = verdict("flow.query", several(turn))
    assert found.verdict == said
    wanted = np.log2(np.linspace(first, last, 12)[:4].mean() / np.linspace(first, last, 12)[-4:].mean())
    assert found.value == pytest.approx(wanted, rel=1e-4, abs=1e-6)


# 2510.09309: middle layers attend to the prompt least, heads differ


@pytest.mark.parametrize(("middle", "said"), [(0.2, "holds"), (0.8, "fails"), (0.5, "fails")])
def test_the_middle_layers_share_of_the_prompt_is_compared_with_the_others(middle, said):
    def layers(trace: Trace) -> None:
        flow, names = trace.data["flow"].values, trace.data["region"].values.tolist()
        answer = names.index("answer")
        for layer, share in enumerate([0.5, 0.5, middle, middle, 0.5, 0.5]):
            flow[:, layer, answer] = share / (len(names) - 1)
            flow[:, layer, answer, answer] = 1 - share

    found = verdict("flow.middle", several(layers))
    assert found.verdict == said and found.value == pytest.approx(0.5 - middle, abs=1e-5)


@pytest.mark.parametrize(("apart", "said"), [(0.3, "holds"), (0.0, "fails")])
def test_heads_that_prefer_the_prompt_are_told_apart(apart, said):
    def prefer(trace: Trace) -> None:
        received, P = trace.data["received"].values, trace.prompt_length
        for head in range(received.shape[2]):
            share = 0.5 + apart * (1 if head % 2 else -1)
            received[:, :, head, :P] = share / P
            received[:, :, head, P:] = (1 - share) / (received.shape[-1] - P)

    found = verdict("heads.prompt", several(prefer, copying=(4, 0)))
    assert found.verdict == said and found.value == pytest.approx(apart, abs=1e-5)


# 2606.19349: recent documents, and where the query stands


@pytest.mark.parametrize(("pull", "said"), [(1.0, "holds"), (-0.5, "fails"), (0.0, "fails")])
def test_recent_documents_are_favoured_as_planted_whatever_the_gold_one_gets(pull, said):
    def favour(trace: Trace) -> None:
        rows = trace.data["received_writing"].values
        rows[:] = row(np.random.default_rng(0), {}, rows.shape[-1], rows.shape[-1], 0.0)
        spans = {region.name: slice(region.start, region.end) for region in trace.regions}
        rows[..., spans["doc2"]] *= 5  # gold
        rows[..., spans["doc4"]] *= 1 + pull
        rows /= rows.sum(axis=-1, keepdims=True)

    assert verdict("flow.recent", several(favour)).verdict == said


def answers_under_stress(query_changes: int, noise_changes: int) -> pd.DataFrame:
    """Answers of one MDM to twenty questions, of which so many change with the query's position and with noise."""
    levels = {("query", "after"): (0.0, 0), ("query", "before"): (1.0, query_changes)}
    levels |= {("noise", "0"): (0.0, 0), ("noise", "4"): (4.0, noise_changes)}
    rows = []
    for (name, level), (x, wrong) in levels.items():
        for n in range(20):
            score = float(n >= wrong)
            scores = dict.fromkeys(("em", "accuracy", "accuracy_words", "f1"), score)
            about = {"id": str(n), "model": "m", "kind": "mdm", "data": "d", "condition": f"{name}={level}"}
            rows.append({**about, **scores, "stress": name, "level": level, "x": x, "intervention": ""})
    return pd.DataFrame(rows)


@pytest.mark.parametrize(("query", "noise", "said"), [(20, 5, "holds"), (1, 15, "fails"), (10, 0, "not testable here")])
def test_the_querys_position_is_compared_with_noise_question_by_question(query, noise, said):
    found = CLAIMS["stress.query"].verdict(stress.measure(answers_under_stress(query, noise)))
    assert found.verdict == said and found.n == 20 and found.value == pytest.approx((query - noise) / 20)
    if noise == 0:
        assert found.reason == "no room: noise changes 0 % of the scores, below 5"


# 2601.19657: an added sink


@pytest.mark.parametrize(
    ("saved", "kl", "said"), [(0.3, 0.2, "holds"), (-0.1, 0.2, "fails"), (0.3, 0.001, "not testable here")]
)
def test_an_added_sink_is_judged_by_the_likelihood_of_the_gold_answer(saved, kl, said):
    measures = ("em", "accuracy", "accuracy_words", "f1", "agreement", "confidence", "ended", "well_formed")
    rows = []
    for n in range(14):
        same = {"id": str(n), "model": "m", "kind": "mdm", "data": "d", "error": None, **dict.fromkeys(measures, 1.0)}
        rows.append({**same, "role": "plain", "of": "", "group": "", "dose": None, "kl": 0.0, "gold_nll": 2.0})
        under = {"role": "intervention", "of": "add-sink(score=0)", "group": "add-sink(score=0)", "dose": None}
        rows.append({**same, **under, "kl": kl, "gold_nll": 2.0 - saved + 0.001 * (n % 2)})
    found = CLAIMS["causes.sink"].verdict(causes.measure(pd.DataFrame(rows)))
    assert found.verdict == said and found.n == 14
    assert found.value == pytest.approx(saved, abs=1e-3)
