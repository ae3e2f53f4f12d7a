"""Interventions are always undone, can be combined, are visible in the trace, and raise errors for invalid settings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import floatlens as fl
from floatlens.attention.hook import configs_of
from floatlens.data.prompt import Prompt, Region
from floatlens.data.read import read
from floatlens.interventions.ablate_heads import head_means, head_scores
from floatlens.interventions.intervention import INTERVENTIONS, parse_intervention
from floatlens.models.checkpoint import find
from tests.models import checkpoints

IDS = [1, 5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45]
PROMPT = Prompt("", IDS, [Region("query", 1, 4), Region("doc1", 5, 9)], gold=[0])


@pytest.fixture(scope="module", params=["llada", "llama"])
def lens(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> fl.Lens:
    folder = tmp_path_factory.mktemp(request.param)
    made = checkpoints.llada(folder) if request.param == "llada" else checkpoints.native(folder, "llama")
    found = fl.load(str(made), dtype="float32")
    found.end_ids = ()
    return found


@pytest.fixture(scope="module")
def tiny() -> fl.Lens:
    return fl.load("tiny-mdm")


def ids(lens: fl.Lens, **settings: Any) -> list[int]:
    return lens.generate([PROMPT], max_new_tokens=6, sampler=settings)[0].ids


def implementation(lens: fl.Lens) -> set[str]:
    return {config._attn_implementation for config in configs_of(lens.model).values()}


def test_everything_is_as_before_when_the_block_ends(lens: fl.Lens) -> None:
    before, how = ids(lens), implementation(lens)
    with lens.intervene(fl.SoftCap(0.5), fl.MaskPositions(slice(0, 4))):
        assert ids(lens) != before
    assert ids(lens) == before and implementation(lens) == how


def test_everything_is_as_before_after_an_error_in_the_middle(lens: fl.Lens, monkeypatch: pytest.MonkeyPatch) -> None:
    before, how = ids(lens), implementation(lens)

    def fail(self: Any, attention: Any) -> None:
        raise ValueError("in the middle of a forward pass")

    with monkeypatch.context() as patch:
        patch.setattr(fl.SoftCap, "change", fail)
        with pytest.raises(ValueError, match="in the middle"), lens.intervene(fl.SoftCap(0.5)):
            lens.generate([PROMPT], max_new_tokens=6)
    assert implementation(lens) == how and ids(lens) == before
    with pytest.raises(KeyError), lens.intervene(fl.SoftCap(0.5)):
        raise KeyError
    assert ids(lens) == before


def test_a_run_that_is_left_in_the_middle_leaves_the_model_alone(lens: fl.Lens) -> None:
    before = ids(lens)
    with lens.intervene(fl.SoftCap(0.5)):
        batch = lens._batch([PROMPT])
        steps = lens.steps(batch, lens.settings(max_new_tokens=6))
        next(steps)
        plain = lens.model(input_ids=torch.tensor([IDS])).logits
    assert ids(lens) == before
    assert torch.equal(plain, lens.model(input_ids=torch.tensor([IDS])).logits)


def test_nested_blocks_add_up(lens: fl.Lens) -> None:
    one, other = fl.MaskPositions(1), fl.ScaleAttention(0.3)
    with lens.intervene(one, other):
        together = lens.trace(PROMPT, max_new_tokens=4, record=["received"])
    with lens.intervene(one), lens.intervene(other):
        nested = lens.trace(PROMPT, max_new_tokens=4, record=["received"])
    np.testing.assert_array_equal(together.data["received"].values, nested.data["received"].values)
    assert json.loads(nested.data.attrs["interventions"]) == [str(one), str(other)]
    assert json.loads(lens.trace(PROMPT, max_new_tokens=2).data.attrs["interventions"]) == []


def test_texts_do_what_objects_do(lens: fl.Lens) -> None:
    with lens.intervene("mask-anchors(top(2), layers=[0, 2])"):
        text = ids(lens)
    with lens.intervene(fl.MaskAnchors("top(2)", layers=[0, 2])):
        assert ids(lens) == text


def test_the_trace_shows_attention_as_it_was_used(lens: fl.Lens) -> None:
    with lens.intervene(fl.MaskPositions([2, 3], layers=1)):
        trace = lens.trace(PROMPT, max_new_tokens=3, matrices=["attention"])
        exact = lens.trace(PROMPT, max_new_tokens=3, matrices=["attention"], implementation="exact")
    received = trace.data["received"].values
    assert np.nanmax(received[:, 1, :, 2:4]) == 0 and (received[:, 0, :, 2:4] > 0).all()
    for name in ("received", "entropy", "qk", "attention"):
        np.testing.assert_allclose(trace.data[name].values, exact.data[name].values, atol=1e-5 * 50, rtol=1e-4)
    np.testing.assert_allclose(np.nansum(received, -1), 1, atol=1e-5)


@pytest.mark.parametrize(
    "spec", ["pin-anchors(rule=top(2))", "mask-anchors(top(2))", "scale-attention(3, rule=top(1))"]
)
def test_layers_that_differ_are_never_looked_at_together(lens: fl.Lens, spec: str) -> None:
    """Every layer has its own mask, at later steps also where the first step had none."""
    with lens.intervene(spec):
        traces = [
            lens.trace(PROMPT, max_new_tokens=4, record=["received", "entropy"], implementation=how)
            for how in ("stream", "exact")
        ]
    for name in ("received", "entropy"):
        np.testing.assert_allclose(*(trace.data[name].values for trace in traces), atol=1e-5)


def test_a_sink_takes_its_share_out_of_what_is_received(lens: fl.Lens) -> None:
    with lens.intervene(fl.AddSink(3.0, layers=0)):
        trace = lens.trace(PROMPT, max_new_tokens=3, matrices=["attention"], record=["received"])
    total = np.nansum(trace.data["received"].values, -1)
    assert (total[:, 0] < 0.999).all()
    np.testing.assert_allclose(total[:, 1:], 1, atol=1e-5)


@pytest.mark.parametrize("rule", ["sigma(1)", "top(3)", "first", "share(0.12)", "excess(0.5)"])
def test_the_anchors_that_are_masked_are_those_that_a_trace_shows(lens: fl.Lens, rule: str) -> None:
    """In the first layer, whose input no intervention has touched, step for step along the same tokens."""
    with lens.intervene(fl.MaskAnchors(rule, layers=0)):
        masked = lens.trace(PROMPT, max_new_tokens=4, record=["received"], matrices=["attention"])
    plain = lens.trace(PROMPT, max_new_tokens=4, record=["received"])
    tokens = [t.data["tokens"].values for t in (masked, plain)]
    same = [s for s in range(4) if (tokens[0][: s + 1] == tokens[1][: s + 1]).all()]
    assert 0 in same
    for step in same:
        there = plain.data["tokens"].values[step] >= 0
        last_row = masked.data["attention"].values[step, 0, :, there.sum() - 1].mean(0)[there]
        np.testing.assert_array_equal(last_row == 0, plain.anchors(rule).values[step, 0][there])


def test_pinned_anchors_keep_their_share_and_later_ones_lose_it(lens: fl.Lens) -> None:
    """The column factors are exact before rows renormalise; after it the shares lie near what was held."""
    rule = "sigma(1)"
    plain = lens.trace(PROMPT, max_new_tokens=6, record=["received"])
    with lens.intervene(fl.PinAnchors(0, rule, layers=0)):
        pinned = lens.trace(PROMPT, max_new_tokens=6, record=["received"])
    held = plain.anchors(rule).values[0, 0]
    first, after = (t.data["received"].values.mean(2)[:, 0] for t in (plain, pinned))
    np.testing.assert_allclose(first[0], after[0], atol=1e-6)
    assert held.any()
    drift = np.abs(after[1:, held] - first[0, held]).mean()
    free = np.abs(first[1:, held] - first[0, held]).mean()
    assert drift <= free + 1e-6 or lens.family.kind == "arm"


def test_a_moved_anchor_and_its_new_place_exchange_their_shares(lens: fl.Lens) -> None:
    """Row by row the ratio of the two weights is the factor's square times what it was, also after rows renormalise."""
    plain = lens.trace(PROMPT, max_new_tokens=1, record=["received"], matrices=["attention"])
    with lens.intervene(fl.MoveAnchors(2, "top(1)", layers=0)):
        moved = lens.trace(PROMPT, max_new_tokens=1, record=["received"], matrices=["attention"])
    a = plain.data["received"].values.mean(2)[0, 0]
    anchor = int(np.flatnonzero(plain.anchors("top(1)").values[0, 0])[0])
    place = (anchor + 2) % int(np.isfinite(a).sum())
    before, after = (t.data["attention"].values[0, 0, :, len(IDS) - 1] for t in (plain, moved))
    ratio = (after[:, place] / after[:, anchor]) / (before[:, place] / before[:, anchor])
    np.testing.assert_allclose(ratio, (a[anchor] / a[place]) ** 2, rtol=1e-3)
    others = [j for j in range(len(IDS)) if j not in (anchor, place)]
    kept = after[:, others] / before[:, others]
    np.testing.assert_allclose(kept, kept[:, :1].repeat(len(others), 1), rtol=1e-3)


