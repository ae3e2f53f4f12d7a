"""Block samplers on tiny random models: caches, batches and tracing change nothing; invalid settings are errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import floatlens as fl
from floatlens.cli.main import run
from floatlens.decode.network import Passes
from floatlens.errors import FloatLensError
from tests.models import checkpoints

PROMPTS = [list(range(3, 16)), [40, 7, 22, 9], list(range(20, 37))]
MATRICES = ["attention", "queries", "keys"]
# family: how its checkpoint is made, how it is loaded, and settings under which blocks take several steps
FAMILIES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "sdar": (checkpoints.sdar, {}, {"confidence_threshold": 0.3, "max_new_tokens": 10}),
    "llada2": (checkpoints.llada2, {}, {"threshold": 0.3, "max_new_tokens": 10, "block_length": 4}),
    "llada2.1": (
        checkpoints.llada2,
        {"family": "llada2.1"},
        {"threshold": 0.0, "editing_threshold": 0.0, "max_post_steps": 2, "max_new_tokens": 10, "block_length": 4},
    ),
    "a2d-block": (checkpoints.a2d, {"family": "a2d-block", "block_length": 4}, {"max_new_tokens": 10, "steps": 6}),
}


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[fl.Lens, dict[str, Any]]:
    make, options, settings = FAMILIES[request.param]
    lens = fl.load(str(make(tmp_path_factory.mktemp("block") / "model")), dtype="float32", **options)
    assert (lens.family.name, lens.family.attention) == (request.param, "block")
    return lens, settings


def assert_same(one: fl.Trace, other: fl.Trace) -> None:
    assert set(one.data.data_vars) == set(other.data.data_vars)
    assert one.data.sizes == other.data.sizes
    for name in one.data.data_vars:
        np.testing.assert_allclose(one.data[name], other.data[name], atol=2e-5, rtol=1e-4, err_msg=str(name))


def test_a_cache_changes_no_token_and_no_number(case: Any) -> None:
    lens, settings = case
    cached, whole = (
        lens.trace(PROMPTS[0], matrices=MATRICES, sampler=settings | {"cache": cache}) for cache in (True, False)
    )
    assert_same(cached, whole)


def test_stream_equals_exact(case: Any) -> None:
    lens, settings = case
    stream, exact = (
        lens.trace(PROMPTS[0], implementation=way, matrices=MATRICES, sampler=settings) for way in ("stream", "exact")
    )
    assert_same(stream, exact)


def test_a_batch_writes_and_shows_what_its_rows_do_alone(case: Any) -> None:
    lens, settings = case
    together = lens.traces(PROMPTS, sampler=settings)
    answers = lens.generate(PROMPTS, sampler=settings)
    for prompt, trace, answer in zip(PROMPTS, together, answers, strict=True):
        assert_same(trace, lens.trace(prompt, sampler=settings))
        [alone] = lens.generate([prompt], sampler=settings)
        assert (answer.ids, answer.steps, answer.ended) == (alone.ids, alone.steps, alone.ended)
        assert answer.confidence == pytest.approx(alone.confidence, abs=1e-5, nan_ok=True)


def test_a_batch_shares_its_passes(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of any length, also shorter than a block; a row that is done with a block waits for the others."""
    lens, settings = case
    prompts, passes = [*PROMPTS, [9, 31], [9, 31, 7]], []
    run = Passes.run
    monkeypatch.setattr(Passes, "run", lambda self, *args, **more: passes.append(1) or run(self, *args, **more))
    alone, counts = [], []
    for prompt in prompts:
        passes.clear()
        alone += lens.generate([prompt], sampler=settings)
        counts.append(len(passes))
    passes.clear()
    together = lens.generate(prompts, sampler=settings)
    assert [(one.ids, one.steps) for one in together] == [(one.ids, one.steps) for one in alone]
    assert max(counts) <= len(passes) < sum(counts)


def test_a_short_prompt_of_a_batch_shows_what_it_shows_alone(case: Any) -> None:
    lens, settings = case
    short = settings | {"max_new_tokens": 3}
    for prompt, trace in zip([PROMPTS[2], [9, 31]], lens.traces([PROMPTS[2], [9, 31]], sampler=short), strict=True):
        assert_same(trace, lens.trace(prompt, sampler=short))


