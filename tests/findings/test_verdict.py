"""Verdicts: what follows from intervals, and how it is written."""

import json
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from floatlens.errors import FloatLensError
from floatlens.findings.finding import CLAIMS, FINDINGS, Claim
from floatlens.findings.samples import per_sample, pick
from floatlens.findings.verdict import Verdict, write_claims
from tests.findings.planted import TRACED, planted, wandering


def test_claims_are_written_as_json_and_those_of_other_findings_stay(tmp_path):
    path = tmp_path / "claims.json"
    one = Verdict("drift", "c", "s", float("nan"), (0.0, 1.0), "inconclusive", "first", 3, details={"a": np.float32(1)})
    write_claims(path, [one])
    write_claims(path, [Verdict("flow", "c", "s", 1.0, (0.0, 1.0), "holds", "", 9)])
    write_claims(path, [one])
    found = json.loads(path.read_text())["claims"]
    assert sorted(c["finding"] for c in found) == ["drift", "flow"]
    assert found[1]["value"] is None and found[1]["details"] == {"a": 1.0}
    old = json.dumps({"claims": [{"finding": "flow", "verdict": "supported"}]})
    path.write_text(old)
    with pytest.raises(FloatLensError, match="verdicts of an earlier version"):
        write_claims(path, [one])
    path.write_text("[1]")
    with pytest.raises(FloatLensError, match="not a claims file"):
        write_claims(path, [one])


def test_every_finding_answers_with_verdicts_that_carry_everything():
    ids = [f"world:{('fresh', 'slots')[i % 2]}, open-book, {i}" for i in range(12)]
    traces = [
        planted(seed=i, anchors=wandering(), copying=(4, 0), gold=1 + i % 3, sample_id=ids[i], steps=20, layers=12)
        for i in range(12)
    ]
    traces += [
        planted(seed=i, kind="arm", model="arm", copying=(4, 0), gold=1 + i % 3, sample_id=ids[i], steps=20, layers=12)
        for i in range(12)
    ]
    seen, of_a_study = set(), {f"drift.{name}" for name in ("floats", "fixed", "moves", "renewal", "instruction")}
    for name in TRACED:
        finding = FINDINGS[name]
        measured = finding.measure(traces)
        for verdict in finding.claims(measured):
            if verdict.id in of_a_study:  # they need replays or prose
                assert verdict.verdict == "not testable here" and verdict.reason and verdict.whose
                seen.add(verdict.id)
                continue
            assert verdict.verdict in ("holds", "fails", "inconclusive") and verdict.reason and verdict.whose
            assert verdict.finding == name and verdict.n == 12 and verdict.statistic and verdict.models
            assert verdict.interval[0] <= verdict.value <= verdict.interval[1]
            json.dumps(verdict.to_dict(), allow_nan=False)
            seen.add(verdict.id)
        assert finding.claim(measured).finding == name
    assert seen == {claim.id for claim in CLAIMS.values() if claim.finding in TRACED}


def test_each_mdm_is_judged_by_itself():
    traces = [
        planted(
            seed=i, model=model, kind="arm" if model == "arm" else "mdm", anchors=wandering() if model == "a" else None
        )
        for model in ("a", "b", "arm")
        for i in range(12)
    ]
    found = {v.models: v.verdict for v in FINDINGS["softness"].claims(traces) if v.id == "softness.variance"}
    assert found == {("a", "arm"): "holds", ("b", "arm"): "fails"}


def test_an_outcome_that_cannot_decide_says_why():
    measured = xr.Dataset(attrs={"rule": "r"})
    about = dict(finding="f", sentence="s", source="", statistic="", effect=0.1, why="", rejected_if="", needs="")
    found = Verdict(value=1.0, interval=(0.9, 1.1), n=20, models=("m",))
    blocked = Claim("f.x", test=lambda _: found.unless("always doc1"), **about)
    assert (blocked.verdict(measured).verdict, blocked.verdict(measured).reason) == ("not testable here", "always doc1")
    few = Claim("f.x", test=lambda _: replace(found, n=11), **about)
    assert few.verdict(measured).verdict == "not testable here" and "at least 12" in few.verdict(measured).reason


def test_an_unknown_finding_is_answered_with_the_known_ones():
    with pytest.raises(FloatLensError, match="drift, absorption"):
        FINDINGS["vibes"]


def test_a_sample_is_picked_by_its_id_or_its_place():
    traces = [planted(seed=i, model=m) for m in ("a", "b") for i in range(3)]
    assert [t.data.attrs["sample_id"] for t in pick(traces, "sample-2")] == ["sample-2", "sample-2"]
    assert [t.data.attrs["sample_id"] for t in pick(traces, 1)] == ["sample-1", "sample-1"]
    with pytest.raises(FloatLensError, match="unknown sample 'x'"):
        pick(traces, "x")


def test_models_of_different_depth_stand_side_by_side():
    found = FINDINGS["drift"]([planted(layers=3), planted(layers=6, model="deep")])
    assert found["depth"].values[0][:3].tolist() == [0.0, 0.5, 1.0]
    assert np.isnan(found["floating"].values[0, 3:]).all()
    with pytest.raises(FloatLensError, match="no traces"):
        per_sample([], lambda trace: trace.data)
