"""A series of checkpoints: planted curves are found, broken input is named, and a training is not touched by its probe."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
import xarray as xr

import floatlens as fl
from floatlens.explorer.run_folders import RunFolders
from floatlens.findings.window import LENGTH, PROMPT, WRITTEN
from floatlens.models.checkpoint import split_name
from floatlens.store.folder import RunFolder
from floatlens.studies import probe as probes
from floatlens.studies.report import films, shown_traces
from floatlens.studies.track import (
    COLUMNS,
    VARIABLES,
    as_dataset,
    copy_scores,
    expand,
    figure,
    open_track,
    rows_of,
    sentence,
    step_of,
    summarise,
)
from tests.commands import run
from tests.findings import planted_models
from tests.findings.planted_models import share
from tests.models import adapters, checkpoints
from tests.small_tokenizers import byte_level

BIASES = (0.0, 2.0, 4.0, 6.0)
ROWS = range(PROMPT, PROMPT + WRITTEN)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of an MDM and of an ARM whose bias to position 0 grows with the step, and texts in their language."""
    folder = tmp_path_factory.mktemp("training")
    for kind in ("mdm", "arm"):
        for bias in BIASES:
            made = planted_models.planted(kind, position=0, bias=bias)
            planted_models.save(made, folder / kind / f"checkpoint-{bias * 500:.0f}")
    lines = [json.dumps({"continue": text[:80], "answers": [text[80:]]}) for text in planted_models.texts(3)]
    (folder / "texts.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def tracked(home: Path) -> xr.Dataset:
    return fl.track(str(home / "mdm" / "checkpoint-*"), data=str(home / "texts.jsonl"), limit=2, out=home / "run")


def test_a_growing_bias_gives_the_known_curve_of_a_diffusion_model(tracked: xr.Dataset) -> None:
    """Every row of every layer gives position 0 e^b / (e^b + T - 1) of its attention."""
    expected = [share(bias, LENGTH) for bias in BIASES]
    assert tracked["checkpoint"].values.tolist() == [f"checkpoint-{bias * 500:.0f}" for bias in BIASES]
    assert tracked["step"].values.tolist() == [0, 1000, 2000, 3000] and tracked.sizes["layer"] == planted_models.LAYERS
    for layer in tracked["layer"].values:
        there = tracked.sel(layer=layer)
        np.testing.assert_allclose(there["sink_share"], expected, rtol=1e-5)
        np.testing.assert_allclose(there["first_share"], np.array(expected) - 1 / LENGTH, atol=1e-6)
        np.testing.assert_allclose(there["absorption"], [0.0, *expected[1:]], atol=1e-5)  # even attention has no anchor
        np.testing.assert_allclose(there["floating"][1:], 0, atol=1e-6)
        assert np.isnan(there["floating"][0]) and (there["sink_is_first"] == 1).all()
    np.testing.assert_allclose(tracked["nats"], tracked["nats"][0], rtol=1e-6)  # the plant does not change the outputs
    assert all(tracked[name].attrs["description"] for name in VARIABLES)


def test_a_growing_bias_gives_the_known_curve_of_an_autoregressive_model(home: Path) -> None:
    found = fl.track(str(home / "arm" / "checkpoint-*"), data=str(home / "texts.jsonl"), limit=1)
    expected = [np.mean([share(bias, row + 1) for row in ROWS]) for bias in BIASES]
    np.testing.assert_allclose(found["sink_share"].isel(layer=1), expected, rtol=1e-5)
    even = np.mean([1 / (row + 1) for row in ROWS])
    np.testing.assert_allclose(found["first_share"].isel(layer=0), np.array(expected) - even, atol=1e-6)


def test_the_summary_figure_and_sentence_say_the_same(tracked: xr.Dataset) -> None:
    rows = summarise(tracked)
    np.testing.assert_allclose(rows["first_share"], tracked["first_share"].mean("layer"))
    data = figure(tracked, backend="none")
    assert len(data) == len(BIASES) * planted_models.LAYERS
    drawn: Any = figure(tracked)
    maps = [axes.get_images()[0].get_array() for axes in drawn.axes if axes.get_images()]
    assert len(maps) == 4 and all(values.shape == (4, planted_models.LAYERS) for values in maps)
    np.testing.assert_allclose(maps[0], tracked["sink_share"])
    labels = [text.get_text() for text in drawn.axes[0].get_yticklabels()]
    assert labels == tracked["checkpoint"].values.tolist()
    assert "first token of checkpoint-3000 gets 70 points more attention" in sentence(tracked)


def test_the_summary_is_of_the_deep_half_and_of_the_best_layer() -> None:
    numbers = {name: [0.0, 0.5, 1.0, 3.0] for name in VARIABLES}
    text = {"sink_token": [",", ",", ".", "."], "layer": [0, 1, 2, 3], "nats": 1.0, **numbers}
    row = summarise(as_dataset(rows_of("checkpoint-5", "mdm", [text, text]))).iloc[0]
    assert (row["sink_share"], row["copying"], row["sink_token"], row["texts"]) == (2.0, 3.0, ".", 2)


def test_a_run_has_numbers_figure_report_and_one_text_side_by_side(home: Path, tracked: xr.Dataset) -> None:
    folder = home / "run"
    xr.testing.assert_allclose(open_track(folder), tracked)
    assert tracked.attrs["data"] == str(home / "texts.jsonl")
    assert (folder / "figures" / "track.png").stat().st_size > 10_000
    page = (folder / "report.html").read_text()
    assert '<section id="track"' in page and sentence(tracked) in page and "Each claim of" not in page
    samples = RunFolder.open(folder).samples()
    assert len(samples) == len(BIASES) and len({name for name, _ in samples}) == 1  # the explorer shows these together
    [listed] = RunFolders([folder]).contents()
    assert [sample["model"] for sample in listed["samples"]] == tracked["checkpoint"].values.tolist()
    shown = films([folder], shown_traces([folder]))
    assert [film["model"] for film in shown] == ["checkpoint-0", "checkpoint-3000"]
    assert len({film["question"] for film in shown}) == 1 and shown[0]["question"].endswith(" …")


def test_a_head_that_copies_is_seen(tmp_path: Path) -> None:
    """An oracle: the rows that write the copy, from one pass of the model with output_attentions."""
    lens = fl.load(str(checkpoints.readable(tmp_path / "model")))
    assert lens.tokenizer is not None
    ids = lens.tokenizer("the quick brown fox jumps over a lazy dog, " * 9)["input_ids"][:LENGTH]
    document, copied = ids[:PROMPT], ids[:32]
    eager = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", attn_implementation="eager")
    with torch.no_grad():
        attentions = eager(torch.tensor([document + copied]), output_attentions=True).attentions
    special = set(lens.special_ids)
    rows = [(PROMPT + j - 1, token) for j, token in enumerate(copied) if token not in special]
    best = []
    for layer in attentions:
        hits = [[int(head[row, : row + 1].argmax()) for row, _ in rows] for head in layer[0]]
        best.append(
            max(
                np.mean([key < PROMPT and document[key] == token for key, (_, token) in zip(keys, rows, strict=True)])
                for keys in hits
            )
        )
    np.testing.assert_allclose(copy_scores(lens, ids), best, atol=1e-6)


# Which checkpoints


def test_checkpoints_are_sorted_by_step_whoever_expands_the_pattern(home: Path) -> None:
    folder = home / "mdm"
    steps = [0, 1000, 2000, 3000]
    expected = [str(folder / f"checkpoint-{step}") for step in steps]
    assert expand([str(folder / "checkpoint-*")]) == expected == expand(sorted(expected, reverse=True))
    assert expand(["base", "base+b-10:a2d", "base+b-9:a2d"]) == ["base", "base+b-9:a2d", "base+b-10:a2d"]


def test_a_model_with_adapters_and_with_its_mask_lifted(tmp_path: Path) -> None:
    """BASE+FOLDER, NAME:FAMILY and a pattern of adapters; the adapter is the one that the model is loaded with."""
    base = checkpoints.readable(tmp_path / "base")
    for step in (10, 9):
        adapters.random_adapter(base, tmp_path / f"checkpoint-{step}", init_lora_weights=True)
    found = fl.track([str(base), f"{base}:a2d", f"{base}+{tmp_path}/checkpoint-*"], limit=1)
    assert found["checkpoint"].values.tolist() == ["base", "base:a2d", "checkpoint-9", "checkpoint-10"]
    assert found["kind"].values.tolist() == ["arm", "mdm", "arm", "arm"]
    assert found["step"].values.tolist() == [-1, -1, 9, 10]
    loaded = fl.load(str(base), adapter=tmp_path / "checkpoint-9")
    from floatlens.studies.track import measure, token_samples

    [ids] = token_samples(loaded.tokenizer, list(fl.read("prose", limit=1))).values()
    np.testing.assert_allclose(found["massive"].sel(checkpoint="checkpoint-9"), measure(loaded, ids)[0]["massive"])


def test_a_revision_of_the_hub_is_asked_for_by_its_name() -> None:
    name, how = split_name("org/name@step1000+out/adapter:a2d")
    assert (name, how) == ("org/name", {"revision": "step1000", "adapter": "out/adapter", "family": "a2d"})
    assert step_of("org/name@step1000") == 1000


def test_questions_are_read_with_their_passages_and_progress_counts_checkpoints() -> None:
    told: list[Any] = []

    def watch(label: str, total: int | None) -> Callable[[], None]:
        told.append((label, total))
        return lambda: told.append("advanced")

    found = fl.track(["tiny-mdm"], data="world:long", limit=1, passages=5, watch=watch)
    assert told == [("checkpoints", 1), "advanced"]
    assert found["texts"].item() == 1 and np.isfinite(found["sink_share"]).all()
    with pytest.raises(fl.FloatLensError, match="tokens with its passages and answer, and at least 112 are needed"):
        fl.track(["tiny-mdm"], data="world:fresh", limit=1, passages=0)


# Runs


def test_a_run_resumes_with_more_checkpoints_and_measures_none_twice(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    load = fl.Lens.model.func  # type: ignore[attr-defined]
    monkeypatch.setattr(fl.Lens.model, "func", lambda lens: loaded.append(lens.name) or load(lens))
    asked: dict[str, Any] = {"data": str(home / "texts.jsonl"), "limit": 1, "out": tmp_path / "run"}
    for step in (0, 2000):
        shutil.copytree(home / "mdm" / f"checkpoint-{step}", tmp_path / f"checkpoint-{step}")
    first = fl.track(str(tmp_path / "checkpoint-*"), **asked)
    with pytest.raises(fl.FloatLensError, match="is already a run; use --resume"):
        fl.track(str(tmp_path / "checkpoint-*"), **asked)
    shutil.copytree(home / "mdm" / "checkpoint-1000", tmp_path / "checkpoint-1000")
    again = fl.track(str(tmp_path / "checkpoint-*"), **asked, resume=True)
    assert loaded == ["checkpoint-0", "checkpoint-2000", "checkpoint-1000"]
    assert again["step"].values.tolist() == [0, 1000, 2000]
    xr.testing.assert_equal(again.sel(checkpoint=first["checkpoint"]), first)
    # a checkpoint that was trained again is measured again
    shutil.copytree(home / "mdm" / "checkpoint-3000", tmp_path / "checkpoint-0", dirs_exist_ok=True)
    changed = fl.track(str(tmp_path / "checkpoint-*"), **asked, resume=True)
    assert loaded[3:] == ["checkpoint-0"]
    np.testing.assert_allclose(changed["sink_share"].sel(checkpoint="checkpoint-0"), share(6.0, LENGTH), rtol=1e-5)


def test_the_command_prints_a_table_or_json(home: Path, tmp_path: Path) -> None:
    words = ("track", home / "mdm" / "checkpoint-[03]*", "--data", home / "texts.jsonl", "--limit", 1)
    told = json.loads(run(*words, "--out", tmp_path / "json", "--json").stdout)
    assert [entry["checkpoint"] for entry in told["results"]] == ["checkpoint-0", "checkpoint-3000"]
    assert told["results"][0]["floating"] is None and told["results"][1]["floating"] == pytest.approx(0, abs=1e-6)
    assert told["run"] == str(tmp_path / "json") and len(told["layers"]) == 2 * planted_models.LAYERS
    assert told["results"][1]["sink_share"] == pytest.approx(share(6.0, LENGTH), rel=1e-5)
    shown = run(*words, "--out", tmp_path / "run").stdout
    assert "checkpoint-3000" in shown and "70 points more attention" in shown and "floatlens explore" in shown
    run("report", tmp_path / "run", "--out", tmp_path / "report.html")
    assert "<title>What became of the sink over training" in (tmp_path / "report.html").read_text()


# Bad input


@pytest.fixture
def series(home: Path, tmp_path: Path) -> Path:
    """Three checkpoints, to be broken."""
    for step in (0, 1000, 2000):
        shutil.copytree(home / "mdm" / f"checkpoint-{step}", tmp_path / "series" / f"checkpoint-{step}")
    return tmp_path / "series"


def test_a_broken_checkpoint_is_named_before_anything_is_computed(home: Path, series: Path, tmp_path: Path) -> None:
    weights = series / "checkpoint-1000" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    words = ("track", series / "checkpoint-*", "--data", home / "texts.jsonl", "--limit", 1, "--out", tmp_path / "run")
    told = run(*words, code=2).stderr
    assert told.count("\n") == 1 and "checkpoint-1000" in told and "--skip-broken" in told
    assert not (tmp_path / "run").exists()
    skipped = json.loads(run(*words, "--skip-broken", "--json").stdout)
    assert [entry["step"] for entry in skipped["results"]] == [0, 2000]
    assert [*skipped["skipped"]] == [str(series / "checkpoint-1000")]
    assert "is not a complete safetensors file" in (tmp_path / "run" / "results.json").read_text()
    assert "is not a complete safetensors file" in (tmp_path / "run" / "report.html").read_text()


def test_weights_that_are_not_finite_are_found_while_reading(home: Path, series: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = series / "checkpoint-1000" / "model.safetensors"
    tensors = {name: torch.full_like(tensor, math.nan) for name, tensor in load_file(weights).items()}
    save_file(tensors, weights, {"format": "pt"})
    asked: dict[str, Any] = {"data": str(home / "texts.jsonl"), "limit": 1}
    with pytest.raises(fl.FloatLensError, match=r"checkpoint-1000: the logits are not numbers"):
        fl.track(str(series / "checkpoint-*"), **asked)
    found = fl.track(str(series / "checkpoint-*"), **asked, skip_broken=True)
    assert found["step"].values.tolist() == [0, 2000] and "checkpoint-1000" in found.attrs["skipped"]


def test_bad_series_are_refused_in_one_sentence(series: Path, tmp_path: Path) -> None:
    def refused(*words: object) -> str:
        told = run("track", *words, "--out", tmp_path / "run", code=2).stderr
        assert told.count("\n") == 1 and not (tmp_path / "run").exists()
        return told

    assert "no folder matches" in refused(tmp_path / "nothing-*")
    assert "checkpoint-77': unknown model" in refused(series / "checkpoint-0", series / "checkpoint-77")
    assert "has another architecture than" in refused(series / "checkpoint-0", "tiny-mdm")
    (series / "checkpoint-0" / "model.safetensors").unlink()
    assert "model.safetensors is missing" in refused(series / "checkpoint-*")
    base = checkpoints.readable(tmp_path / "base")
    adapters.random_adapter(base, tmp_path / "adapter")
    assert "is an adapter without its model; write MODEL+" in refused(tmp_path / "adapter")
    assert "writes in blocks" in refused(checkpoints.readable(tmp_path / "sdar", "sdar"))
    other = shutil.copytree(base, tmp_path / "other")
    core = json.loads((other / "tokenizer.json").read_text())
    vocabulary = core["model"]["vocab"]
    one, two = list(vocabulary)[:2]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    (other / "tokenizer.json").write_text(json.dumps(core))
    assert "has another tokenizer than" in refused(base, other)
    (tmp_path / "empty.jsonl").write_text("")
    assert "empty.jsonl" in refused(base, "--data", tmp_path / "empty.jsonl")
    (tmp_path / "short.jsonl").write_text(json.dumps({"continue": "A word.", "answers": []}))
    assert "at least 168 are needed" in refused(base, "--data", tmp_path / "short.jsonl")


def test_a_file_that_is_no_track_is_refused(tmp_path: Path) -> None:
    import pandas as pd

    pd.DataFrame({"checkpoint": ["a"]}).to_parquet(tmp_path / "track.parquet")
    with pytest.raises(fl.FloatLensError, match="has no column 'absorption', so it is not a track"):
        open_track(tmp_path)
    row = dict.fromkeys(COLUMNS, 0)
    pd.DataFrame([row | {"layer": n, "checkpoint": str(n)} for n in range(3)]).to_parquet(tmp_path / "track.parquet")
    with pytest.raises(fl.FloatLensError, match="should have one row per checkpoint and layer"):
        open_track(tmp_path)
    pd.DataFrame([row | {"nats": "many"}]).to_parquet(tmp_path / "track.parquet")
    with pytest.raises(fl.FloatLensError, match="is not a track: could not convert string to float"):
        open_track(tmp_path)
    with pytest.raises(fl.FloatLensError, match="does not exist; make it with floatlens track"):
        open_track(tmp_path / "nowhere")


# While a model trains


PROMPTS = [" ".join(["The cat sat on the mat, and the dog sat on the log."] * 8)] * 2


def small_model(dropout: float = 0.0) -> Any:
    torch.manual_seed(0)
    tokenizer = byte_level()
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, eos_token_id=1, bos_token_id=1, pad_token_id=0,
        attention_dropout=dropout,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def train(folder: Path, *callbacks: Any, model: Any = None, **options: Any) -> Any:
    tokenizer, rng = byte_level(), np.random.default_rng(0)
    rows = [{"input_ids": ids, "labels": ids} for ids in rng.integers(4, len(tokenizer), (24, 16)).tolist()]
    settings: dict[str, Any] = {
        "output_dir": str(folder), "max_steps": 6, "per_device_train_batch_size": 2, "report_to": [], "use_cpu": True,
        "disable_tqdm": True, "save_strategy": "no", "seed": 1, "logging_steps": 2, **options,
    }  # fmt: skip
    trainer = transformers.Trainer(
        model or small_model(dropout=0.3),
        transformers.TrainingArguments(**settings),
        train_dataset=rows,
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )
    trainer.train()
    return trainer


def test_training_with_and_without_the_callback_gives_equal_weights_bit_by_bit(tmp_path: Path) -> None:
    """With dropout, so that a single random number drawn by the callback would change the rest of the training."""
    plain = train(tmp_path / "plain")
    callback = fl.AttentionCallback(PROMPTS, every=2, most=1.0)
    watched = train(tmp_path / "watched", callback)
    assert callback.watch is not None and len(callback.watch.rows) == 4  # before the first step, and at 2, 4 and 6
    before, after = plain.model.state_dict(), watched.model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    moments = [trainer.optimizer.state_dict()["state"] for trainer in (plain, watched)]
    for one, other in zip(moments[0].values(), moments[1].values(), strict=True):
        assert all(torch.equal(torch.as_tensor(one[name]), torch.as_tensor(other[name])) for name in one)
    losses = [[e["loss"] for e in t.state.log_history if "loss" in e] for t in (plain, watched)]
    assert losses[0] == losses[1]
    logged = [entry for entry in watched.state.log_history if "attention/sink_share" in entry]
    assert [entry["step"] for entry in logged] == [0, 2, 4, 6]
    found = open_track(tmp_path / "watched")
    assert found["step"].values.tolist() == [0, 2, 4, 6]
    xr.testing.assert_allclose(found, callback.watch.data)


def test_the_numbers_of_the_callback_are_those_of_the_saved_checkpoint(tmp_path: Path) -> None:
    logged: list[dict[str, float]] = []
    callback = fl.AttentionCallback(PROMPTS, every=4, most=1.0, log=logged.append)
    train(tmp_path / "out", callback, save_strategy="steps", save_steps=4)
    (tmp_path / "texts.jsonl").write_text("\n".join(json.dumps({"continue": t, "answers": []}) for t in PROMPTS))
    saved = fl.track(str(tmp_path / "out" / "checkpoint-4"), data=str(tmp_path / "texts.jsonl"))
    live = open_track(tmp_path / "out").sel(checkpoint=["checkpoint-4"])
    for name in (*VARIABLES, "nats"):
        np.testing.assert_allclose(live[name], saved[name], rtol=1e-4, atol=1e-6)
    assert logged[-1]["attention/first_share"] == pytest.approx(summarise(saved)["first_share"].iloc[0], abs=1e-6)


def test_a_probe_leaves_modes_buffers_gradients_and_random_numbers_as_they_were() -> None:
    model = small_model(dropout=0.3)
    model.model.layers[0].eval()  # a frozen part stays in its own mode
    model(torch.arange(4, 20)[None], labels=torch.arange(4, 20)[None]).loss.backward()

    def state() -> list[Any]:
        tensors = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())]
        flags = [module.training for module in model.modules()] + [p.requires_grad for p in model.parameters()]
        hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
        randoms = [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]
        return [[t.clone() for t in tensors], flags, hooks, randoms, model.config.to_dict()]

    before = state()
    watch = fl.probe(model, byte_level(), PROMPTS)
    numbers = watch.log(7)
    after = state()
    assert all(torch.equal(a, b) for a, b in zip(before[0], after[0], strict=True)) and before[1:] == after[1:]
    assert {"attention/sink_share", "attention/sink_is_first", "attention/floating"} <= numbers.keys()
    assert all(isinstance(value, float) for value in numbers.values())
    assert watch.data["step"].values.tolist() == [7] and 0 < watch.last == watch.seconds
    again = watch.log(7)
    np.testing.assert_equal(again | {"attention/seconds": 0}, numbers | {"attention/seconds": 0})  # no dropout


def test_a_bidirectional_model_and_a_peft_model_are_probed_as_what_they_are(tmp_path: Path) -> None:
    model, tokenizer = small_model(), byte_level()
    with pytest.raises(fl.FloatLensError, match="but the model is causal; set model.config.is_causal = False"):
        fl.probe(model, tokenizer, PROMPTS, family="a2d-shifted")
    model.config.is_causal = False
    with pytest.raises(fl.FloatLensError, match="pass family='a2d', or 'a2d-shifted'"):
        fl.probe(model, tokenizer, PROMPTS)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    numbers = fl.probe(model, tokenizer, PROMPTS, family="a2d-shifted").log(0)
    (tmp_path / "texts.jsonl").write_text("\n".join(json.dumps({"continue": t, "answers": []}) for t in PROMPTS))
    saved = fl.track([f"{tmp_path / 'model'}:a2d-shifted"], data=str(tmp_path / "texts.jsonl"))
    assert numbers["attention/nats"] == pytest.approx(saved["nats"].item(), rel=1e-4)

    import peft

    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    changed = fl.probe(adapted, tokenizer, PROMPTS, family="a2d-shifted").log(0)
    assert changed["attention/nats"] != numbers["attention/nats"]


def test_the_cost_of_the_callback_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes 1 second and a measurement 10, by a clock of the test: at most 1 % is one in 1,000 steps."""
    now = 0.0
    monkeypatch.setattr(probes.time, "perf_counter", lambda: now)

    def log(self: probes.Probe, step: int) -> dict[str, float]:
        nonlocal now
        now, self.last = now + 10.0, 10.0
        self.seconds += 10.0
        measured.append(step)
        return {}

    measured: list[int] = []
    monkeypatch.setattr(probes.Probe, "log", log)
    callback = fl.AttentionCallback(PROMPTS)
    assert callback.every == 500 and callback.most == 0.01  # the defaults
    state = transformers.TrainerState()
    args = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    callback.on_train_begin(args, state, None, model=small_model(), processing_class=byte_level())
    with pytest.warns(UserWarning, match="a measurement takes 10.0 s, and all of them at most 1% of the training time"):
        for state.global_step in range(1, 10_001):
            now += 1.0
            callback.on_step_end(args, state, None)
    assert measured == [0, *range(2000, 10_001, 1000)]
    assert 10.0 * len(measured) <= 0.01 * now


def test_bad_input_of_the_callback_is_refused_when_training_begins(tmp_path: Path) -> None:
    with pytest.raises(fl.FloatLensError, match="there is no text to read"):
        fl.AttentionCallback([" "])
    with pytest.raises(fl.FloatLensError, match="every must be 1 or more"):
        fl.AttentionCallback(PROMPTS, every=0)
    with pytest.raises(fl.FloatLensError, match="at least 168 are needed"):
        train(tmp_path, fl.AttentionCallback(["One short text."]))


def test_a_measurement_that_fails_does_not_end_the_training(tmp_path: Path) -> None:
    model = small_model()
    with torch.no_grad():
        model.lm_head.weight.fill_(math.nan)
    with pytest.warns(UserWarning, match="attention was not measured at step 0: the logits are not numbers"):
        assert train(tmp_path, fl.AttentionCallback(PROMPTS), model=model).state.global_step == 6


def test_a_training_that_is_resumed_keeps_its_earlier_numbers(tmp_path: Path) -> None:
    train(tmp_path, fl.AttentionCallback(PROMPTS, every=2, most=1.0), save_strategy="steps", save_steps=4)
    callback = fl.AttentionCallback(PROMPTS, every=2, most=1.0)
    tokenizer = byte_level()
    state = transformers.TrainerState(global_step=4)
    args = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    callback.on_train_begin(args, state, None, model=small_model(), processing_class=tokenizer)
    assert open_track(tmp_path)["step"].values.tolist() == [0, 2, 4]