def test_steps_that_are_chosen_are_those_of_each_row(case: Any) -> None:
    lens, settings = case
    chosen = {"sampler": settings, "record_steps": [0, 3]}
    for prompt, trace in zip(PROMPTS, lens.traces(PROMPTS, **chosen), strict=True):
        assert_same(trace, lens.trace(prompt, **chosen))


def test_tracing_changes_no_token(case: Any) -> None:
    lens, settings = case
    for prompt, made in zip(PROMPTS, lens.generate(PROMPTS, sampler=settings), strict=True):
        again = fl.Generation.from_trace(lens, lens.trace(prompt, sampler=settings))
        assert (again.ids, again.steps, again.ended) == (made.ids, made.steps, made.ended)
        assert again.confidence == pytest.approx(made.confidence, abs=1e-5, nan_ok=True)


def test_every_row_of_a_step_belongs_to_one_block(case: Any) -> None:
    """Finished blocks are keys: the attention of a step has the rows of its block, and each sums to 1."""
    lens, settings = case
    trace = lens.trace(PROMPTS[0], matrices=["attention"], sampler=settings)
    block = trace.settings["block_length"]
    start = 0 if lens.family.name != "a2d-block" else len(PROMPTS[0])
    for step in trace.data["step"].values:
        rows = trace.data["attention"].sel(step=step).isel(layer=0, head=0)
        queries = np.flatnonzero(rows.notnull().any("key").values)
        assert len({(int(q) - start) // block for q in queries}) == 1
        np.testing.assert_allclose(rows.isel(query=queries).sum("key"), 1.0, atol=1e-5)
        written = np.flatnonzero(trace.data["committed_at"].values == step)
        assert set(written) <= set(queries)


def test_a_seed_gives_the_same_draw_again(case: Any) -> None:
    lens, settings = case
    options = settings | {"temperature": 1.0, "seed": 5}
    assert [g.ids for g in lens.generate(PROMPTS, sampler=options)] == [
        lens.generate([p], sampler=options)[0].ids for p in PROMPTS
    ]


def test_a_revised_token_is_counted_and_its_last_commit_is_kept(tmp_path: Path) -> None:
    """By replaying the steps: `tokens` has the ids by step."""
    _, options, settings = FAMILIES["llada2.1"]
    lens = fl.load(str(checkpoints.llada2(tmp_path)), dtype="float32", **options)
    trace = lens.trace(PROMPTS[0], sampler=settings)
    tokens, P = trace.data["tokens"].values, len(PROMPTS[0])
    after = np.concatenate([tokens[1:], trace.final_tokens[None]])
    changed = (after != tokens) & (tokens >= 0)
    edits = changed & (tokens != lens.mask_id)
    np.testing.assert_array_equal(trace.data["revised"].values, edits.sum(0))
    assert edits.sum() > 0 and not edits[:, :P].any()
    last = np.where(changed.any(0), len(changed) - 1 - changed[::-1].argmax(0), -1)
    np.testing.assert_array_equal(trace.data["committed_at"].values, last)


def test_a_model_that_guesses_the_mask_ends(tmp_path: Path) -> None:
    """The published loop of LLaDA2.1 never does."""
    lens = fl.load(str(checkpoints.llada2(tmp_path)), family="llada2.1", dtype="float32")
    guess = lens.generate([PROMPTS[1]], max_new_tokens=4, block_length=4)[0].ids[0]
    lens.__dict__["mask_id"] = guess
    assert lens.trace([i for i in PROMPTS[1] if i != guess], max_new_tokens=4, block_length=4).data.sizes["step"] < 30


@pytest.mark.parametrize("strategy", ["sequential", "low_confidence_static", "entropy_bounded"])
def test_no_known_position_is_overwritten(strategy: str, tmp_path: Path) -> None:
    """Steps that plan more transfers than there are masks commit the masks, and leave the prompt as it is."""
    lens = fl.load(str(checkpoints.sdar(tmp_path)), dtype="float32")
    trace = lens.trace(PROMPTS[0], max_new_tokens=7, sampler={"steps_per_block": 2, "remasking_strategy": strategy})
    assert trace.final_tokens[: len(PROMPTS[0])].tolist() == PROMPTS[0]
    assert (trace.data["committed_at"].values[: len(PROMPTS[0])] == -1).all()


def test_the_canvas_is_rounded_up_to_whole_blocks_and_the_answer_is_not(tmp_path: Path) -> None:
    lens = fl.load(str(checkpoints.sdar(tmp_path)), dtype="float32")
    lens.__dict__["end_ids"] = ()
    trace = lens.trace(PROMPTS[0], max_new_tokens=6)
    assert trace.data.sizes["position"] == 20  # 13 + 6, rounded up to blocks of 4
    assert len(lens.generate([PROMPTS[0]], max_new_tokens=6)[0].ids) == 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"block_length": 0}, ["block_length", "1 or more", "0"]),
        ({"block_length": 200}, ["196 new ones", "context of 128", "smaller block_length"]),
        ({"max_new_tokens": 125}, ["128 new ones", "use --max-new-tokens 124"]),
        ({"steps": 4, "steps_per_block": 2}, ["steps 4", "steps_per_block 2", "one of them"]),
        ({"remasking_strategy": "best"}, ["remasking_strategy 'best'", "sequential"]),
        ({"remasking": "random"}, ["no setting 'remasking'", "remasking_strategy"]),
        ({"max_new_tokens": 1000}, ["context of 128"]),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    lens = fl.load(str(checkpoints.sdar(tmp_path)), dtype="float32")
    with pytest.raises(FloatLensError) as caught:
        lens.generate([PROMPTS[1]], sampler=options)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (checkpoints.a2d, {"block_length": 8}, ["family a2d", "block_length 8", "a2d-block"]),
        (checkpoints.a2d, {"family": "a2d-block", "block_length": 0}, ["block_length", "1 or more"]),
        (checkpoints.sdar, {"sampler": "bd3lm"}, ["sampler 'bd3lm'", "family sdar", "use sdar"]),
        (checkpoints.llada2, {"sampler": "sdar"}, ["sampler 'sdar'", "use llada2 or llada2.1"]),
        (checkpoints.a2d, {"sampler": "autoregressive"}, ["sampler 'autoregressive'", "use llada"]),
    ],
)
def test_what_does_not_belong_to_the_family_is_refused_before_weights_are_read(
    make: Any, options: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    folder = make(tmp_path)
    (folder / "model.safetensors").write_bytes(b"never read")
    with pytest.raises(FloatLensError) as caught:
        fl.load(str(folder), **options)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"use_bias": True}, ["'use_bias' is True", "expected False"]),
        ({"score_function": "softmax"}, ["'score_function' is 'softmax'", "sigmoid"]),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, ["'rope_scaling'", "yarn"]),
        ({"num_shared_experts": 0}, ["'num_shared_experts' is 0", "1 or more"]),
        ({"num_experts": "many"}, ["'num_experts'", "'many'"]),
        ({"n_group": 3}, ["'n_group' is 3", "a divisor of num_experts 4"]),
        ({"topk_group": 5}, ["'topk_group' is 5", "1 to n_group 2"]),
        ({"num_experts_per_tok": 3}, ["'num_experts_per_tok' is 3", "1 to 2, the experts of 1 groups"]),
    ],
)
def test_a_config_that_would_change_the_numbers_is_refused_before_weights_are_read(
    fields: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    folder = checkpoints.llada2(tmp_path)
    checkpoints.edit_config(folder, **fields)
    (folder / "model.safetensors").write_bytes(b"never read")
    with pytest.raises(FloatLensError) as caught:
        fl.load(str(folder))
    assert all(word in str(caught.value) for word in words), caught.value


def test_an_absent_use_bias_is_refused_as_the_published_default(tmp_path: Path) -> None:
    folder = checkpoints.llada2(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    del config["use_bias"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(FloatLensError, match="'use_bias' is True"):
        fl.load(str(folder))


def test_another_model_of_the_same_class_loads_after_a_fused_one(tmp_path: Path) -> None:
    """The table of conversions in transformers is as it was."""
    from transformers import Glm4MoeForCausalLM, conversion_mapping

    before = repr(conversion_mapping.get_checkpoint_conversion_mapping("glm4_moe"))
    model = fl.load(str(checkpoints.llada2(tmp_path / "fused")), dtype="float32").model
    assert repr(conversion_mapping.get_checkpoint_conversion_mapping("glm4_moe")) == before
    assert isinstance(model, Glm4MoeForCausalLM)


@pytest.mark.parametrize("value", [0, 2.5, "four"])
def test_a_config_with_an_impossible_block_length_is_refused(value: Any, tmp_path: Path) -> None:
    folder = checkpoints.sdar(tmp_path)
    checkpoints.edit_config(folder, block_size=value)
    with pytest.raises(FloatLensError, match=f"'block_size'.*{value}"):
        fl.load(str(folder))


def test_llada21_has_no_number_of_steps(tmp_path: Path) -> None:
    """`steps` may be given to all models of a comparison; it is ignored and not recorded."""
    lens = fl.Lens(fl.load(str(checkpoints.llada2(tmp_path)), family="llada2.1").checkpoint)
    assert lens.settings(steps=7) == lens.settings()
    with pytest.raises(FloatLensError, match="steps_per_block 3 is not used by llada2.1"):
        lens.settings(sampler={"steps_per_block": 3})


@pytest.mark.parametrize(
    ("make", "fields", "said"),
    [
        (checkpoints.sdar, {"use_sliding_window": True}, "'use_sliding_window' is True.*use a checkpoint without it"),
        (checkpoints.a2d, {"use_sliding_window": True}, "'use_sliding_window' is True.*use a checkpoint without it"),
        (checkpoints.llada2, {"use_sliding_window": True}, "'use_sliding_window' is True.*use a checkpoint without it"),
        (
            checkpoints.sdar,
            {"layer_types": ["sliding_attention"] * 3},
            "'layer_types' is .*'sliding_attention'.*without",
        ),
        (
            checkpoints.a2d,
            {"layer_types": ["sliding_attention"] * 3},
            "'layer_types' is .*'sliding_attention'.*without",
        ),
    ],
)
def test_a_config_with_sliding_windows_is_refused_before_weights_are_read(
    make: Any, fields: dict[str, Any], said: str, tmp_path: Path
) -> None:
    folder = make(tmp_path)
    checkpoints.edit_config(folder, **fields)
    (folder / "model.safetensors").write_bytes(b"never read")
    with pytest.raises(FloatLensError, match=said):
        fl.load(str(folder))


@pytest.mark.parametrize(
    ("make", "fields", "words", "said"),
    [
        (
            checkpoints.sdar,
            {},
            ["--sampler-set", "block_length=200"],
            "exceed the model's context of 128; use a smaller block_length",
        ),
        (
            checkpoints.sdar,
            {},
            ["--sampler-set", "block_length=0"],
            "block_length should be an integer of 1 or more, not 0",
        ),
        (checkpoints.sdar, {"block_size": 0}, [], "field 'block_size' is 0"),
        (checkpoints.sdar, {}, ["--sampler-set", "name=bd3lm"], "sampler 'bd3lm' does not belong to the family sdar"),
        (checkpoints.a2d, {}, ["--sampler-set", "name=sdar"], "sampler 'sdar' does not belong to the family a2d"),
        (checkpoints.llada2, {"use_bias": True}, [], "field 'use_bias' is True"),
        (checkpoints.llada2, {"score_function": "softmax"}, [], "field 'score_function' is 'softmax'"),
        (checkpoints.diffusion_gemma, {"canvas_length": 0}, [], "field 'canvas_length' is 0"),
    ],
)
def test_the_program_refuses_them_with_exit_code_2_and_makes_no_folder(
    make: Any, fields: dict[str, Any], words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make(tmp_path / "model")
    checkpoints.edit_config(folder, **fields)
    (folder / "model.safetensors").write_bytes(b"never read")
    out = tmp_path / "out"
    assert run(["trace", str(folder), "--ids", "5,6,7", "--max-new-tokens", "8", "--out", str(out), *words]) == 2
    assert said in capsys.readouterr().err and not out.exists()
