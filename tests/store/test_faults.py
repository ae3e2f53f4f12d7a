"""Runs that are killed, interrupted, out of disk space or damaged end with the same results as an undisturbed run."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from floatlens.cli import main
from floatlens.store.folder import RunFolder
from floatlens.store.storage import Storage
from tests.store.conftest import QUESTIONS, TRACED, Undisturbed, Words, assert_same
from tests.store.fork_server import ForkServer, touches

KILLS = {"eval": 10, "trace": 6, "ablate": 4, "study": 3}


def finished(folder: Path) -> int:
    return len(list(folder.rglob("results/*/[!.]*.json")))


@pytest.mark.parametrize("command", list(KILLS))
def test_killed_at_random_moments_a_run_resumes_to_the_same_results(
    fork_server: ForkServer, words: Words, undisturbed: Undisturbed, tmp_path: Path, command: str
) -> None:
    chance = random.Random(f"kill {command}")
    whole, errors = undisturbed[command], tmp_path / "err"
    total = finished(whole)
    stride = 2 * touches(undisturbed.errors(command)) // KILLS[command]  # so that all kills fall into a run or two
    kills, folders, cut = 0, [tmp_path / "0"], 0
    while kills < KILLS[command]:
        strike = (signal.SIGKILL, chance.randint(1, stride))
        code = fork_server.run(*words[command], "--out", folders[-1], "--resume", errors=errors, strike=strike)
        assert code in (0, -signal.SIGKILL), errors.read_text()
        if code == 0:  # so much was there that it ended before its time
            folders.append(tmp_path / str(len(folders)))
        else:
            kills += 1
            cut += 0 < finished(folders[-1]) < total
    assert cut > 0, "no kill fell into the middle of a run"
    for folder in folders:
        code = fork_server.run(*words[command], "--out", folder, "--resume", errors=errors)
        assert code == 0, errors.read_text()
        assert_same(folder, whole)


def test_killed_by_the_clock_a_run_resumes_to_the_same_results(
    fork_server: ForkServer, words: Words, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Also while nothing is written: starting, tokenising, in the middle of a batch. How far it gets is left to chance."""
    chance, out, errors = random.Random("clock"), tmp_path / "run", tmp_path / "err"
    for _ in range(3):
        pid = fork_server.start((*words["eval"], "--out", out, "--resume"), errors)
        time.sleep(chance.uniform(0.0, 1.0))
        os.kill(pid, signal.SIGKILL)
        assert fork_server.wait(pid) in (0, -signal.SIGKILL), errors.read_text()
    assert fork_server.run(*words["eval"], "--out", out, "--resume", errors=errors) == 0
    assert_same(out, undisturbed["eval"])


def test_an_interrupt_leaves_a_consistent_folder_and_one_line(
    fork_server: ForkServer, words: Words, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    out, errors, whole = tmp_path / "run", tmp_path / "err", undisturbed["eval"]
    half = touches(undisturbed.errors("eval")) // 2
    assert fork_server.run(*words["eval"], "--out", out, errors=errors, strike=(signal.SIGINT, half)) == 130
    assert errors.read_text() == "floatlens: interrupted; finished results are kept: continue with --resume\n"
    assert not (out / "lock").exists() and not (out / "answers.parquet").exists()
    done = RunFolder.open(out)
    assert 0 < len(done.results()) == len(done.storage.names("results")) < 2 * QUESTIONS
    assert fork_server.run(*words["eval"], "--out", out, "--resume", errors=errors) == 0
    assert_same(out, whole)


# --- a full disk ------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of half a megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None:
        pytest.skip("A FULL DISK IS NOT TESTED: there is no mount command here")
    done = subprocess.run([mount, "-t", "tmpfs", "-o", "size=512k", "tmpfs", place], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"A FULL DISK IS NOT TESTED: a tmpfs cannot be mounted here ({done.stderr.strip()})")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_disk_stops_the_run_with_a_sentence_and_it_resumes_when_there_is_room(
    fork_server: ForkServer, words: Words, undisturbed: Undisturbed, small_disk: Path, tmp_path: Path
) -> None:
    out, errors = small_disk / "run", tmp_path / "err"
    assert fork_server.run(*words["trace"], "--out", out, errors=errors) == 2
    [line] = errors.read_text().splitlines()
    assert line.startswith("floatlens: no space is left on the disk for ") and "--resume" in line
    kept = RunFolder.open(out).results()
    assert 0 < len(kept) < TRACED
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    assert fork_server.run(*words["trace"], "--out", out, "--resume", errors=errors) == 0
    assert_same(out, undisturbed["trace"])


def test_a_disk_that_refuses_to_write_stops_the_run_with_a_sentence(
    words: Words, undisturbed: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The same without a disk of our own: the tenth write finds no room."""
    real, count = Storage.write, 0

    def full(self: Storage, name: str, content: bytes, new: bool = False) -> None:
        nonlocal count
        count += 1
        if count > 9:
            raise OSError(errno.ENOSPC, "No space left on device", name)
        real(self, name, content, new)

    line = [str(word) for word in (*words["eval"], "--out", tmp_path / "run")]
    monkeypatch.setattr(Storage, "write", full)
    assert main.run(line) == 2
    assert capsys.readouterr().err.startswith("floatlens: no space is left on the disk for results/")
    monkeypatch.setattr(Storage, "write", real)
    assert main.run([*line, "--resume"]) == 0
    assert_same(tmp_path / "run", undisturbed["eval"])


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["truncated", "bit flipped"])
@pytest.mark.parametrize("what", ["results", "samples"])
def test_a_damaged_file_is_set_aside_and_done_again(
    fork_server: ForkServer, words: Words, undisturbed: Undisturbed, tmp_path: Path, what: str, harm: str
) -> None:
    out = tmp_path / "run"
    shutil.copytree(undisturbed["trace"], out)
    inside = "*/*.json" if what == "results" else "*/received/c.*"
    victim = sorted(path for path in (out / what).glob(inside) if path.is_file())[3]
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content if harm == "bit flipped" else content[: len(content) // 2])
    assert fork_server.run(*words["trace"], "--out", out, "--resume", errors=tmp_path / "err") == 0
    assert len(list((out / "broken").iterdir())) == (1 if what == "results" else 2)
    assert_same(out, undisturbed["trace"])


def test_a_resumed_run_must_be_the_same(
    fork_server: ForkServer, words: Words, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    before = [result.to_bytes() for result in RunFolder.open(undisturbed["trace"]).results()]
    line = (*words["trace"], "--out", undisturbed["trace"], "--resume", "--max-new-tokens", 5)
    assert fork_server.run(*line, errors=tmp_path / "err") == 2
    assert "other settings (sampling.max_new_tokens: 4, now 5)" in (tmp_path / "err").read_text()
    assert [result.to_bytes() for result in RunFolder.open(undisturbed["trace"]).results()] == before
    manifest = json.loads((undisturbed["trace"] / "manifest.json").read_text())
    assert manifest["arguments"][0] == "trace" and manifest["machine"]["cores"] == os.cpu_count()
