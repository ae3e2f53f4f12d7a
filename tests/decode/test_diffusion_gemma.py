"""DiffusionGemma through transformers' own class: the tokens of its `generate`, step by step, and its own attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

import floatlens as fl
from floatlens.errors import FloatLensError
from tests.models import checkpoints

pytestmark = pytest.mark.skipif(
    not hasattr(transformers, "DiffusionGemmaConfig"), reason="this transformers has no DiffusionGemma"
)
PROMPT, CANVAS, STEPS, END = [5, 9, 13, 17, 3], 8, 6, 1
SETTINGS: dict[str, Any] = {"max_new_tokens": 16, "steps_per_block": STEPS}


@pytest.fixture(scope="module")
def lens(tmp_path_factory: pytest.TempPathFactory) -> fl.Lens:
    folder = checkpoints.diffusion_gemma(tmp_path_factory.mktemp("gemma"), canvas=CANVAS)
    lens = fl.load(str(folder), dtype="float32")
    assert lens.family.name == "diffusion-gemma" and lens.block_length == CANVAS
    assert (lens.shape["kv_heads"], lens.shape["head_dim"]) == (2, 16)  # the largest of all layers
    return lens


def by_generate(lens: fl.Lens, seed: int, ends: list[int], **options: Any) -> tuple[list[int], list[list[int]]]:
    """What transformers' own generate returns, and the canvas that went into each of its denoising steps."""
    canvases: list[list[int]] = []
    forward = lens.model.forward

    def listening(**given: Any) -> Any:
        canvases.append(given["decoder_input_ids"][0].tolist())
        return forward(**given)

    lens.model.forward = listening
    try:
        torch.manual_seed(seed)
        options = {"max_new_tokens": 16, "max_denoising_steps": STEPS, "eos_token_id": ends or None} | options
        made = lens.model.generate(torch.tensor([PROMPT]), **options)
    finally:
        del lens.model.forward
    return made.sequences[0].tolist(), canvases


def set_ends(lens: fl.Lens, ends: list[int]) -> None:
    lens.__dict__["end_ids"] = tuple(ends)
    lens.__dict__.pop("special_ids", None)


@pytest.mark.parametrize("seed", range(3))
def test_each_step_sees_the_canvas_of_transformers_generate(lens: fl.Lens, seed: int) -> None:
    set_ends(lens, [])
    tokens, canvases = by_generate(lens, seed, [])
    trace = lens.trace(PROMPT, seed=seed, sampler=SETTINGS)
    assert trace.final_tokens.tolist() == tokens
    assert trace.data.sizes["step"] == len(canvases)
    for step, canvas in enumerate(canvases):
        seen = trace.data["tokens"].sel(step=step).values
        assert seen[seen >= 0][-CANVAS:].tolist() == canvas, f"step {step}"


def test_certain_canvases_end_early_as_in_generate(lens: fl.Lens) -> None:
    """A wide bound and a lax rule: whatever transformers' stopping rule says, the number of steps is the same."""
    set_ends(lens, [])
    tokens, canvases = by_generate(
        lens,
        1,
        [],
        confidence_threshold=10.0,
        stability_threshold=0,
        t_min=0.01,
        t_max=0.02,
        max_new_tokens=20,
    )
    options = {"confidence_threshold": 10.0, "stability_threshold": 0, "t_min": 0.01, "t_max": 0.02}
    trace = lens.trace(PROMPT, seed=1, sampler=SETTINGS | options | {"max_new_tokens": 20})
    assert trace.final_tokens.tolist() == tokens and trace.data.sizes["step"] == len(canvases) == 3
    assert len(lens.generate([PROMPT], seed=1, sampler=SETTINGS | options | {"max_new_tokens": 20})[0].ids) == 20


def test_an_end_token_ends_generation(lens: fl.Lens) -> None:
    set_ends(lens, [])
    first = lens.trace(PROMPT, seed=0, sampler=SETTINGS).final_tokens[len(PROMPT) + 2]
    set_ends(lens, [int(first)])
    tokens, canvases = by_generate(lens, 0, [int(first)])
    trace = lens.trace(PROMPT, seed=0, sampler=SETTINGS)
    assert trace.data.sizes["step"] == len(canvases) == STEPS
    end = trace.final_tokens.tolist().index(first, len(PROMPT)) + 1
    assert trace.final_tokens.tolist()[:end] == tokens[:end]


