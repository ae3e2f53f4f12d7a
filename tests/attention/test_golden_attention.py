"""Queries, keys and attention of the published extractor, reproduced by a trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from floatlens.data.prompt import Prompt, Region
from tests import golden_data

pytestmark = pytest.mark.golden


def settings(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    names = ("steps", "max_new_tokens", "block_length")
    return {name: int(value) for name, value in zip(names, arrays["settings"], strict=False)}


@pytest.fixture(scope="module", params=golden_data.names("attention"))
def case(request: pytest.FixtureRequest) -> tuple[Any, dict[str, np.ndarray], Any]:
    lens, arrays = golden_data.lens(request.param), golden_data.arrays(f"attention/{request.param}.npz")
    length = int(arrays["input_length"])
    ids = arrays["final_ids"][:length].tolist()
    ranges = arrays.get("passage_ranges", np.zeros((0, 2), int))
    regions = [Region(f"doc{i + 1}", int(a), int(b)) for i, (a, b) in enumerate(ranges)]
    prompt = Prompt("", ids, regions, gold=list(range(len(regions))))
    trace = lens.trace(prompt, matrices=["attention", "attention_mean", "queries", "keys"], sampler=settings(arrays))
    return lens, arrays, trace


def test_the_model_sees_the_same_sequence_at_each_step(case: Any) -> None:
    _, arrays, trace = case
    np.testing.assert_array_equal(trace.data["tokens"], arrays["step_input_ids"])
    np.testing.assert_array_equal(trace.final_tokens, arrays["final_ids"])


def test_head_averaged_attention_at_each_step(case: Any) -> None:
    _, arrays, trace = case
    np.testing.assert_allclose(trace.data["attention_mean"], arrays["step_attention_avg"], atol=1e-5)
    np.testing.assert_allclose(trace.data["attention"].mean("head"), arrays["step_attention_avg"], atol=1e-5)


def test_received_attention_is_the_column_mean(case: Any) -> None:
    _, arrays, trace = case
    np.testing.assert_allclose(trace.data["received"].mean("head"), arrays["step_attention_avg"].mean(-2), atol=1e-5)


def test_queries_keys_and_heads_of_the_finished_sequence(case: Any) -> None:
    """The extractor looks once more at the finished sequence: one step that has nothing left to commit."""
    lens, arrays, _ = case
    ids = [int(i) for i in arrays["final_ids"]]
    trace = lens.trace(ids, matrices=["attention", "attention_mean", "queries", "keys"], max_new_tokens=1, steps=1)
    # The extra mask is seen by the others, so the last position is taken off by a pass without it.
    import torch

    from floatlens.attention.hook import observing
    from floatlens.attention.session import Session

    session = Session(["attention", "attention_mean", "queries", "keys"])
    with torch.no_grad(), observing(lens.model, session):
        lens.model(torch.tensor([ids]))
    found = {name: np.stack([layers[n][0].numpy() for n in sorted(layers)]) for name, layers in session.results.items()}
    np.testing.assert_allclose(found["queries"], arrays["query_states"], atol=1e-5)
    np.testing.assert_allclose(found["keys"], arrays["key_states"], atol=1e-5)
    np.testing.assert_allclose(found["attention"], arrays["attention_heads"], atol=1e-5)
    np.testing.assert_allclose(found["attention_mean"], arrays["attention_avg"], atol=1e-5)
    assert trace.data.sizes["step"] == 1


def test_commits_and_the_rows_that_wrote_them(case: Any) -> None:
    _, arrays, trace = case
    if "commit" not in arrays:
        pytest.skip("the folder records commits for LLaDA's sampler only")
    per_block = int(arrays["settings"][0]) * int(arrays["settings"][2]) // int(arrays["settings"][1])
    for position, block, inner, token in arrays["commit"]:
        assert trace.data["committed_at"].values[position] == block * per_block + inner
        assert trace.final_tokens[position] == token
    spans = np.concatenate([np.arange(a, b) for a, b in arrays["passage_ranges"]])
    for layer in trace.data["layer"].values:
        for row, (position, *_) in enumerate(arrays["commit"]):
            step = int(trace.data["committed_at"].values[position])
            found = trace.data["attention_mean"].sel(step=step, layer=layer).values[position, spans]
            np.testing.assert_allclose(found, arrays[f"layer_{layer}_commit_rows"][row], atol=1e-5)


def test_evidence_mass_is_the_sum_of_those_rows(case: Any) -> None:
    """Commits of tokens that stand in the evidence: their mass on it, from the published rows."""
    _, arrays, trace = case
    if "commit" not in arrays or "evidence_mass" not in trace.data:
        pytest.skip("the folder records commits for LLaDA's sampler only")
    evidence = np.concatenate([trace.final_tokens[a:b] for a, b in arrays["passage_ranges"]])
    for layer in trace.data["layer"].values:
        rows = arrays[f"layer_{layer}_commit_rows"]
        for step in trace.data["step"].values:
            here = [i for i, (p, *_) in enumerate(arrays["commit"]) if trace.data["committed_at"].values[p] == step]
            copied = [i for i in here if arrays["commit"][i][3] in evidence]
            found = trace.data["evidence_mass"].sel(step=step, layer=layer).mean("head")
            if copied:
                np.testing.assert_allclose(found, rows[copied].sum(1).mean(), atol=1e-5)
            else:
                assert np.isnan(found)
