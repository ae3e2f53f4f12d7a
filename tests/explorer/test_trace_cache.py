"""Traces that a page saves: those of the last runs, and those of run folders."""

from __future__ import annotations

import io
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

import floatlens as fl
from floatlens.store.folder import RunFolder
from tests.explorer.app_client import PASSAGES, QUESTION, TOKEN, app_of, client, connected, lens
from tests.explorer.traces import tiny


def opened(content: bytes, path: Path) -> fl.Trace:
    """The trace in an archive, which holds nothing else."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert {name.partition("/")[0] for name in archive.namelist()} == {"trace"}
        archive.extractall(path)
    return fl.Trace.open(path / "trace")


def get(to: Any, **asked: Any) -> Any:
    return to.get("/api/trace", params={"token": TOKEN, **asked})


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary"


def test_the_trace_of_a_run_can_be_saved_while_the_page_is_there(tmp_path: Path, temporary: Path) -> None:
    to = client(app_of("tiny-mdm"))
    with connected(to) as page:
        page.ask(1, seed=5, interventions=["mask-positions(region=gold)"])
        key = page.until("done")[-1]["trace"]
        answer = get(to, key=key)
        assert answer.headers["content-type"] == "application/zip" and answer.headers["cache-control"] == "no-store"
        found = opened(answer.content, tmp_path)
        assert to.get("/api/trace", params={"key": key}).status_code == 403, "without the token"
    assert list(temporary.iterdir()) == []
    prompt = lens("tiny-mdm").prompt(QUESTION, [passage["text"] for passage in PASSAGES], gold=1)
    with lens("tiny-mdm").intervene("mask-positions(region=gold)"):
        made = lens("tiny-mdm").trace(prompt, max_new_tokens=6, seed=5, record=["received"])
    xr.testing.assert_allclose(found.data, made.data, atol=1e-6)
    gone = get(to, key=key)
    assert gone.status_code == 404 and "no longer kept" in gone.json()["error"]


def test_a_recorded_trace_is_saved_as_it_was_recorded(tmp_path: Path, temporary: Path) -> None:
    run = RunFolder.create(tmp_path / "run", {"command": "trace"})
    tiny("tiny-arm").save(run.trace_path("vell"))
    to = client(app_of(runs=[run.path]))
    found = opened(get(to, run=0, sample=0).content, tmp_path)
    xr.testing.assert_identical(found.data.load(), fl.Trace.open(run.trace_path("vell")).data.load())
    for wrong in ({"run": 0, "sample": 1}, {"run": "../0", "sample": 0}, {"run": 0}, {}, {"key": "x"}):
        assert get(to, **wrong).status_code == 404, wrong
    assert list(temporary.iterdir()) == []
