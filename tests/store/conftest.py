"""A small random model, questions for it, and undisturbed runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from floatlens.store.folder import RunFolder
from floatlens.store.runs import all_runs
from tests.models.checkpoints import readable
from tests.store.fork_server import ForkServer

QUESTIONS, TRACED = 14, 8
Words = dict[str, tuple[object, ...]]


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
def fork_server() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.close()


@pytest.fixture(scope="session")
def words(model: Path, data: Path) -> Words:
    """The command lines of the runs, without --out."""
    common = (model, "--data", data, "--max-new-tokens", 4, "--batch-size", 2)
    masked = ("--intervention", "mask-anchors(rule=top({n})) @ 1,2", "--controls", 0)
    return {
        "eval": ("eval", *common, "--both"),
        "trace": ("trace", *common, "--limit", TRACED),
        "ablate": ("ablate", *common, "--limit", 5, *masked),
        "study": ("study", *common, "--limit", 4, "--only", "drift,knowledge,causes", "--jobs", 1),
    }


class Undisturbed:
    """Run folders of commands that nothing disturbed, made when they are first asked for."""

    def __init__(self, fork_server: ForkServer, words: Words, folder: Path) -> None:
        self.fork_server, self.words, self.folder = fork_server, words, folder

    def __getitem__(self, command: str) -> Path:
        out = self.folder / command
        if not out.exists():
            code = self.fork_server.run(*self.words[command], "--out", out, errors=self.errors(command))
            assert code == 0, self.errors(command).read_text()
        return out

    def errors(self, command: str) -> Path:
        """What the command said on standard error."""
        return self.folder / f"{command}.err"


@pytest.fixture(scope="session")
def undisturbed(fork_server: ForkServer, words: Words, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(fork_server, words, tmp_path_factory.mktemp("undisturbed"))


def assert_same(made: Path, whole: Path) -> None:
    """Every result is there once, and is bit for bit the one of the undisturbed run, in all runs that a study holds."""
    ours, theirs = (all_runs(RunFolder.open(path)) for path in (made, whole))
    assert [run.path.relative_to(made) for run in ours] == [run.path.relative_to(whole) for run in theirs]
    for run, other in zip(ours, theirs, strict=True):
        assert [result.to_bytes() for result in run.results()] == [result.to_bytes() for result in other.results()]
        assert run.storage.names("samples") == other.storage.names("samples")
        if (other.path / "answers.parquet").exists():
            tables = [pd.read_parquet(folder.path / "answers.parquet") for folder in (run, other)]
            pd.testing.assert_frame_equal(*tables, check_exact=True)
    assert not list(made.rglob("lock")) and not list(made.rglob(".*"))
    if (whole / "claims.json").exists():
        assert (made / "claims.json").read_bytes() == (whole / "claims.json").read_bytes()