def test_anchors_pinned_over_layers_leave_the_first_layer_as_it_is(lens: fl.Lens) -> None:
    plain = lens.trace(PROMPT, max_new_tokens=1, record=["received"])
    with lens.intervene(fl.PinAnchors(rule="top(2)", across="layers")):
        pinned = lens.trace(PROMPT, max_new_tokens=1, record=["received"])
    a, held = (t.data["received"].values.mean(2)[0] for t in (plain, pinned))
    np.testing.assert_allclose(a[0], held[0], atol=1e-6)
    assert np.nanmax(np.abs(a[1] - held[1])) > 1e-3


def test_a_control_moves_as_much_attention_and_touches_none_of_the_anchors(lens: fl.Lens) -> None:
    rule = "top(3)"
    plain = lens.trace(PROMPT, max_new_tokens=1, record=["received"])
    anchors = plain.anchors(rule).values[0, 0]
    found = set()
    for seed in range(4):
        with lens.intervene(fl.MaskAnchors(rule, layers=0).control(seed)):
            trace = lens.trace(PROMPT, max_new_tokens=1, record=["received"], matrices=["attention"])
        attention = trace.data["attention"].values[0, 0].mean(0)
        last = attention[len(IDS) - 1]
        hidden = np.flatnonzero(last[: len(IDS)] == 0) if lens.family.kind == "arm" else np.flatnonzero(last == 0)
        assert len(hidden) >= 3 and not anchors[hidden].any()
        a = plain.data["received"].values[0, 0].mean(0)
        there = np.isfinite(a)
        enough, others = a[hidden].sum() >= a[anchors].sum() - 1e-6, int((there & ~anchors).sum())
        assert enough or len(hidden) == others // 2
        assert not enough or len(hidden) == 3 or a[hidden].sum() - a[hidden].max() < a[anchors].sum()
        found.add(tuple(hidden))
    assert len(found) > 1, "every seed draws the same"


