"""An untrusted run folder is read, resumed or rejected, and accesses nothing outside of itself."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from floatlens.errors import FloatLensError
from floatlens.store.folder import RunFolder, safe_name
from floatlens.store.run_list import all_runs, model_runs
from tests.store.bucket import Bucket
from tests.store.test_folder import some_trace

ASKED: dict[str, Any] = {"asked": {}}


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A folder beside the run; it must be the same afterwards."""
    folder = tmp_path / "victim" / "documents"
    folder.mkdir(parents=True)
    (folder / "thesis.json").write_text("dear")
    yield folder
    assert [path.name for path in folder.iterdir()] == ["thesis.json"]
    assert (folder / "thesis.json").read_text() == "dear"


def record(key: list[Any], value: Any, trees: Any) -> bytes:
    """A result with a correct checksum, written by hand."""
    content = {"key": key, "value": value, "trees": trees}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "record": content}).encode()


def started(location: str | Path) -> RunFolder:
    """A run with one result, closed."""
    with RunFolder.create(location, ASKED) as run:
        run.put(("q1",), {"answer": "Rusk"})
    return run


def resume(location: str | Path) -> RunFolder:
    with RunFolder.create(location, ASKED, resume=True) as run:
        return run


@pytest.mark.parametrize(
    "tree",
    ["../victim/documents", "samples/../../victim/documents", "/etc", "samples", "results/00", "samples/a/b", "", "."],
)
def test_a_result_that_names_a_trace_outside_of_samples_is_set_aside_and_nothing_is_moved(
    tmp_path: Path, victim: Path, tree: str
) -> None:
    run = started(tmp_path / "run")
    [file] = run.storage.names("results")
    (run.path / file).write_bytes(record(["q1"], {}, {tree: "no checksum fits"}))
    run = resume(run.path)
    assert run.results() == [] and run.storage.names("broken") == [f"broken/{file.replace('/', '-')}.0"]


@pytest.mark.parametrize("place", ["samples", "results", "broken"])
def test_a_link_that_leads_out_of_the_run_is_not_followed(tmp_path: Path, victim: Path, place: str) -> None:
    run = started(tmp_path / "run")
    [file] = run.storage.names("results")
    (run.path / file).write_bytes(b"{")  # something to be moved
    shutil.rmtree(run.path / place, ignore_errors=True)
    (run.path / place).symlink_to(victim)
    try:
        resume(run.path)
    except FloatLensError as error:
        assert "leads out of the run folder" in str(error) or place in str(error)


def test_files_that_never_end_are_not_read(tmp_path: Path) -> None:
    run = started(tmp_path / "run")
    with RunFolder.create(run.path, ASKED, resume=True):
        trees = run.save_trace("q2", some_trace())
        run.put(("q2",), {}, trees)
    [tree] = trees
    (run.path / tree / "endless").symlink_to("/dev/zero")
    os.mkfifo(run.path / tree / "pipe")
    assert len(resume(run.path).results()) == 2
    (run.path / "manifest.json").unlink()
    os.mkfifo(run.path / "manifest.json")
    with pytest.raises(FloatLensError, match="not a regular file"):
        RunFolder.open(run.path)


@pytest.mark.parametrize("key", ["samples/NAME/../../../../escaped", "samples/NAME/..\\..\\escaped", "../escaped"])
def test_an_object_whose_key_leads_out_of_the_run_is_never_written_to_a_disk(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "a" / "b" / "c"))
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    location = f"bucket://{tmp_path.name}/run"
    with RunFolder.create(location, ASKED) as run:
        trees = run.save_trace("q1", some_trace())
        run.put(("q1",), {}, trees)
    [tree] = trees
    stored = f"{tmp_path.name}/run/{key.replace('NAME', tree.removeprefix('samples/'))}"
    Bucket.objects[stored] = (b"evil", Bucket.objects[f"{tmp_path.name}/run/manifest.json"][1])
    with RunFolder.open(location) as run:
        if key.startswith("samples"):
            with pytest.raises(FloatLensError, match="leads out of the run"):
                run.samples()
        else:
            assert len(run.samples()) == 1
    assert not [path for path in tmp_path.rglob("*") if "escaped" in path.name]


def test_a_copy_of_a_result_counts_once_and_is_set_aside_when_the_run_is_resumed(tmp_path: Path) -> None:
    run = started(tmp_path / "run")
    [file] = run.storage.names("results")
    copy = (run.path / file).with_name("q1 (conflicted copy of laptop).json")
    shutil.copy(run.path / file, copy)
    assert len(run.results()) == 1 and len(run.index()) == 1
    run = resume(run.path)
    assert not copy.exists() and (run.path / file).exists() and len(run.storage.names("broken")) == 1


VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just("../victim"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.just("samples/a"), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=80) | st.tuples(VALUES, VALUES, VALUES))
def test_any_record_is_a_result_or_set_aside(tmp_path: Path, victim: Path, content: Any) -> None:
    run = RunFolder.open(tmp_path / "run") if (tmp_path / "run").exists() else started(tmp_path / "run")
    before = set(tmp_path.iterdir())
    try:
        made = content if isinstance(content, bytes) else record(*content)
    except TypeError:
        return
    target = run.path / "results" / "00" / "odd.json"
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(made)
    assert [result.key for result in resume(run.path).results()] == [("q1",)]
    assert not target.exists() and set(tmp_path.iterdir()) == before


def test_a_model_of_a_study_behind_a_link_that_leads_out_is_left_out_and_named(tmp_path: Path) -> None:
    for name in ("study", "mine", "study/models/" + safe_name("b")):
        RunFolder.create(tmp_path / name, {"asked": {"models": ["a", "b"]}}).close()
    (tmp_path / "study" / "models" / safe_name("a")).symlink_to(tmp_path / "mine")
    with pytest.warns(UserWarning, match="a link that leads out of the run"):
        [only] = model_runs(tmp_path / "study")
    assert only.path.name == safe_name("b")
    with pytest.warns(UserWarning, match="a link that leads out of the run"):
        assert len(all_runs(RunFolder.open(tmp_path / "study"))) == 2


@pytest.mark.parametrize("asked", [None, [], "x", {"models": 3}, {"models": [3, "../victim"]}])
def test_a_study_whose_manifest_is_odd_is_read_as_one_run(tmp_path: Path, asked: Any) -> None:

    run = started(tmp_path / "run")
    (run.path / "models").mkdir()
    (run.path / "manifest.json").write_text(json.dumps({"asked": asked}))
    assert [found.path for found in model_runs(run.path)] == [run.path]