def test_the_recorded_attention_is_that_of_the_eager_decoder(lens: fl.Lens) -> None:
    set_ends(lens, [])
    found: list[list[torch.Tensor]] = [[] for _ in lens.model.model.decoder.layers]
    hooks = [
        layer.self_attn.register_forward_hook(lambda _, __, output, kept=kept: kept.append(output[1][0]))
        for layer, kept in zip(lens.model.model.decoder.layers, found, strict=True)
    ]
    lens.model.set_attn_implementation("eager")
    try:
        lens.generate([PROMPT], sampler=SETTINGS)
    finally:
        lens.model.set_attn_implementation("sdpa")
        for hook in hooks:
            hook.remove()
    trace = lens.trace(PROMPT, matrices=["attention"], sampler=SETTINGS)
    for step in trace.data["step"].values:
        tokens = trace.data["tokens"].sel(step=step).values
        length = int((tokens >= 0).sum())
        for layer, kept in enumerate(found):
            weights_HLT = kept[step].numpy()  # a sliding layer has only the last keys
            # Eager attention rounds in another way, which self-conditioning adds up over the steps.
            seen = trace.data["attention"].sel(step=step, layer=layer).values[:, length - CANVAS : length, :length]
            np.testing.assert_allclose(
                seen[..., length - weights_HLT.shape[-1] :], weights_HLT, atol=1e-4
            )  # eager rounds otherwise, and self-conditioning adds up
            assert not np.nan_to_num(seen[..., : length - weights_HLT.shape[-1]]).any()
            received = trace.data["received"].sel(step=step, layer=layer).values[:, :length]
            np.testing.assert_allclose(received.sum(-1), 1.0, atol=1e-5)
    window = lens.config.get_text_config().sliding_window
    assert found[0][-1].shape[-1] == window - 1 + CANVAS < found[-1][-1].shape[-1] == len(PROMPT) + 2 * CANVAS


def test_final_rows_are_those_of_the_causal_encoder(lens: fl.Lens) -> None:
    """In a full layer: rows of the prompt and of the finished canvas, which see what is before them."""
    set_ends(lens, [])
    trace = lens.trace(PROMPT, sampler=SETTINGS)
    final = trace.data["received_final"].values[:, -1]
    assert np.isfinite(final[0, :, : len(PROMPT)]).all() and np.isnan(final[0, :, len(PROMPT) :]).all()
    done = len(PROMPT) + CANVAS
    assert np.isfinite(final[STEPS, :, :done]).all() and np.isnan(final[STEPS, :, done:]).all()
    np.testing.assert_allclose(final[STEPS, :, :done].sum(-1), 1.0, atol=1e-5)
    # The last key of a causal matrix is seen by its own row alone, so it receives at most one row's share.
    assert (final[STEPS, :, done - 1] <= 1 / done + 1e-6).all()


def test_stream_equals_exact(lens: fl.Lens) -> None:
    set_ends(lens, [])
    stream, exact = (lens.trace(PROMPT, implementation=way, sampler=SETTINGS) for way in ("stream", "exact"))
    assert set(stream.data.data_vars) == set(exact.data.data_vars)
    for name in stream.data.data_vars:
        np.testing.assert_allclose(stream.data[name], exact.data[name], atol=2e-5, rtol=1e-4, err_msg=str(name))


def test_layers_with_fewer_heads_are_filled_up(lens: fl.Lens) -> None:
    norms = lens.trace(PROMPT, sampler=SETTINGS).data["value_norm"].isel(step=0, position=0).values
    assert np.isfinite(norms[0]).all() and np.isfinite(norms[-1][0]) and np.isnan(norms[-1][1:]).all()


def test_a_commit_is_an_accepted_token_that_was_not_there(lens: fl.Lens) -> None:
    set_ends(lens, [])
    trace = lens.trace(PROMPT, sampler=SETTINGS)
    committed, tokens = trace.data["committed_at"].values, trace.data["tokens"].values
    assert (committed[: len(PROMPT)] == -1).all() and (committed[len(PROMPT) :] >= 0).all()
    for position in range(len(PROMPT), len(committed)):  # from its last commit on, the position holds its final token
        later = tokens[committed[position] + 1 :, position]
        assert (later[later >= 0] == trace.final_tokens[position]).all()
    assert (trace.data["revised"].values[: len(PROMPT)] == 0).all()


def test_tracing_and_batches_change_no_token(lens: fl.Lens) -> None:
    set_ends(lens, [])
    prompts = [PROMPT, [7, 7, 4]]
    made = lens.generate(prompts, sampler=SETTINGS)
    for prompt, answer, trace in zip(prompts, made, lens.traces(prompts, sampler=SETTINGS), strict=True):
        assert (
            answer.ids == lens.generate([prompt], sampler=SETTINGS)[0].ids == trace.final_tokens[len(prompt) :].tolist()
        )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": 0.5}, ["temperature 0.5", "t_min and t_max"]),
        ({"cache": False}, ["no setting 'cache'"]),
        ({"t_min": 0.9}, ["t_min 0.9", "t_max 0.8"]),
        ({"entropy_bound": 0.0}, ["entropy_bound", "above 0"]),
    ],
)
def test_settings_that_cannot_work_are_refused(lens: fl.Lens, options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(FloatLensError) as caught:
        lens.generate([PROMPT], sampler=options)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_given_text_is_not_replayed(lens: fl.Lens) -> None:
    with pytest.raises(FloatLensError, match="the diffusion-gemma sampler cannot replay a given text"):
        lens.replay(PROMPT, [7, 11, 20])


def test_observe_makes_no_trace_of_it_and_names_the_way_out(lens: fl.Lens) -> None:
    with fl.observe(lens.model) as watch:
        lens.model.generate(torch.tensor([PROMPT]), max_new_tokens=8, max_denoising_steps=2)
    with pytest.raises(FloatLensError, match=r"no trace of DiffusionGemma.*load\(\.\.\.\)\.trace"):
        watch.trace()
