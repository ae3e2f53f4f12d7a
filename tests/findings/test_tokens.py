"""Token kinds of anchors that were planted on known tokens."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from floatlens.data.token_kinds import KINDS
from floatlens.errors import FloatLensError
from floatlens.findings.tokens import kinds_by_step, shares, tokens, written_text
from tests.findings.planted import MASK, planted, wandering


def position_of(trace, text):
    return trace.strings().index(text)


def test_anchors_on_a_newline_and_on_a_name_count_as_such():
    template = planted()
    newline, name = position_of(template, "\n"), position_of(template, " Lovelace")
    trace = planted(anchors=lambda step, layer: {newline: 0.45, name: 0.15})
    found = tokens(trace, rule="top(2)")
    np.testing.assert_allclose(found["share"].sel(kind="newline"), 0.5)
    np.testing.assert_allclose(found["share"].sel(kind="name"), 0.5)
    np.testing.assert_allclose(found["mass"].sel(kind="newline"), 0.75, rtol=1e-5)
    np.testing.assert_allclose(found["structural_shallow"], 0.0)  # the newline is one of the template's


def test_a_mask_is_a_mask_until_it_is_committed():
    trace = planted()
    kinds = kinds_by_step(trace)
    committed = trace.data["committed_at"].values
    for position in range(trace.prompt_length, len(committed)):
        assert (kinds[: committed[position] + 1, position] == "mask").all()
        assert (kinds[committed[position] + 1 :, position] != "mask").all()
    assert MASK in trace.strings(0) and MASK not in trace.strings()


def test_masks_and_special_tokens_are_known_by_their_ids_whatever_they_look_like():
    trace = planted()
    names = json.loads(trace.data.attrs["vocabulary"])
    mask, bos = (next(i for i, s in names.items() if s == text) for text in (MASK, "<|bos|>"))
    trace.data.attrs["vocabulary"] = json.dumps(names | {mask: "blank", bos: "begin"})
    trace.data.attrs["special_ids"] = json.dumps([int(mask), int(bos)])
    kinds = kinds_by_step(trace)
    assert kinds[0, 0] == "special" and (kinds[0, trace.prompt_length :] == "mask").all()


def test_positions_that_do_not_exist_yet_have_no_kind():
    trace = planted(kind="arm")
    kinds = kinds_by_step(trace)
    assert ((kinds == "") == (trace.data["tokens"].values < 0)).all()


def test_list_markers_of_the_prompt_are_template():
    trace = planted()
    marker = position_of(trace, "[")
    assert kinds_by_step(trace)[0, marker : marker + 3].tolist() == ["template"] * 3


def test_shares_sum_to_one_and_so_does_the_base():
    found = tokens([planted(anchors=wandering()), planted(kind="arm", model="arm")])
    for name in ("share", "mass", "base"):
        np.testing.assert_allclose(found[name].sum("kind"), 1.0)


@settings(max_examples=50, deadline=None)
@given(arrays(bool, (3, 2, 8)), arrays(np.int8, (3, 8), elements=st.integers(0, 3)))
def test_shares_sum_to_one_whenever_there_are_anchors(anchors, kinds):
    one_hot = np.array([kinds == k for k in range(4)])
    for found in (shares(anchors, one_hot), shares(anchors * 0.1, one_hot)):
        has = anchors.any(axis=(0, 2))
        np.testing.assert_allclose(found[has].sum(axis=1), 1.0)
        assert np.isnan(found[~has]).all()


def test_a_classifier_of_ones_own():
    found = tokens(planted(), classifier=lambda strings: ["lexical"] * len(strings))
    assert found["kind"].values.tolist() == ["structural", "lexical"]
    np.testing.assert_allclose(found["share"].sel(kind="lexical"), 1.0)
    with pytest.raises(FloatLensError, match="unknown token kind"):
        tokens(planted(), classifier=lambda strings: ["verb"] * len(strings))
    with pytest.raises(FloatLensError, match="3 kinds for"):
        tokens(planted(), classifier=lambda strings: ["name"] * 3)


def test_the_claim_sees_structure_give_way_to_content():
    template = planted()
    stop, name = position_of(template, "."), position_of(template, " Lovelace")

    def turning(step, layer):
        return {stop: 0.5 - 0.08 * layer, name: 0.1 + 0.08 * layer}

    traces = [planted(seed=0, anchors=turning, sample_id=str(i)) for i in range(12)]
    held = tokens.claim(traces, rule="top(2)")
    assert held.verdict == "holds"
    shares = [0.5 - 0.08 * layer for layer in range(6)]
    odds = [np.log(share / (1 - share)) for share in np.array([np.mean(shares[:3]), np.mean(shares[3:])]) / 0.6]
    assert held.value == pytest.approx(odds[0] - odds[1], rel=1e-4)
    even = [planted(seed=0, anchors=lambda s, la: {stop: 0.3, name: 0.3}, sample_id=str(i)) for i in range(12)]
    assert tokens.claim(even, rule="top(2)").verdict == "fails"
    ceiling = tokens.claim([planted(seed=i, anchors=lambda s, la: {0: 0.5}) for i in range(12)])
    assert ceiling.verdict == "not testable here" and ceiling.reason.startswith("ceiling: structural tokens hold 100")


def test_masks_fill_and_template_are_not_text():
    trace = planted()
    P, end = trace.prompt_length, int(trace.data["final_tokens"].values[0])
    trace.data["final_tokens"].values[P + 3 :] = end
    trace.data.attrs["special_ids"] = json.dumps([end])
    text_ST = written_text(trace)
    assert text_ST[0, 0] and not text_ST[0, position_of(trace, "[")]
    committed = trace.data["committed_at"].values[P : P + 4]
    assert (text_ST[:, P : P + 4] == (committed < np.arange(12)[:, None])).all()
    assert not text_ST[:, P + 4 :].any()


def test_without_anchors_there_is_no_claim():
    traces = [planted(seed=i, sample_id=str(i)) for i in range(2)]
    none = tokens.claim([planted(seed=i, anchors=lambda s, la: {}, noise=0.0) for i in range(12)])
    assert none.verdict == "not testable here" and none.n == 0
    assert set(tokens(traces)["kind"].values) == set(KINDS)
