"""A model that writes both ways is loaded by mode, and a study compares it with itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import floatlens as fl
from floatlens.models.checkpoint import find
from floatlens.options import Load
from floatlens.store.manifest import describe_model
from floatlens.store.runs import model_runs
from tests import golden_modes
from tests.commands import run
from tests.small_tokenizers import unigram

NAME = str(golden_modes.MODES / "models" / "nld_few")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A golden model with a tokenizer, which the published one has too."""
    shutil.copytree(NAME, tmp_path / "nemotron")
    unigram().save_pretrained(tmp_path / "nemotron")
    return str(tmp_path / "nemotron")


def test_the_mode_chooses_the_family() -> None:
    ids = golden_modes.SPECIAL["prompts"][0]
    for mode, family in (("arm", "nemotron-arm"), ("mdm", "nemotron")):
        expected = golden_modes.lens("nld_few", family).generate([ids], max_new_tokens=32)[0].ids
        for lens in (fl.load(NAME, mode=mode, dtype="float32"), fl.load(f"{NAME}:{mode}", dtype="float32")):
            assert (lens.family.name, lens.family.kind, lens.options.mode) == (family, mode, mode)
            assert lens.generate([ids], max_new_tokens=32)[0].ids == expected


def test_a_mode_that_a_model_does_not_have_is_refused_in_one_sentence() -> None:
    with pytest.raises(fl.FloatLensError) as raised:
        fl.load("tiny-mdm", mode="arm")
    assert str(raised.value) == "model 'tiny-mdm' has no mode 'arm': a llada model is always 'mdm'"
    assert "model 'tiny-arm' has no mode 'mdm'" in run("models", "tiny-arm:mdm", code=2).stderr
    with pytest.raises(fl.FloatLensError, match="unknown mode 'amr'; use one of arm, mdm"):
        fl.load(NAME, mode="amr")
    with pytest.raises(fl.FloatLensError, match="names its mode, which is not 'mdm'; leave one out"):
        fl.load(f"{NAME}:arm", mode="mdm")
    assert find("tiny-mdm:mdm", Load()).family.name == "llada"


def test_a_study_compares_a_model_with_itself(folder: str, tmp_path: Path) -> None:
    models = [f"{folder}:arm", f"{folder}:mdm"]
    options = ["--only", "absorption", "--limit", "2", "--max-new-tokens", "8", "--setting", "short"]
    run("study", *models, "--data", "world:fresh", *options, "--out", str(tmp_path / "s"))
    traces = [fl.Trace.open(path) for one in model_runs(tmp_path / "s") for _, path in one.samples()]
    assert {(trace.model, trace.data.attrs["family"]) for trace in traces} == {
        (models[0], "nemotron-arm"),
        (models[1], "nemotron"),
    }
    same = [describe_model(find(model, Load())) for model in models]
    assert same[0]["files"] == same[1]["files"] and same[0]["family"] != same[1]["family"]


def test_the_manifest_records_the_mode(folder: str, tmp_path: Path) -> None:
    run("trace", f"{folder}:arm", "--prompt", "Where?", "--max-new-tokens", "2", "--out", str(tmp_path / "t"))
    [home] = model_runs(tmp_path / "t")
    assert home.manifest["asked"]["models"] == [f"{folder}:arm"]
    [(_, path)] = home.samples()
    assert fl.Trace.open(path).family == "nemotron-arm"
