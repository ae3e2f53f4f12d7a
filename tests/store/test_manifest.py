"""A manifest has the information to compare and repeat a run, and no private information."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from floatlens.errors import FloatLensError
from floatlens.models.checkpoint import find
from floatlens.options import ARGUMENTS
from floatlens.store import manifest
from floatlens.store.folder import RunFolder, check_same_settings
from floatlens.store.rerun import rerun_arguments
from tests.commands import run


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt", "weights.pth"])
def test_a_run_is_not_resumed_with_other_weights_of_any_format(model: Path, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "model"
    shutil.copytree(model, copy)
    found = []
    for content in (b"first", b"second"):
        (copy / name).write_bytes(content)
        found.append(manifest.describe("eval", {}, checkpoints=[find(str(copy))]))
        assert found[-1]["models"][str(copy)]["files"][name] == hashlib.sha256(content).hexdigest()
    with pytest.raises(FloatLensError, match=name):
        check_same_settings("run", *found)


def test_credentials_texts_and_places_stay_out_of_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "https://me:hunter2@example.org/nq.jsonl?X-Amz-Signature=hunter2"
    prompt = "Why did Ada see the doctor?"
    ARGUMENTS[:] = ["trace", "m", "--data", secret, f"--corpus={secret}", "--prompt", prompt, "--out", "/home/me/run"]
    monkeypatch.chdir(tmp_path)
    try:
        found = manifest.describe(
            "trace", {"data": [secret], "prompt": prompt, "answer": ["flu", "cold"]}, data=[secret]
        )
    finally:
        ARGUMENTS.clear()
    text = json.dumps(found)
    for word in ("hunter2", "doctor", "flu", "/home/me", str(tmp_path), sys.executable):
        assert word not in text
    assert found["asked"]["data"] == ["https://example.org/nq.jsonl?..."]
    assert found["asked"]["prompt"] == f"sha256:{hashlib.sha256(prompt.encode()).hexdigest()}"
    assert "host" not in found["machine"] and "executable" not in found["machine"] and "folder" not in found


def test_a_trace_of_a_prompt_is_repeated_without_its_text_in_the_manifest(model: Path, tmp_path: Path) -> None:
    words = ("trace", model, "--prompt", "Where does Ada live?", "--answer", "Molen", "--max-new-tokens", 2)
    run(*words, "--out", tmp_path / "first")
    assert "Ada" not in (tmp_path / "first" / "manifest.json").read_text()
    assert "all 1 the same" in run("rerun", tmp_path / "first", "--out", tmp_path / "again").stdout


# --- a stranger's manifest --------------------------------------------------------------------------------------------


def foreign(folder: Path, *arguments: str) -> RunFolder:
    with RunFolder.create(folder, {"arguments": list(arguments)}) as made:
        return made


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--engine", "ray", "--address", "evil.example:6379"), ["--engine", "--address"]),
        (("--engine=ray", "--address=ray://evil.example:10001"), ["--engine", "--address"]),
        (("--allow-pickle",), ["--allow-pickle"]),
        (("--workers", "10000", "--gpus-per-worker=0.01"), ["--workers", "--gpus-per-worker"]),
        (("--address", "--engine", "--allow-pickle", "--limit=1"), ["--address", "--allow-pickle"]),
    ],
)
def test_a_manifest_does_not_decide_where_a_run_is_repeated_or_that_pickles_are_opened(
    tmp_path: Path, words: tuple[str, ...], expected: list[str]
) -> None:
    arguments, dropped = rerun_arguments(foreign(tmp_path / "run", "eval", "m", *words), "out")
    assert dropped == expected
    assert [word for word in arguments if word != "--limit=1"] == ["eval", "m", "--out", "out"]


def test_options_that_are_given_anew_are_used(tmp_path: Path) -> None:
    made = foreign(tmp_path / "run", "eval", "m", "--engine", "ray", "--address", "evil:1")
    arguments, dropped = rerun_arguments(made, "out", ["--engine", "ray", "--address", "auto"])
    assert arguments == ["eval", "m", "--out", "out", "--engine", "ray", "--address", "auto"] and dropped == []


def test_an_empty_argument_is_kept(tmp_path: Path) -> None:
    words = ["eval", "m", "--columns", "", "--prompt=", "--limit", "3"]
    assert rerun_arguments(foreign(tmp_path / "run", *words), "out")[0] == [*words, "--out", "out"]


def test_what_was_left_out_is_said(words: dict[str, Any], tmp_path: Path) -> None:
    made = foreign(tmp_path / "run", *(str(word) for word in words["eval"]), "--limit", "1", "--workers", "2")
    said = run("rerun", made.path, "--out", tmp_path / "again", code=1).stderr
    assert "--workers; to use them, add them after --" in said


def test_a_text_that_is_not_stored_is_asked_for_and_never_becomes_an_option(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"--allow-pickle").hexdigest()
    made = foreign(tmp_path / "run", "trace", "m", "--data", f"--prompt=sha256:{digest}")
    with pytest.raises(FloatLensError, match="the text of --prompt is not stored"):
        rerun_arguments(made, "out")
    arguments, _ = rerun_arguments(made, "out", ["--prompt", "Where?"])
    assert arguments == ["trace", "m", "--data", "--out", "out", "--prompt", "Where?"]
    trace = made.path / "samples" / "prompt" / "zarr.json"
    trace.parent.mkdir(parents=True)
    trace.write_text(json.dumps({"attributes": {"question": "--allow-pickle"}}))
    assert "--allow-pickle" not in rerun_arguments(made, "out")[0]


def test_named_data_is_bundled_and_not_of_the_hub() -> None:
    assert {name: manifest.data_hash(name) for name in ("atlas", "world:fresh", "nq")} == {
        "atlas": "bundled",
        "world:fresh": "bundled",
        "nq": "hub",
    }
