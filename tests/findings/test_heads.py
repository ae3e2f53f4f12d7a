"""Retrieval heads: a planted copying head is found."""

import json

import numpy as np
import pytest

from floatlens.findings.finding import CLAIMS
from floatlens.findings.heads import heads, step_mean, table, why_not
from tests.findings.planted import planted


def test_a_planted_copying_head_scores_one_and_the_others_nothing():
    found = heads([planted(seed=i, copying=(4, 1)) for i in range(3)])
    hit = found["hit"].mean("sample").values
    assert hit[4, 1] == 1.0
    hit[4, 1] = 0.0
    assert not hit.any()
    assert found.attrs["used"] == "3 of 3"
    np.testing.assert_allclose(found["mass"].values[:, 4, 1], 0.9, rtol=1e-6)


def test_counts_above_the_thresholds_by_layer():
    found = table([planted(copying=(4, 1))])
    assert found["above_0.1"].tolist() == [0, 0, 0, 0, 1, 0]
    assert found["above_0.5"].tolist() == [0, 0, 0, 0, 1, 0]
    assert found["heads"].tolist() == [4] * 6


def test_a_step_weighs_as_many_tokens_as_it_committed():
    values = np.array([1.0, 0.5, np.nan]).reshape(3, 1, 1)
    assert step_mean(values, np.array([1, 3, 0])).item() == pytest.approx((1 + 3 * 0.5) / 4)


def test_samples_that_cannot_be_used_are_counted_with_their_reasons():
    good = planted(copying=(4, 1))
    no_gold = planted(seed=1)
    no_gold.data.attrs["gold"] = "[]"
    elsewhere = planted(seed=2)
    elsewhere.data.attrs["answers"] = json.dumps(["Atlantis"])
    nothing = planted(seed=3)
    nothing.data["evidence_count"].values[:] = 0
    unrecorded = planted(seed=4)
    unrecorded.data = unrecorded.data.drop_vars("evidence_hit")
    found = heads([good, no_gold, elsewhere, nothing, unrecorded])
    assert found.attrs["used"] == "1 of 5"
    assert json.loads(found.attrs["left_out"]) == {
        "no gold document is named": 1,
        "the answer is not in the gold document": 1,
        "no committed token is in the gold document": 1,
        "evidence was not recorded": 1,
    }
    assert found["hit"].mean("sample").values[4, 1] == 1.0  # what was left out does not dilute the rest


def test_an_answer_is_looked_for_as_words():
    trace = planted()
    trace.data.attrs["answers"] = json.dumps(["Lon"])
    assert why_not(trace) == "the answer is not in the gold document"
    trace.data.attrs["answers"] = json.dumps(["LONDON"])
    assert why_not(trace) == ""


def test_the_query_only_score_is_that_of_the_first_step_where_recorded():
    trace = planted(gold=2)
    assert heads(trace)["query"].isnull().all()
    mass = np.random.default_rng(0).random((12, 6, 4))
    trace.data = trace.data.assign(query_mass=(("step", "layer", "head"), mass))
    np.testing.assert_allclose(heads(trace)["query"].squeeze(), mass[0])


def test_the_claim_tells_deep_from_shallow():
    few = {"layers": 12, "docs": 2, "words": 4, "steps": 4}
    deep = [planted(seed=i, copying=(10 + i % 2, 1), **few) for i in range(12)]
    found = heads.claim(deep)
    assert found.verdict == "holds" and found.value == pytest.approx(10.5 / 11 - 0.5)
    shallow = [planted(seed=i, copying=(i % 2, 1), **few) for i in range(12)]
    assert heads.claim(shallow).verdict == "fails"
    middle = heads.claim([planted(seed=i, copying=(4 + 3 * (i % 2), 1), **few) for i in range(12)])
    assert middle.value == pytest.approx(0.0) and middle.verdict == "inconclusive"
    none = heads.claim([planted(seed=i, **few) for i in range(12)])
    assert (none.verdict, none.n) == ("not testable here", 0)
    arm = [planted(seed=i, copying=(i % 2, 1), kind="arm", model="arm", **few) for i in range(12)]
    contrast = CLAIMS["heads.deeper"]
    assert contrast.verdict(heads([*deep, *arm])).verdict == "holds"
    assert contrast.verdict(heads([*shallow, *arm])).verdict == "fails"
    [six] = CLAIMS["heads.deep"].verdicts(heads([planted(seed=i, copying=(4, 1)) for i in range(12)]))
    assert six.models == ("planted-mdm",)
    assert six.reason == "planted-mdm has 6 layers; at least 12 are needed"
    arm = heads.claim([planted(kind="arm", **few)])
    assert arm.reason == "there is no MDM among the samples"