def test_the_code_of_the_page_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "interventions.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "interventions.md", "exec"), names)
    listed = json.loads(names["trace"].data.attrs["interventions"])
    assert listed == ["mask-anchors(rule=top(n=2), layers=shallow)", "soft-cap"]
    assert names["answer"].text == names["trace"].data.attrs["output"]


def test_the_page_describes_every_intervention_with_a_picture() -> None:
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "interventions.md").read_text(encoding="utf-8")
    for name in INTERVENTIONS:
        assert f"## {name}\n" in page and (docs / "images" / "interventions" / f"{name}.png").is_file()


# --- heads ----------------------------------------------------------------------------------------------------------------


def test_the_best_heads_are_those_with_the_highest_copy_score(tiny: fl.Lens) -> None:
    from floatlens.findings.heads import heads
    from floatlens.interventions.ablate_heads import NEW_TOKENS, reference_prompts

    prompts = reference_prompts(tiny)
    traces = tiny.traces(prompts, record=("evidence", "received"), max_new_tokens=NEW_TOKENS)
    wanted = heads.measure(traces)["hit"].mean("sample").values
    scores = head_scores(tiny)["retrieval"]
    np.testing.assert_allclose(scores, wanted, atol=1e-5)
    top = fl.AblateHeads("top(3)").pairs(tiny)
    least = min(wanted[pair] for pair in top)
    rest = [wanted[layer, head] for layer in range(6) for head in range(4) if (layer, head) not in top]
    assert least >= max(rest)


def test_a_mean_over_the_reference_is_the_mean_of_the_heads_output(tiny: fl.Lens) -> None:
    """The output of a layer's heads is what goes into its output projection."""
    prompts = [tiny.prompt("Where was Ada born?"), tiny.prompt("Who wrote it?", ["Ada wrote it in the winter."])]
    seen: list[torch.Tensor] = []
    projection = tiny.model.model.layers[2].self_attn.o_proj
    hook = projection.register_forward_pre_hook(lambda module, args: seen.append(args[0].reshape(-1, 4, 32).clone()))
    try:
        for prompt in prompts:
            tiny.generate([prompt], max_new_tokens=16)
    finally:
        hook.remove()
    wanted = torch.cat(seen).mean(0)
    np.testing.assert_allclose(head_means(tiny, prompts)[2].numpy(), wanted.numpy(), atol=1e-5)
    got: list[torch.Tensor] = []
    hook = projection.register_forward_pre_hook(lambda module, args: got.append(args[0].reshape(-1, 4, 32).clone()))
    try:
        with tiny.intervene(fl.AblateHeads([(2, 1)], fill="mean"), reference=prompts):
            tiny.generate(prompts[:1], max_new_tokens=4)
    finally:
        hook.remove()
    np.testing.assert_allclose(got[0][:, 1].numpy(), wanted[1].expand(len(got[0]), -1).numpy(), atol=1e-5)
    assert float((got[0][:, 0] - wanted[0]).abs().max()) > 1e-2


