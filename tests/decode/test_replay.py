"""Replay: a given text revealed in a given order gives the same results as a generation of that text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import floatlens as fl
from floatlens.data.sequences import write_script
from tests import golden_blocks
from tests.models import checkpoints

QUESTION = "On which day was the ship Golden Otter launched?"
PASSAGES = ["The ship Golden Otter was launched on 3 May 1904.", "The ship Blue Fox sank."]
PROMPT, OTHER, ANSWER = [5, 9, 40, 7, 22], [8, 3, 17], [11, 30, 12, 45]


def assert_equal(trace: fl.Trace, expected: fl.Trace) -> None:
    assert set(trace.data.data_vars) == set(expected.data.data_vars)
    for name, values in expected.data.data_vars.items():
        np.testing.assert_array_equal(trace.data[name].values, values.values, err_msg=str(name))


@pytest.fixture(scope="module")
def random_llada(tmp_path_factory: pytest.TempPathFactory) -> fl.Lens:
    return fl.load(str(checkpoints.llada(tmp_path_factory.mktemp("llada"))))


@pytest.fixture(scope="module")
def random_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = checkpoints.native(tmp_path_factory.mktemp("llama"), "llama")
    checkpoints.edit_config(folder, mask_token_id=checkpoints.MASK)
    return folder


@pytest.mark.parametrize(
    ("model", "settings"),
    [("tiny-mdm", {"block_length": 4, "steps": 4}), ("tiny-dream", {"steps": 5}), ("tiny-arm", {})],
)
def test_a_generation_replayed_in_its_own_order_gives_its_own_trace(model: str, settings: dict[str, Any]) -> None:
    lens = fl.load(model)
    prompt = lens.prompt(QUESTION, PASSAGES, gold=0)
    written = lens.trace(prompt, max_new_tokens=8, layers=[0, 5], **settings)
    assert_equal(lens.replay(prompt, written.written, written.order, layers=[0, 5]), written)
    again = lens.generate(lens.with_answer(prompt, written.written, written.order))
    assert again == lens.generate(prompt, max_new_tokens=8, **settings)


def test_a_canvas_is_replayed_on_its_cache(random_llama: Path) -> None:
    lens = fl.load(str(random_llama), family="canvas")
    written = lens.trace(PROMPT, max_new_tokens=6, steps=4)
    assert_equal(lens.replay(PROMPT, written.written, written.order), written)


@pytest.mark.parametrize("model", [*golden_blocks.names("models", "sdar"), *golden_blocks.names("models", "llada2")])
def test_blocks_are_replayed_one_after_another_on_their_cache(model: str) -> None:
    lens = fl.load(str(golden_blocks.path(f"models/{model}")))
    lens.mask_id = golden_blocks.special(model)["mask_token_id"]
    written = lens.trace(PROMPT, max_new_tokens=6, block_length=4)
    if lens.mask_id in written.written:
        pytest.skip("these weights write the mask token itself, so that there is no complete text to replay")
    again = lens.replay(PROMPT, written.written, written.order, block_length=4)
    assert_equal(again, written)
    assert lens.replay(PROMPT, written.written).order == [[n] for n in range(len(written.written))]
    with pytest.raises(fl.FloatLensError, match=r"token 3 is revealed before the block of token 0 is finished"):
        lens.replay(PROMPT, ANSWER, [3, 0, 1, 2], block_length=4)


def test_blocks_after_the_prompt_are_replayed_alone_and_in_a_batch(tmp_path: Path) -> None:
    lens = fl.load(str(checkpoints.a2d(tmp_path)), family="a2d-block", block_length=4)
    lens.__dict__["end_ids"] = ()
    written = lens.traces([PROMPT, OTHER], max_new_tokens=10, steps=6)
    pairs = list(zip([PROMPT, OTHER], written, strict=True))
    for prompt, trace in pairs:
        assert_equal(lens.replay(prompt, trace.written, trace.order), lens.trace(prompt, max_new_tokens=10, steps=6))
    together = lens.traces([lens.with_answer(prompt, trace.written, trace.order) for prompt, trace in pairs])
    for trace, expected in zip(together, written, strict=True):
        assert_equal(trace, expected)
    with pytest.raises(fl.FloatLensError, match=r"token 4 is revealed before the block of token 0 is finished"):
        lens.replay(PROMPT, [11, 30, 12, 45, 13], [4, 0, 1, 2, 3])
    orders = ([[0, 1, 2, 3], [4], []], [[0], [1, 2, 3], [4]])
    with pytest.raises(fl.FloatLensError, match="at step 1 the texts of a batch are revealed in different blocks"):
        lens.traces([lens.with_answer(PROMPT, [11, 30, 12, 45, 13], order) for order in orders])


def test_interventions_apply_to_a_replay(random_llada: fl.Lens) -> None:
    with random_llada.intervene(fl.MaskAnchors("top(1)")):
        written = random_llada.trace(PROMPT, max_new_tokens=6)
        assert_equal(random_llada.replay(PROMPT, written.written, written.order), written)


def test_each_step_of_a_masked_model_sees_what_is_revealed_so_far(random_llada: fl.Lens) -> None:
    trace = random_llada.replay(PROMPT, ANSWER, order=[2, [0, 3], 1], matrices=["attention"])
    masks = [random_llada.mask_id] * 4
    sequences = [[*PROMPT, *masks], [*PROMPT, *masks[:2], 12, masks[0]], [*PROMPT, 11, masks[0], 12, 45]]
    assert trace.data["tokens"].values.tolist() == sequences and trace.written == ANSWER
    assert trace.data["committed_at"].values.tolist() == [-1] * 5 + [1, 2, 0, 1]
    model = random_llada.model
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            outs = [model(input_ids=torch.tensor([ids]), output_attentions=True) for ids in sequences]
    finally:
        model.set_attn_implementation("sdpa")
    weights_SLHQT = np.stack([torch.cat(out.attentions).numpy() for out in outs])
    np.testing.assert_allclose(trace.data["attention"].values, weights_SLHQT, atol=1e-5)
    np.testing.assert_allclose(trace.data["received"].values, weights_SLHQT.mean(-2), atol=1e-5)
    revealed = [float(outs[step].logits[0, 5 + at].softmax(-1)[ANSWER[at]]) for at, step in enumerate((1, 2, 0, 1))]
    confidence = [float(trace.data["confidence"].values[step, 5 + at]) for at, step in enumerate((1, 2, 0, 1))]
    np.testing.assert_allclose(confidence, revealed, rtol=1e-4)


def test_an_autoregressive_replay_gives_the_probabilities_of_one_pass(random_llama: Path) -> None:
    lens = fl.load(str(random_llama))
    trace = lens.replay(PROMPT, ANSWER, matrices=["attention"])
    model = transformers.AutoModelForCausalLM.from_pretrained(random_llama, attn_implementation="eager").eval()
    with torch.no_grad():
        out = model(torch.tensor([[*PROMPT, *ANSWER]]), output_attentions=True)
    probability_T = out.logits[0, 4:8].softmax(-1)[range(4), ANSWER]
    np.testing.assert_allclose(
        [trace.data["confidence"].values[step, 5 + step] for step in range(4)], probability_T.numpy(), rtol=1e-4
    )
    weights_LHQT = torch.cat(out.attentions).numpy()
    np.testing.assert_allclose(trace.data["attention"].values[3, :, :, 7, :8], weights_LHQT[:, :, 7, :8], atol=1e-5)
    np.testing.assert_allclose(
        trace.data["received"].values[3, :, :, :8], weights_LHQT[:, :, :8, :8].mean(-2), atol=1e-5
    )


def test_a_batch_of_replays_equals_its_rows(random_llada: fl.Lens, random_llama: Path) -> None:
    lens = fl.load(str(random_llama))
    prompts = [lens.with_answer(PROMPT, ANSWER), lens.with_answer(OTHER, ANSWER[:2])]
    for made, prompt in zip(lens.traces(prompts), prompts, strict=True):
        alone = lens.traces([prompt])[0]
        np.testing.assert_array_equal(made.data["committed_at"].values, alone.data["committed_at"].values)
        np.testing.assert_allclose(made.data["received"].values, alone.data["received"].values, atol=1e-5)
    prompts = [random_llada.with_answer(p, ANSWER, "random", seed=seed) for seed, p in enumerate((PROMPT, OTHER))]
    for made, prompt in zip(random_llada.traces(prompts), prompts, strict=True):
        assert prompt.script is not None
        assert made.data["committed_at"].values.tolist() == [-1] * len(prompt.ids) + list(prompt.script.at)


def test_an_order_names_each_token_once() -> None:
    assert write_script([7, 8, 9]).at == (0, 1, 2) and write_script([7, 8, 9]).in_sequence
    shuffled = write_script(range(20), "random", seed=3)
    assert sorted(shuffled.at) == list(range(20)) and shuffled != write_script(range(20), "random", seed=4)
    assert write_script([7, 8], [[], [1, 0]]).at == (1, 1) and write_script([7, 8], [[], [1, 0]]).steps == 2
    with pytest.raises(fl.FloatLensError, match="lacks 1; it must name each of the 2 tokens"):
        write_script([7, 8], [0])
    with pytest.raises(fl.FloatLensError, match="names 0 wrongly or twice"):
        write_script([7, 8], [0, 0, 1])
    with pytest.raises(fl.FloatLensError, match="unknown order 'right'; use left-to-right, random, or a list"):
        write_script([7, 8], "right")


def test_what_cannot_be_replayed_is_refused(random_llada: fl.Lens, random_llama: Path) -> None:
    arm = fl.load(str(random_llama))
    with pytest.raises(fl.FloatLensError, match="an autoregressive model reveals tokens from left to right"):
        arm.replay(PROMPT, ANSWER, order="random")
    with pytest.raises(fl.FloatLensError, match="the text to replay has no tokens"):
        arm.replay(PROMPT, [])
    with pytest.raises(fl.FloatLensError, match="equal numbers of tokens and steps"):
        random_llada.traces([random_llada.with_answer(PROMPT, ANSWER), random_llada.with_answer(PROMPT, ANSWER[:2])])
    with pytest.raises(fl.FloatLensError, match="some prompts have a text to replay and some do not"):
        random_llada.traces([random_llada.with_answer(PROMPT, ANSWER), PROMPT])
    with pytest.raises(fl.FloatLensError, match="outside .* vocabulary of 64"):
        random_llada.replay(PROMPT, [64])
