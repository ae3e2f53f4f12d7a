"""A manifest has the information to compare and repeat a run, and no private information."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

import pytest

from floatlens.errors import FloatLensError
from floatlens.models.checkpoint import find
from floatlens.options import ARGUMENTS
from floatlens.store import manifest
from floatlens.store.folder import check_same_settings
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


def test_the_manifest_does_not_hold_the_text_of_a_prompt(model: Path, tmp_path: Path) -> None:
    words = ("trace", model, "--prompt", "Where does Ada live?", "--passage", "Molen", "--max-new-tokens", 2)
    run(*words, "--out", tmp_path / "first")
    assert "Ada" not in (tmp_path / "first" / "manifest.json").read_text()


def test_named_data_is_bundled_and_not_of_the_hub() -> None:
    assert {name: manifest.data_hash(name) for name in ("atlas", "world:fresh", "nq")} == {
        "atlas": "bundled",
        "world:fresh": "bundled",
        "nq": "hub",
    }