def test_kinds_are_those_of_the_tokens_that_stand_there(tiny: fl.Lens) -> None:
    sample = next(iter(read("world:fresh", limit=1)))
    prompt = tiny.prompt(sample.question, sample.passages)
    pieces = tiny.tokenizer.convert_ids_to_tokens(prompt.ids)
    inside = {j for region in prompt.regions for j in range(region.start, region.end)}
    stops = [j for j, piece in enumerate(pieces) if piece in (".", "?", ",") and j in inside]
    assert stops
    with tiny.intervene(fl.MaskPositions(kind="punctuation")):
        received = tiny.trace(prompt, max_new_tokens=4, record=["received"]).data["received"].values
    assert received[..., stops].max() == 0
    names = [j for j, piece in enumerate(pieces) if piece.lstrip("Ġ")[:1].isupper() and j in inside]
    assert received[..., names].min() > 0


# --- what is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INTERVENTIONS)
def test_every_intervention_says_what_it_does_and_reads_back_its_own_text(name: str) -> None:
    examples = {"mask-positions": "mask-positions(0)", "scale-attention": "scale-attention(2)"}
    examples["ablate-heads"] = "ablate-heads(top(2))"
    found = parse_intervention(examples.get(name, name))
    assert parse_intervention(str(found)) == found
    assert (INTERVENTIONS[name].__doc__ or "").splitlines()[0].endswith(".")
    assert getattr(fl, type(found).__name__) is INTERVENTIONS[name]


BAD = {
    "mask-everything": "unknown intervention 'mask-everything'",
    "mask-anchors(": "not understood",
    "mask-anchors([0, 1)": "brackets do not match",
    "mask-anchors(rule=nothing(3))": "unknown anchor rule 'nothing'",
    "mask-anchors(depth=3)": "'depth=3' is not understood; mask-anchors takes rule, layers",
    "mask-anchors(sigma(3), rule=top(1))": "rule is given twice",
    "mask-anchors(sigma(-9))": "selects every position",
    "mask-anchors(share(0))": "selects every position",
    "mask-anchors(layers=)": "has no value",
    "mask-anchors(layers=middle)": "layers 'middle' are not understood",
    "mask-anchors(layers=[])": "no layer was selected",
    "mask-positions": "takes one of positions, region, kind; none is given",
    "mask-positions(0, region=doc1)": "not positions and region together",
    "mask-positions(0:)": "is every position",
    "mask-positions(kind=verbs)": "unknown token kind 'verbs'",
    "mask-positions(-1)": "positions '-1' are not understood",
    "scale-attention": "needs factor",
    "scale-attention(0)": "should be above 0",
    "scale-attention(much)": "factor 'much' is not a number",
    "scale-attention(2, random=1)": "random needs positions",
    "soft-cap(-1)": "should be above 0",
    "ablate-heads": "needs heads",
    "ablate-heads(top(0))": "should be an integer of 1 or more",
    "ablate-heads(top(3, by=looks))": "unknown by 'looks'",
    "ablate-heads([1.2.3])": "are not understood",
    "ablate-heads([1.2], fill=noise)": "unknown fill 'noise'",
    "ablate-heads([1.2], layers=1)": "leave out layers",
    "pin-anchors(step=-1)": "step should be an integer of 0 or more",
    "pin-anchors(across=heads)": "unknown across 'heads'; use one of steps, layers",
    "pin-anchors(step=2, across=layers)": "step=2 belongs to across=steps",
    "move-anchors(by=0)": "by should be an integer of 1 or more",
    "add-sink(nan)": "is not a number",
}


@pytest.mark.parametrize("spec", BAD)
def test_a_bad_text_is_refused_with_the_reason(spec: str) -> None:
    with pytest.raises(fl.FloatLensError) as error:
        parse_intervention(spec)
    assert BAD[spec] in str(error.value)


