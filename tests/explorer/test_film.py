"""A film has the data of its trace, fits its budget, and lists what it left out."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

import floatlens as fl
from floatlens.data.prompt import Prompt
from floatlens.errors import FloatLensError
from floatlens.explorer.film import bits, evenly, film, packed, received_and_anchors
from floatlens.explorer.page import escaped_json
from floatlens.explorer.widget import FilmFrame
from tests.explorer.traces import planted, tiny, unpacked


@pytest.fixture(scope="module", params=["tiny-mdm", "tiny-arm"])
def trace(request: pytest.FixtureRequest) -> fl.Trace:
    return tiny(request.param, matrices=("attention_mean",))


def unpacked_bits(value: dict, T: int) -> np.ndarray:
    return np.unpackbits(unpacked(value), axis=-1, count=T, bitorder="little").astype(bool)


def test_a_film_says_which_tokens_were_revised(trace: fl.Trace) -> None:
    assert film(trace)["revised"] is None
    counts = np.arange(trace.data.sizes["position"]) % 3
    assert film(fl.Trace(trace.data.assign(revised=("position", counts))))["revised"] == counts.tolist()


def test_a_film_holds_the_attention_of_its_trace(trace: fl.Trace) -> None:
    made = film(trace)
    received = trace.data["received"].values
    assert made["thinned"] is None
    np.testing.assert_allclose(unpacked(made["received"]), received.mean(2), rtol=2e-3, atol=1e-7)
    np.testing.assert_allclose(unpacked(made["received_heads"]), received, rtol=2e-3, atol=1e-7)
    np.testing.assert_allclose(unpacked(made["received_all"]), received.mean((1, 2)), rtol=2e-3, atol=1e-7)
    attention, recorded = unpacked(made["attention"]), trace.data["attention_mean"].values
    if trace.kind == "mdm":
        np.testing.assert_allclose(attention, recorded, rtol=2e-3, atol=1e-7)
    else:  # one matrix for all steps: the prompt's rows are of the first, each further row of the step that added it
        P = trace.prompt_length
        assert made["attention_steps"] == [len(made["steps"]) - 1]
        np.testing.assert_allclose(attention[0, :, :P, :P], recorded[0, :, :P, :P], rtol=2e-3, atol=1e-7)
        np.testing.assert_allclose(attention[0, :, P, : P + 1], recorded[1, :, P, : P + 1], rtol=2e-3, atol=1e-7)


def test_a_film_holds_what_changed_since_the_step_before(trace: fl.Trace) -> None:
    assert film(trace)["drift"] is None and film(trace)["moved"] is None
    S, L, H, T = trace.data["received"].shape
    rng = np.random.default_rng(0)
    key, value = (rng.random((S, L, T)).astype(np.float32) for _ in range(2))
    alike = rng.random((S, L, H)).astype(np.float32)
    places = ("step", "layer", "position")
    data = trace.data.assign(
        key_change=(places, key), value_change=(places, value), step_similarity=(("step", "layer", "head"), alike)
    )
    made = film(fl.Trace(data))
    np.testing.assert_allclose(unpacked(made["drift"]), (key + value) / 2, rtol=2e-3)
    np.testing.assert_allclose(unpacked(made["moved"]), 1 - alike.mean(2), rtol=2e-3)
    assert film(fl.Trace(data.assign(key_change=np.nan * data["key_change"])))["drift"] is None, "nothing to show"


def test_anchors_are_those_of_the_python_rules(trace: fl.Trace) -> None:
    made = film(trace)
    T = trace.data.sizes["position"]
    assert list(made["anchors"]) == ["sigma(k=3)", "top(n=1)", "first", "share(eps=0.3)", "excess(eps=3)"]
    for rule, value in made["anchors"].items():
        np.testing.assert_array_equal(unpacked_bits(value, T), trace.anchors(rule).values, err_msg=rule)


def test_words_are_spelled_as_they_read(trace: fl.Trace) -> None:
    made = film(trace)
    tokens = unpacked(made["tokens"])
    written = "".join(made["vocabulary"][str(i)] for i in tokens[-1] if i not in made["special_ids"])
    assert "Answer the question from the passages." in written
    assert written.strip().endswith(trace.answer)
    np.testing.assert_array_equal(tokens[:-1], trace.data["tokens"].values)
    assert len(made["kinds"]) == tokens.shape[1]
    assert set(made["kinds"]) <= set(made["kind_groups"])
    assert made["kinds"][0] == "special"


def test_a_film_is_plain_json(trace: fl.Trace) -> None:
    made = film(trace)
    assert json.loads(json.dumps(made, allow_nan=False)) == made


def test_the_last_commit_of_two_ends_is_not_taken_for_a_mask() -> None:
    made = film(planted(steps=4, layers=2, heads=2, positions=24))
    assert made["mask_ids"] == [2]
    assert "mask" not in made["kinds"]


@pytest.mark.parametrize("budget", [60_000, 120_000, 250_000, 600_000])
def test_a_film_fits_its_budget_and_says_what_it_left_out(budget: int) -> None:
    trace = planted(steps=40, layers=12, heads=4, positions=120)
    made = film(trace, budget=budget)
    assert len(json.dumps(made)) < budget
    steps, layers = len(made["steps"]), len(made["layers"])
    said = " ".join(made["thinned"])
    assert ("of 40 steps are kept" in said) == (steps < 40)
    assert ("of 12 layers are kept" in said) == (layers < 12)
    assert "heads" in said
    assert made["steps"][0] == 0 and made["steps"][-1] == 39
    received = trace.data["received"].mean("head")
    np.testing.assert_allclose(
        unpacked(made["received"]),
        received.sel(step=made["steps"], layer=made["layers"]).values,
        rtol=2e-3,
        atol=1e-7,
    )
    T = trace.data.sizes["position"]
    expected = trace.anchors("sigma(3)").sel(step=made["steps"], layer=made["layers"]).values
    np.testing.assert_array_equal(unpacked_bits(made["anchors"]["sigma(k=3)"], T), expected)
    assert expected.any()


def test_matrices_go_before_heads() -> None:
    trace = tiny("tiny-mdm", matrices=("attention_mean",))
    made = film(trace, budget=600_000)
    assert made["received_heads"] is not None
    assert len(made["attention_steps"]) < len(made["steps"])
    assert any("matrices" in sentence for sentence in made["thinned"])


def test_a_budget_that_nothing_fits_is_refused() -> None:
    with pytest.raises(FloatLensError, match="larger budget"):
        film(planted(steps=2, layers=1, heads=1, positions=400), budget=1000)


def test_a_trace_without_received_attention_is_refused() -> None:
    trace = planted(steps=2, layers=1, heads=1, positions=20)
    with pytest.raises(FloatLensError, match="received"):
        film(fl.Trace(trace.data.drop_vars("received")))


def test_a_step_of_a_live_run_is_a_step_of_the_film(trace: fl.Trace) -> None:
    made = film(trace)
    length = int(np.isfinite(trace.data["received"].values[0, 0, 0]).sum())
    profile_LT = trace.data["received"].values[0, :, :, :length].mean(1)
    one = received_and_anchors(profile_LT, profile_LT.mean(0), trace.attention_kind)
    np.testing.assert_array_equal(unpacked(one["received"]), unpacked(made["received"])[0, :, :length])
    for rule in made["anchors"]:
        np.testing.assert_array_equal(
            unpacked_bits(one["anchors"][rule], length),
            unpacked_bits(made["anchors"][rule], trace.data.sizes["position"])[0, :, :length],
        )


def test_a_film_of_some_layers_and_steps_keeps_their_numbers() -> None:
    lens = fl.load("tiny-mdm")
    trace = lens.trace("Who?", layers=[1, 4], record_steps=[0, 3, 7], max_new_tokens=8)
    made = film(trace)
    assert (made["layers"], made["steps"]) == ([1, 4], [0, 3, 7])
    assert unpacked(made["received"]).shape == (3, 2, trace.data.sizes["position"])


def test_a_trace_without_words_or_regions_is_a_film_too() -> None:
    trace = planted(steps=3, layers=2, heads=1, positions=20)
    for name in ("vocabulary", "regions", "special_ids", "gold", "question"):
        del trace.data.attrs[name]
    made = film(trace)
    assert (made["vocabulary"], made["regions"], made["question"]) == ({}, [], "")
    assert len(made["kinds"]) == 20


def test_without_anywidget_a_notebook_gets_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    view = planted(steps=2, layers=1, heads=1, positions=20).explore()
    assert isinstance(view, FilmFrame)
    assert view._repr_html_().startswith('<iframe sandbox="allow-scripts allow-downloads"')


def test_a_film_says_what_was_asked_of_the_model() -> None:
    lens = fl.load("tiny-mdm")
    passages = [fl.Passage("Tomas Vell was born in Karsk.", title="Vell", gold=True), fl.Passage("It rains.")]
    asked = film(lens.trace("Where?", passages, max_new_tokens=8, steps=4, seed=3))["request"]
    assert asked == {
        "load": {},
        "built_from": {
            "passages": [
                {"text": "Tomas Vell was born in Karsk.", "title": "Vell", "gold": True},
                {"text": "It rains.", "title": "", "gold": False},
            ],
            "order": "last",
        },
        "prompt": None,
        "settings": {"max_new_tokens": 8, "seed": 3, "steps": 4, "block_length": 8},
        "replay": None,
    }
    prompt = lens.prompt("Where?", passages, order="first")
    assert film(lens.trace(prompt, max_new_tokens=4))["request"]["built_from"]["order"] == "first"


@pytest.mark.parametrize("other", ["ids", "spans"])
def test_a_prompt_that_was_not_built_from_a_question_is_not_passed_off_as_one(other: str) -> None:
    lens = fl.load("tiny-mdm")
    prompt = {
        "ids": lambda: Prompt.from_ids(lens.prompt("Where?").ids),
        "spans": lambda: lens.text_prompt("It rains.", {"weather": (3, 8)}),
    }[other]()
    asked = film(lens.trace(prompt, max_new_tokens=4))["request"]
    assert asked["built_from"] is None and asked["prompt"]["ids"] == prompt.ids
    assert [fl.Region(*region) for region in asked["prompt"]["regions"]] == prompt.regions


def test_arrays_travel_as_base64_and_text_is_never_markup():
    assert packed(np.array([1, 2]), "int32") == {"dtype": "int32", "shape": [2], "data": "AQAAAAIAAAA="}
    np.testing.assert_array_equal(unpacked(packed(np.array([0.5, np.nan]), "float16")), np.float16([0.5, np.nan]))
    assert unpacked(bits(np.array([True, False, False, True]))).tolist() == [9]
    assert (evenly(10, 4), evenly(3, 9), evenly(5, 1)) == ([0, 3, 6, 9], [0, 1, 2], [4])
    assert escaped_json("</script>") == '"\\u003c/script\\u003e"'
