"""Runs that are compared, and NaN in a model's outputs."""

from __future__ import annotations

import io
import json
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import floatlens
from floatlens.cli import main
from floatlens.errors import NotANumber
from floatlens.lens import Lens
from floatlens.store.folder import Result, RunFolder
from floatlens.store.runs import all_runs
from tests.store.conftest import TRACED, Undisturbed, Words


def run(*words: object, code: int = 0) -> str:
    """What the program prints."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        found = main.run([str(word) for word in words])
    assert found == code, out.getvalue() + err.getvalue()
    return out.getvalue()


# --- what differs ------------------------------------------------------------------------------------------


def replace_value(run: RunFolder, result: Result, value: dict[str, Any]) -> None:
    run.storage.write(result.file, Result(result.key, value, result.trees).to_bytes())


def test_the_recorded_command_gives_the_same_results_again(words: Words, tmp_path: Path) -> None:
    run(*words["eval"], "--out", tmp_path / "first")
    recorded = json.loads((tmp_path / "first" / "manifest.json").read_text())["arguments"]
    run(*recorded, "--out", tmp_path / "again")
    assert "all 28 the same" in run("diff", tmp_path / "first", tmp_path / "again")
    tables = [pd.read_parquet(tmp_path / name / "answers.parquet") for name in ("first", "again")]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    assert json.loads(run("diff", tmp_path / "first", tmp_path / "again", "--json"))["settings"] == []


@pytest.mark.parametrize("command", ["ablate", "study"])
def test_interventions_and_studies_are_compared_too(
    words: Words, undisturbed: Undisturbed, tmp_path: Path, command: str
) -> None:
    whole = undisturbed[command]
    total = sum(len(inside.results()) for inside in all_runs(RunFolder.open(whole)))
    shutil.copytree(whole, tmp_path / "again")
    assert f"all {total} the same" in run("diff", whole, tmp_path / "again")
    changed = all_runs(RunFolder.open(tmp_path / "again"))[-1]
    one, *_ = changed.results()
    replace_value(changed, one, {**one.value, "answer": "a bit that flipped"})
    found = json.loads(run("diff", whole, tmp_path / "again", "--json", code=1))
    assert [each["key"] for each in found["changed"]] == [list(one.key)] and found["same"] == total - 1
    assert found["settings"] == []


def test_a_difference_is_shown_in_settings_and_in_results(
    words: Words, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    shutil.copytree(undisturbed["trace"], tmp_path / "other")
    manifest = json.loads((tmp_path / "other" / "manifest.json").read_text())
    manifest["asked"]["seed"] = 7
    (tmp_path / "other" / "manifest.json").write_text(json.dumps(manifest))
    other = RunFolder.open(tmp_path / "other")
    one, two, *_ = other.results()
    replace_value(other, one, {**one.value, "error": "cosmic ray"})
    other.storage.remove(two.file)
    found = json.loads(run("diff", undisturbed["trace"], tmp_path / "other", "--json", code=1))
    assert found["settings"] == ["asked.seed: null, now 7"] and found["same"] == TRACED - 2
    assert found["changed"] == [{"key": list(one.key), "fields": ['error: null, now "cosmic ray"']}]
    assert found["only_first"] == [list(two.key)] and found["only_second"] == []
    assert "only in the first: 1" in run("diff", undisturbed["trace"], tmp_path / "other", code=1)


# --- numbers that run away --------------------------------------------------------------------------------------------


def poison(lens: Lens, layer: int, token: int) -> Any:
    """Make a layer's output NaN wherever a sequence holds the token."""
    seen: dict[str, torch.Tensor] = {}

    def note(_: Any, args: Any, kwargs: Any) -> None:
        seen["ids"] = kwargs["input_ids"]

    def harm(_: Any, __: Any, output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output
        bad = (seen["ids"] == token).any(1)
        hidden = hidden.masked_fill(bad[:, None, None], torch.nan)
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    lens.model.register_forward_pre_hook(note, with_kwargs=True)
    return lens.model.model.layers[layer].register_forward_hook(harm)


@pytest.mark.parametrize("name", ["tiny-mdm", "tiny-dream"])
def test_logits_that_are_no_numbers_are_reported_with_their_step(name: str) -> None:
    lens = floatlens.load(name)
    good, bad = lens.prompt("Where does Ada live?"), lens.prompt("Where does Zoë live?")
    [token, *_] = set(bad.ids) - set(good.ids)
    poison(lens, 2, token)
    assert lens.generate([good], max_new_tokens=4)[0].steps == 4
    said = "the logits are not numbers at step [01]"  # Dream commits nothing at its first step
    for prompts in ([bad], [good, bad]):
        with pytest.raises(NotANumber, match=said):
            lens.generate(prompts, max_new_tokens=4)
    for prompts in ([bad], [good, bad]):  # by the logits, or before them by the attention of the layer after it
        with pytest.raises(NotANumber, match="at step [01]"):
            lens.traces(prompts, max_new_tokens=4)


def test_a_sample_whose_numbers_run_away_is_an_error_of_its_own(
    words: Words, undisturbed: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Lens.traces

    def runs_away(self: Lens, prompts: Any, *, sample_ids: Any, **options: Any) -> Any:
        if "../q3" in sample_ids:
            raise NotANumber("the logits are not numbers at step 2; try --dtype float32")
        return real(self, prompts, sample_ids=sample_ids, **options)

    monkeypatch.setattr(Lens, "traces", runs_away)
    found = json.loads(run(*words["trace"], "--json", "--out", tmp_path / "run"))
    assert found["results"][0]["n"] == TRACED - 1 and found["results"][0]["errors"] == 1
    [error] = RunFolder.open(tmp_path / "run").errors()
    assert error["sample"] == "../q3" and "at step 2" in error["reason"]
    monkeypatch.setattr(Lens, "traces", real)
    run(*words["trace"], "--out", tmp_path / "run", "--resume")
    assert RunFolder.open(tmp_path / "run").errors() == []
    ours, theirs = (RunFolder.open(p).results() for p in (tmp_path / "run", undisturbed["trace"]))
    assert [r.trees for r in ours if r.key[1] == "../q3"] == [r.trees for r in theirs if r.key[1] == "../q3"]


def test_memory_that_runs_out_while_tracing_halves_the_batch(
    words: Words, undisturbed: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, sizes = Lens.traces, []

    def small(self: Lens, prompts: Any, **options: Any) -> Any:
        sizes.append(len(prompts))
        if len(prompts) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, prompts, **options)

    monkeypatch.setattr(Lens, "traces", small)
    found = json.loads(run(*words["trace"], "--json", "--out", tmp_path / "run"))
    assert found["results"][0]["n"] == TRACED and sizes == [2] + [1] * TRACED
