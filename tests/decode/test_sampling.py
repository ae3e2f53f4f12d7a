"""Seeds, batches and end tokens: runs are repeatable, a batch equals its rows, and an answer stops at its end."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import floatlens
from floatlens.attention.prompt_batch import PromptBatch
from floatlens.decode.network import Passes
from floatlens.lens import Generation
from tests.models import checkpoints

PROMPTS = [[1, 5, 9, 13, 17, 21, 25, 29], [1, 8, 3, 40], [7, 7, 50, 2, 19, 33]]
SETTINGS = {
    "llada": [{}, {"temperature": 0.8}, {"remasking": "random"}, {"block_length": 4, "steps": 4, "cfg_scale": 1.5}],
    "dream": [
        {},
        {"alg": "origin"},
        {"temperature": 0.7, "top_p": 0.9},
        {"alg": "topk_margin", "alg_temp": 0.5, "top_k": 20},
    ],
    "causal": [{}, {"temperature": 0.9, "top_k": 12}, {"temperature": 0.9, "top_p": 0.8}],
}
CASES = [(family, settings) for family, all_settings in SETTINGS.items() for settings in all_settings]


@pytest.fixture(scope="module")
def lenses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, floatlens.Lens]:
    folder = tmp_path_factory.mktemp("models")
    made = {
        "llada": checkpoints.llada(folder / "llada"),
        "dream": checkpoints.dream(folder / "dream"),
        "causal": checkpoints.native(folder / "llama", "llama"),
    }
    return {name: floatlens.load(str(path), dtype="float32") for name, path in made.items()}


@pytest.mark.parametrize(("family", "settings"), CASES)
def test_a_batch_writes_what_its_rows_write_alone(
    lenses: dict[str, floatlens.Lens], family: str, settings: dict
) -> None:
    lens = lenses[family]
    together = lens.generate(PROMPTS, max_new_tokens=8, seed=3, sampler=settings)
    alone = [lens.generate([ids], max_new_tokens=8, seed=3, sampler=settings)[0] for ids in PROMPTS]
    assert [g.ids for g in together] == [g.ids for g in alone]
    assert [g.steps for g in together] == [g.steps for g in alone]
    for a, b in zip(together, alone, strict=True):
        assert a.confidence == pytest.approx(b.confidence, abs=1e-4, nan_ok=True)


@pytest.mark.parametrize(("family", "settings"), [case for case in CASES if case[1]])
def test_a_seed_repeats_a_run_and_another_does_not(
    lenses: dict[str, floatlens.Lens], family: str, settings: dict
) -> None:
    lens = lenses[family]
    first, again = (lens.generate(PROMPTS, max_new_tokens=8, seed=5, sampler=settings) for _ in range(2))
    assert first == again or str(first) == str(again)
    if settings.get("temperature") or settings.get("alg") == "origin":
        others = [lens.generate(PROMPTS, max_new_tokens=8, seed=s, sampler=settings) for s in range(6, 10)]
        assert any([g.ids for g in other] != [g.ids for g in first] for other in others)


def test_greedy_decoding_equals_that_of_transformers(lenses: dict[str, floatlens.Lens]) -> None:
    lens = lenses["causal"]
    for ids in PROMPTS:
        wanted = lens.model.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False)[0, len(ids) :].tolist()
        wanted = wanted[: wanted.index(2)] if 2 in wanted else wanted
        assert lens.generate([ids], max_new_tokens=8)[0].ids == wanted


def test_each_diffusion_step_is_one_forward_pass(
    lenses: dict[str, floatlens.Lens], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    whole = Passes.logits
    monkeypatch.setattr(Passes, "logits", lambda self, ids, *rest: calls.append(ids.shape) or whole(self, ids, *rest))
    lenses["llada"].trace(PROMPTS[0], max_new_tokens=8, steps=4)
    assert calls == [(1, 16)] * 4


def test_every_position_is_committed_once_all_steps_are_done(lenses: dict[str, floatlens.Lens]) -> None:
    for family in ("llada", "dream"):
        lens = lenses[family]
        settings = lens.settings(max_new_tokens=8, steps=3)
        batch = PromptBatch.of(lens._prompts(PROMPTS), lens.pad_id, torch.device("cpu"))
        steps = list(lens.steps(batch, settings))
        committed = torch.stack([step.committed_BT for step in steps]).sum(0)
        assert (committed[:, 8:] >= 1).all() and not committed[:, :8].any()
        for before, after in pairwise(steps):
            assert before.after_BT.equal(after.tokens_BT)


def test_an_answer_is_cut_at_its_end(tmp_path: Path) -> None:
    lens = floatlens.load(str(checkpoints.llada(tmp_path)))
    made = Generation.of(lens, [9, 11, 2, 2, 2], np.array([0.5, 0.7, 0.9, 0.1, 0.1]), 5)
    assert made.ids == [9, 11] and made.ended and made.confidence == pytest.approx(0.7)
    open_end = Generation.of(lens, [9, 11], np.array([0.5, 0.7]), 5)
    assert open_end.ids == [9, 11] and not open_end.ended


def test_token_ids_outside_the_vocabulary_are_refused(lenses: dict[str, floatlens.Lens]) -> None:
    with pytest.raises(floatlens.FloatLensError, match="token id 64 is outside"):
        lenses["llada"].generate([[1, 64]], max_new_tokens=4)
