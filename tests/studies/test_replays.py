"""A study replays the answers of its masked diffusion models with one thing changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import floatlens as fl
from floatlens.findings.drift import OTHER_TASK, OTHER_WORDS, UNTRAINED, drift
from floatlens.findings.finding import traces_for
from floatlens.options import Load
from floatlens.store.folder import RunFolder
from floatlens.store.runs import REPLAYS, model_runs
from floatlens.studies.parts import INSTRUCTIONS, is_replayed

MODELS = ["tiny-mdm", "tiny-arm"]


def test_a_study_replays_answers_through_the_untrained_network_and_under_other_instructions(tmp_path: Path) -> None:
    given = {"data": "world:long", "only": ["drift"], "sizes": {"short": 2, "texts": 4}, "max_new_tokens": 6}
    found = fl.study(MODELS, out=tmp_path / "s", **given)  # type: ignore[operator]
    assert not found.failed
    runs = {str(run.manifest["asked"]["model"]): run for run in model_runs(found.path)}
    assert not (runs["tiny-arm"].path / REPLAYS).exists()
    own = {name.rsplit(", ", 1)[1]: fl.Trace.open(path) for name, path in runs["tiny-mdm"].samples()}
    replays = {name: fl.Trace.open(p) for name, p in RunFolder.open(runs["tiny-mdm"].path / REPLAYS).samples()}
    variants = [name.rsplit(", ", 2)[1] for name in replays]
    assert sorted(variants) == sorted([UNTRAINED, OTHER_WORDS, OTHER_TASK] * 2)
    for name, trace in replays.items():
        _, variant, number = name.rsplit(", ", 2)
        assert trace.written == own[number].written and trace.order == own[number].order
        same_prompt = (
            trace.final_tokens[: trace.prompt_length].tolist()
            == own[number].final_tokens[: own[number].prompt_length].tolist()
        )
        assert same_prompt == (variant == UNTRAINED)
        if variant != UNTRAINED:
            assert INSTRUCTIONS[variant].split("\n")[0] in trace.data.attrs["prompt"]
        else:
            assert not np.allclose(trace.data["received"], own[number].data["received"], atol=1e-3)
    folders = [RunFolder.open(run.path) for run in runs.values()]
    measured = drift.measure(traces_for(drift, folders))
    mdm = measured["model"].values == "tiny-mdm"
    for name in ("floating_untrained", "beyond_nulls", "instruction"):
        assert np.isfinite(measured[name].values[mdm]).any() and np.isnan(measured[name].values[~mdm]).all(), name
    assert set(measured["window_model"].values) == set(MODELS)  # the prose that `drift.moves` compares


def test_a_replay_that_failed_is_tried_again_by_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"data": "world:long", "only": ["drift"], "sizes": {"short": 1}, "max_new_tokens": 4}
    traces = fl.Lens.traces

    def fail(lens: fl.Lens, prompts: Any, **options: Any) -> Any:
        if any(f", {variant}, " in str(options.get("sample_ids")) for variant in (UNTRAINED, OTHER_WORDS, OTHER_TASK)):
            raise RuntimeError("the device is gone")
        return traces(lens, prompts, **options)

    with monkeypatch.context() as broken:
        broken.setattr(fl.Lens, "traces", fail)
        found = fl.study("tiny-mdm", out=tmp_path / "s", **given)
    [home] = model_runs(found.path)
    assert not found.failed and len(RunFolder.open(home.path / REPLAYS).errors()) == 3
    fl.study("tiny-mdm", out=tmp_path / "s", resume=True, **given)
    replays = RunFolder.open(home.path / REPLAYS)
    assert not replays.errors() and len(replays.samples()) == 3


def test_only_masked_diffusion_models_are_replayed() -> None:
    models = ("tiny-mdm", "tiny-dream", "tiny-arm")
    assert [name for name in models if is_replayed(fl.Lens.find(name, Load()))] == ["tiny-mdm", "tiny-dream"]


def test_an_untrained_model_has_other_weights_which_are_the_same_every_time() -> None:
    for name in ("tiny-mdm", "tiny-ssm"):
        trained, first, second = (fl.load(name, untrained=untrained).model for untrained in (False, True, True))
        assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
        pairs = zip(trained.parameters(), first.parameters(), strict=True)
        assert not any(torch.equal(a, b) for a, b in pairs if a.dim() > 1)
