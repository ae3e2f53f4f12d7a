"""A run changes no file that FloatLens did not create, wherever --out leads."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from floatlens.store.folder import RunFolder
from floatlens.store.lock import machine_id
from tests.commands import run

FOLDERS = {
    "a git checkout": [".git/HEAD", ".git/objects/ab/cdef", ".gitignore", ".env"],
    "a home": [".bashrc", ".ssh/id_ed25519", ".config/app/settings", ".partial-notes", ".lock.swp"],
    "a folder": ["thesis.tex", "figures/one.pdf"],
    "somebody's samples": ["samples/drum.wav", "samples/.drum.wav.asd"],
    "somebody's lock": ["lock"],
    "somebody's other lock": ["lock.kernel"],
    "files like those of a killed run": [".floatlens-notes", ".floatlens.toml"],
}
COMMANDS = {
    "trace": ["trace", "tiny-arm", "--prompt", "x"],
    "eval": ["eval", "tiny-arm", "--data", "world:fresh", "--limit", "1"],
    "stress": ["stress", "query", "tiny-arm", "--data", "world:fresh", "--limit", "1"],
    "study": ["study", "tiny-arm", "--data", "world:fresh", "--limit", "1"],
}


def fill(folder: Path, names: list[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(f"the content of {name}".encode())


def content(folder: Path) -> dict[str, bytes | None]:
    """Every name in a folder, with the bytes of files."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")
    }


@pytest.mark.parametrize("kind", FOLDERS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_holds_other_files_is_refused_and_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, command: str
) -> None:
    fill(tmp_path, FOLDERS[kind])
    before = content(tmp_path)
    monkeypatch.chdir(tmp_path)
    for resume in ([], ["--resume"]):
        made = run(*COMMANDS[command], "--out", ".", *resume, code=2)
        assert "not empty and is not a run folder" in made.stderr
        assert content(tmp_path) == before


def test_files_that_are_kept_beside_a_run_survive_when_it_is_resumed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = ["trace", "tiny-arm", "--prompt", "x", "--max-new-tokens", "2", "--out", out]
    run(*command)
    mine = [*FOLDERS["a git checkout"], ".dvc/config", "samples/.gitignore", "results/.keep", "figures/.git-annex"]
    fill(out, mine)
    unfinished = out / "samples" / f".floatlens-{uuid.uuid4().hex}"  # as a killed process leaves it
    unfinished.mkdir()
    before = {name: (out / name).read_bytes() for name in mine}
    run(*command, "--resume")
    assert {name: (out / name).read_bytes() for name in mine} == before
    assert not unfinished.exists()


def test_a_run_that_was_killed_before_its_manifest_can_be_started_again(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    dead = {"pid": 2**22 + 1, "machine": machine_id(), "nonce": "another"}
    (tmp_path / "lock").write_text(json.dumps(dead))
    (tmp_path / f".floatlens-{uuid.uuid4().hex}").write_bytes(b"half a manif")
    RunFolder.create(tmp_path, {"asked": {}}).finish()
    assert not list(tmp_path.glob(".*"))
