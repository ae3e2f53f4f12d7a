"""The committed script equals a build from the source."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "frontend"


def test_the_committed_script_is_what_the_source_builds() -> None:
    node = shutil.which("node")
    if node is None or not (SOURCE / "node_modules" / "esbuild").is_dir():
        pytest.skip("THE EXPLORER'S BUILD WAS NOT CHECKED: it needs node and `make front`")
    found = subprocess.run([node, "build.mjs", "--check"], cwd=SOURCE, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr


def test_the_lock_file_names_no_host() -> None:
    lock = json.loads((SOURCE / "package-lock.json").read_text())
    assert lock["packages"]
    assert not [name for name, package in lock["packages"].items() if "resolved" in package]
    assert all("integrity" in package for name, package in lock["packages"].items() if name)