IMPOSSIBLE: dict[str, tuple[list[Any], str]] = {
    "layer": ([fl.MaskAnchors(layers=6)], "layer 6 does not exist; there are 6, from 0 to 5"),
    "layers": ([fl.MaskAnchors(layers=slice(0, 8))], "layer 7 does not exist"),
    "head": ([fl.ScaleAttention(2, heads=[0, 4])], "head 4 does not exist; there are 4, from 0 to 3"),
    "pair": ([fl.AblateHeads([(2, 7)])], "head 7 does not exist"),
    "too many heads": ([fl.AblateHeads("random(9)", layers=0)], "there are 4 heads to choose from"),
    "twice": ([fl.SoftCap(3), "soft-cap(3)"], "it is given twice"),
    "two caps": ([fl.SoftCap(3), fl.SoftCap(4, layers="deep")], "a layer can only have one cap"),
    "two sinks": ([fl.AddSink(1), fl.AddSink(2, heads=1)], "one extra sink"),
    "mask and pin": (
        [fl.MaskAnchors(), fl.PinAnchors()],
        "the same positions cannot receive nothing and keep their share",
    ),
    "two pins": ([fl.PinAnchors(), fl.PinAnchors(2)], "anchors can only be held once"),
    "pin and scale": ([fl.PinAnchors(), fl.ScaleAttention(2, rule="top(1)")], "cannot keep their share and be scaled"),
    "pin and move": ([fl.PinAnchors(), fl.MoveAnchors()], "cannot keep their share and be moved"),
    "mask and move": ([fl.MaskAnchors(), fl.MoveAnchors()], "cannot receive nothing and be moved"),
    "two moves": ([fl.MoveAnchors(2), fl.MoveAnchors(3)], "can only be moved once"),
    "two factors": ([fl.ScaleAttention(2), fl.ScaleAttention(0.5)], "two factors"),
    "mask and scale": (
        [fl.MaskPositions(0), fl.ScaleAttention(2, positions=0)],
        "cannot receive nothing and be scaled",
    ),
    "two fills": ([fl.AblateHeads([(1, 1)]), fl.AblateHeads([(1, 1)], fill="mean")], "only have one fill"),
    "no intervention": ([3], "neither an intervention nor a string"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_what_cannot_work_is_refused_before_a_weight_is_read(case: str) -> None:
    lens = fl.Lens(find("tiny-mdm"))
    given, reason = IMPOSSIBLE[case]
    with pytest.raises(fl.FloatLensError) as error, lens.intervene(*given):
        raise AssertionError("the block was entered")
    assert reason in str(error.value)
    assert "model" not in lens.__dict__


def test_contradictions_across_nested_blocks_are_refused(lens: fl.Lens) -> None:
    with lens.intervene(fl.SoftCap(3)):
        with pytest.raises(fl.FloatLensError, match="one cap"), lens.intervene(fl.SoftCap(4)):
            pass
        with lens.intervene(fl.AddSink()):
            assert ids(lens)


def test_interventions_that_never_meet_do_not_contradict(lens: fl.Lens) -> None:
    with lens.intervene(fl.SoftCap(3, layers=0), fl.SoftCap(4, layers=1)):
        assert ids(lens)


ON_PROMPTS: dict[str, tuple[Any, str]] = {
    "every position": (fl.MaskPositions(region="prompt"), "masks every position"),
    "every anchor": (fl.MaskAnchors("top(500)"), "no position would be left to attend to"),
    "as a minimum": (fl.MaskAnchors("sigma(3, minimum=500)"), "no position would be left to attend to"),
    "no such position": (fl.MaskPositions(400), "position 400 does not exist"),
    "no such region": (
        fl.MaskPositions(region="doc7"),
        "region 'doc7' is not in the prompt; its regions are query, doc1",
    ),
    "no such anchors": (fl.MaskAnchors(regions="doc7"), "region 'doc7' is not in the prompt"),
}


@pytest.mark.parametrize("case", ON_PROMPTS)
def test_what_the_prompts_do_not_have_is_refused_before_the_first_step(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lens = fl.load(str(checkpoints.native(tmp_path, "llama")), dtype="float32")
    monkeypatch.setattr(lens.model, "forward", lambda *a, **k: pytest.fail("the model ran"))
    intervention, reason = ON_PROMPTS[case]
    with lens.intervene(intervention), pytest.raises(fl.FloatLensError) as error:
        lens.generate([PROMPT], max_new_tokens=2)
    assert reason in str(error.value)


def test_a_lens_without_a_tokenizer_needs_reference_prompts_for_its_best_heads(lens: fl.Lens) -> None:
    with pytest.raises(fl.FloatLensError, match="reference"), lens.intervene("ablate-heads(top(1))"):
        pass
