"""A prompt is answered once with the same settings, as the plan decides, and every question has its row."""

from __future__ import annotations

from pathlib import Path

import pytest

import floatlens as fl
from floatlens.data.read import read
from floatlens.data.sample import Sample
from floatlens.evaluation.answers import AnswerRecord
from floatlens.evaluation.loop import Experiment, FirstAsked, ModelWorker, run_experiments
from floatlens.evaluation.sources import OPEN
from floatlens.lens import Lens
from floatlens.options import Sampling
from floatlens.store.folder import RunFolder

FOUR = Sampling(max_new_tokens=4)


@pytest.fixture(scope="module")
def lens() -> Lens:
    return fl.load("tiny-arm")


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    return list(read("world:fresh", limit=6, passages=2))


class Asked:
    """Asks with one lens, and counts the prompts that reach it."""

    def __init__(self, lens: Lens, monkeypatch: pytest.MonkeyPatch, run: Path) -> None:
        self.worker, self.prompts, self.first = ModelWorker(lambda name: lens), 0, FirstAsked()
        self.folder = RunFolder.create(run, {"command": "study"})
        whole = Lens.generate

        def generate(lens: Lens, prompts: list[object], **settings: object) -> object:
            self.prompts += len(prompts)
            return whole(lens, prompts, **settings)  # type: ignore[call-overload]

        monkeypatch.setattr(Lens, "generate", generate)

    def __call__(self, *jobs: Experiment) -> list[AnswerRecord]:
        return run_experiments(jobs, self.worker, self.folder, first=self.first)[0]


def task(samples: list[Sample], condition: str = OPEN, sampling: Sampling = FOUR) -> Experiment:
    return Experiment("tiny-arm", "fresh", condition, samples, sampling, batch_size=3)


def test_only_new_prompts_reach_the_model(
    lens: Lens, samples: list[Sample], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ask = Asked(lens, monkeypatch, tmp_path / "run")
    first = {row.id: row for row in ask(task(samples[:4]))}
    again = ask(task(samples, "stress=0"), task(samples, "stress=1"), task(samples[:4]))
    assert ask.prompts == 6 and len(again) == 16
    for row in again:
        one = first.get(row.id)
        assert row.condition in ("stress=0", "stress=1", OPEN) and row.error is None
        if one is not None:
            assert (row.answer, row.confidence, row.f1, row.steps) == (one.answer, one.confidence, one.f1, one.steps)


def test_other_settings_are_another_answer(
    lens: Lens, samples: list[Sample], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ask = Asked(lens, monkeypatch, tmp_path / "run")
    ask(task(samples[:2]), task(samples[:2], "masks=5", Sampling(max_new_tokens=5)))
    assert ask.prompts == 4


def test_the_reason_of_a_failure_is_shared_and_lost_work_is_not(
    lens: Lens, samples: list[Sample], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ask = Asked(lens, monkeypatch, tmp_path / "run")
    whole, broken = Lens.generate, True

    def generate(lens: Lens, prompts: list[object], **settings: object) -> object:
        if broken:
            raise error
        return whole(lens, prompts, **settings)  # type: ignore[call-overload]

    monkeypatch.setattr(Lens, "generate", generate)
    error: Exception = KeyError("a bug that stops the part")
    with pytest.raises(KeyError):
        ask(task(samples[:2]))
    error = RuntimeError("the device is gone")
    rows = ask(task(samples[:2]), task(samples[:2], "stress=0"))
    assert [row.error for row in rows] == ["the device is gone"] * 4
    broken = False
    [row] = ask(task(samples[2:3], "stress=0"))
    assert row.error is None
