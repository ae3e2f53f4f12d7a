"""The numbers of the published analysis functions, reproduced to 1e-6 wherever these functions are correct."""

import json

import numpy as np
import pytest
import xarray as xr

from floatlens.anchors import parse_rule
from floatlens.findings.absorption import absorb
from floatlens.findings.definitions import rollout_while_rows_differ
from floatlens.findings.drift import drift
from floatlens.findings.geometry import factors
from floatlens.trace.trace import Trace
from recipes.results.facts import turnover as turnover_of
from tests.oracle import pool

pytestmark = pytest.mark.golden


def close(ours, theirs):
    """Equal to 1e-6 of the largest value, which is as far as float32 carries."""
    theirs = np.asarray(theirs, dtype=np.float64)
    scale = max(1.0, np.abs(theirs).max())
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6 * scale)


def test_absorption_under_both_readings(golden_analysis):
    inputs = np.load(golden_analysis / "absorption_inputs.npz")
    checked = 0
    for record in json.loads((golden_analysis / "absorption.json").read_text()):
        a = inputs[record["matrix"]].astype(np.float64).mean(axis=0)
        close(absorb(a, parse_rule("first")(a)), record["bos_percentage"])
        for run in record["paper_method"]:
            # the published rule adds epsilon to column means; ours works on sums, which are T times as large
            anchors = parse_rule(f"excess(eps={run['epsilon'] * len(a)!r}, minimum={run['min_sinks']})")(a)
            assert np.flatnonzero(anchors).tolist() == run["sinks"]
            if "sink_percentage" in run:
                close(absorb(a, anchors), run["sink_percentage"])
                assert anchors.sum() == run["num_sinks"]
                checked += 1
        for run in record["find_sinks_from_attention"]:
            anchors = parse_rule(f"sigma({run['epsilon']}, minimum=1)")(a)
            assert np.flatnonzero(anchors).tolist() == run["sinks"]
    assert checked


def test_at_the_published_epsilon_the_published_rule_is_top_one(golden_analysis):
    inputs = np.load(golden_analysis / "absorption_inputs.npz")
    for name in inputs.files:
        a = inputs[name].astype(np.float64).mean(axis=0)
        assert not parse_rule(f"excess(eps={3.0 * len(a)})")(a).any()


def test_qk_factors_use_the_right_key_head(golden_analysis):
    data = np.load(golden_analysis / "qk_decomposition.npz")
    q, k = data["query_states"], data["key_states"]
    score, norm, cosine = factors(q, k)
    repeats = len(q) // len(k)
    for head in range(len(q)):
        close(score[head], data[f"head{head}_qk"])
        close(norm[head], data[f"head{head}_normp"])
        close(cosine[head], data[f"head{head}_cos"])
        if head % len(k) != head // repeats:  # where the published script takes another head, we differ from it
            assert np.abs(score[head] - data[f"refmod_head{head}_qk"]).max() > 1e-3
        received = data["attention_heads"][head].mean(axis=0)
        sinks = parse_rule("sigma(3, minimum=1)")(received)
        assert sinks.tolist() == data[f"sinks_head{head}"].tolist()


def test_qk_factors_of_averaged_heads(golden_analysis):
    data = np.load(golden_analysis / "qk_decomposition.npz")
    ours = factors(data["query_states"].mean(axis=0)[None], data["key_states"].mean(axis=0)[None])
    for found, name in zip(ours, ("qk", "normp", "cos"), strict=True):
        close(found[0], data[f"headavg_{name}"])
    causal = data["causal_masked_head0_qk"]
    seen = np.tril(np.ones(causal.shape, bool))
    assert (np.isnan(causal) == ~seen).all()
    close(factors(data["query_states"], data["key_states"])[0][0][seen], causal[seen])


def trace_of(step_attention_SLTT):
    received = step_attention_SLTT.astype(np.float64).mean(axis=-2)[:, :, None]
    steps, layers, _, length = received.shape
    return Trace(
        xr.Dataset(
            {
                "tokens": (("step", "position"), np.zeros((steps, length), np.int64)),
                "committed_at": ("position", np.full(length, -1)),
                "confidence": (("step", "position"), np.full((steps, length), np.nan, np.float32)),
                "received": (("step", "layer", "head", "position"), received),
            },
            coords={"step": range(steps), "layer": range(layers), "head": [0], "position": range(length)},
            attrs={"model": "golden", "kind": "mdm", "attention": "bidirectional", "cached": 0},
        )
    )


def test_floating_sets_of_every_step(golden_analysis):
    trace = trace_of(np.load(golden_analysis / "temporal_inputs.npz")["step_attention_avg"])
    for record in json.loads((golden_analysis / "temporal.json").read_text()):
        layer = "average" if record.get("average_layers") else record["layer_idx"]
        rule = f"sigma({record['epsilon']})"
        cells = drift.figure(trace, layer=layer, rule=rule, backend="none")
        found = [sorted(part.loc[part["anchor"], "position"]) for _, part in cells.groupby("step")]
        assert found == record["floating_sets"]
        expected = []
        for before, after in zip(record["floating_sets"], record["floating_sets"][1:], strict=False):
            union = set(before) | set(after)
            if union:
                expected.append(1 - len(set(before) & set(after)) / len(union))
        turnover = turnover_of(cells.pivot(index="step", columns="position", values="anchor").to_numpy(bool))
        known = turnover[np.isfinite(turnover)]
        assert known.tolist() == pytest.approx(expected)


def test_pooling_and_rollout(golden_analysis):
    about = json.loads((golden_analysis / "regions.json").read_text())
    data = np.load(golden_analysis / "regions_rollout.npz")
    for key, suffix in (("regions_from_define_regions", "ref"), ("custom_regions", "custom")):
        spans = [(r["start"], r["end"]) for r in about[key]]
        pooled = np.array([pool(one, spans) for one in data["attention"]])
        close(pooled, data[f"pooled_{suffix}"])
        close(rollout_while_rows_differ(pooled, 0.0)[0], data[f"rollout_residual_{suffix}"])
        close(rollout_while_rows_differ(pooled, residual=False)[0], data[f"rollout_noresidual_{suffix}"])
