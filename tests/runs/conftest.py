"""A small random model, questions for it, and runs of them that nothing disturbed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models.checkpoints import readable
from tests.runs.nursery import Nursery

QUESTIONS, TRACED = 14, 8


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random autoregressive checkpoint with a byte-level tokenizer."""
    return readable(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "towns.jsonl"
    rows = [
        {
            "id": f"../q{i}",
            "question": f"Where does {'Ada ' * (i % 5)}Tarn live?",
            "answers": [f"Molen {i}"],
            "passages": [f"Tarn lives in Rusk {i}.", f"Tarn lives in Molen {i}."],
            "gold": 1,
        }
        for i in range(QUESTIONS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.fixture(scope="session")
def words(model: Path, data: Path) -> dict[str, tuple[object, ...]]:
    """The command lines of the runs, without --out."""
    common = (model, "--data", data, "--max-new-tokens", 4, "--batch-size", 2)
    return {"eval": ("eval", *common, "--both"), "trace": ("trace", *common, "--limit", TRACED)}


@pytest.fixture(scope="session")
def undisturbed(
    nursery: Nursery, words: dict[str, tuple[object, ...]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Run folders of commands that nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    for name, line in words.items():
        code = nursery.run(*line, "--out", folder / name, errors=folder / f"{name}.err")
        assert code == 0, (folder / f"{name}.err").read_text()
    return {name: folder / name for name in words}
