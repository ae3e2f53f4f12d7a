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
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings

from floatlens import untrusted
from floatlens.errors import FloatLensError
from floatlens.store.folder import RunFolder, safe_name
from floatlens.store.runs import all_runs, model_runs
from tests import commands
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
        assert "leads out of" in str(error)


def test_files_that_never_end_are_not_read(tmp_path: Path) -> None:
    run = started(tmp_path / "run")
    with RunFolder.create(run.path, ASKED, resume=True) as run:
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
    assert len(run.results()) == 1
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
    with pytest.warns(UserWarning, match="a link that leads out of"):
        [only] = model_runs(tmp_path / "study")
    assert only.path.name == safe_name("b")
    with pytest.warns(UserWarning, match="a link that leads out of"):
        assert len(all_runs(RunFolder.open(tmp_path / "study"))) == 2


@pytest.mark.parametrize("asked", [None, [], "x", {"models": 3}, {"models": [3, "../victim"]}])
def test_a_study_whose_manifest_is_odd_is_read_as_one_run(tmp_path: Path, asked: Any) -> None:

    run = started(tmp_path / "run")
    (run.path / "models").mkdir()
    (run.path / "manifest.json").write_text(json.dumps({"asked": asked}))
    assert [found.path for found in model_runs(run.path)] == [run.path]


FILES = ("manifest.json", "answers.parquet", "results.json", "errors.jsonl", "lock", "claims.json")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["link", "pipe", "device"])
def test_a_file_of_a_run_that_is_no_file_inside_it_is_refused_by_every_reader(
    tmp_path: Path, victim: Path, name: str, kind: str
) -> None:
    run = started(tmp_path / "run")
    path = run.path / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"link": victim / "thesis.json", "device": "/dev/zero"}[kind])
    for command in (
        ["report", run.path, "--out", tmp_path / "r.html"],
        ["figure", "drift", run.path],
        ["diff", run.path, run.path],
    ):
        made = commands.run(*command, code=2)
        assert str(path) in made.stderr.replace("\n", "")
    with pytest.raises(FloatLensError):
        resume(run.path)


@pytest.mark.parametrize("name", ["samples", "figures", "findings", "results", "models", "causes"])
def test_a_folder_of_a_run_that_leads_elsewhere_is_refused_before_anything_is_written(
    tmp_path: Path, victim: Path, name: str
) -> None:
    run = started(tmp_path / "run")
    shutil.rmtree(run.path / name, ignore_errors=True)
    (run.path / name).symlink_to(victim)
    before = sorted(tmp_path.rglob("*"))
    commands.run("figure", "drift", run.path, code=2)
    with pytest.raises(FloatLensError, match="leads out of"):
        resume(run.path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_trace_that_is_a_link_is_replaced_and_its_target_stays(tmp_path: Path, victim: Path) -> None:
    with RunFolder.create(tmp_path / "run", ASKED) as run:
        run.trace_path("q1").symlink_to(victim)
        run.save_trace("q1", some_trace())
        assert len(run.samples()) == 1 and not run.trace_path("q1").is_symlink()


def test_a_model_of_a_study_behind_a_link_is_not_written_to(tmp_path: Path, victim: Path) -> None:
    with RunFolder.create(tmp_path / "study", ASKED) as run:
        (run.path / "models").mkdir()
        (run.path / "models" / "a").symlink_to(victim)
        with pytest.raises(FloatLensError, match="leads out of"):
            run.inside("models", "a")


def test_a_huge_sparse_file_is_not_read(tmp_path: Path) -> None:
    run = started(tmp_path / "run")
    [result] = run.storage.names("results")
    for name in (result, "manifest.json"):
        os.truncate(run.path / name, 1 << 40)
    with pytest.raises(FloatLensError, match="at most .* are read"):
        run.errors()
    with pytest.raises(FloatLensError, match="at most .* are read"):
        _ = run.manifest


def test_a_small_table_that_unpacks_to_far_more_is_refused(tmp_path: Path) -> None:
    text = pyarrow.DictionaryArray.from_arrays(np.zeros(4000, "int32"), ["x" * 10_000])
    names = ["id", "model", "data", "condition", "accuracy", "kind"]
    table = pyarrow.table({name: text for name in names})
    pyarrow.parquet.write_table(table, tmp_path / "answers.parquet", store_schema=False)
    assert (tmp_path / "answers.parquet").stat().st_size < 100_000
    for limit in (10_000_000, 1 << 30):  # 240 MB: more than asked for, and out of proportion to the file
        with pytest.raises(FloatLensError, match="unpacks to more than"):
            untrusted.read_parquet(tmp_path / "answers.parquet", tmp_path, limit)
    pyarrow.parquet.write_table(table.slice(0, 1000), tmp_path / "answers.parquet", store_schema=False)
    assert len(untrusted.read_parquet(tmp_path / "answers.parquet", tmp_path)) == 1000


def test_a_table_whose_columns_claim_more_bytes_than_the_file_has_is_refused(tmp_path: Path) -> None:
    """Columns that share their bytes make a small file as large as one likes."""
    file, rng = tmp_path / "answers.parquet", np.random.default_rng(0)
    pyarrow.parquet.write_table(pyarrow.table({"accuracy": rng.random(100_000)}), file)
    content = file.read_bytes()
    file.write_bytes(content[:1000] + content[-100_000:])  # the footer, and less data than it says
    with pytest.raises(FloatLensError, match="claims more bytes than it has"):
        untrusted.read_parquet(file, tmp_path)


@pytest.mark.parametrize("content", ["[]", "{", '{"failed": 3}', '{"notes": [3]}', '{"failed": {"a": []}}'])
def test_results_of_other_fields_are_a_usage_error(tmp_path: Path, content: str) -> None:
    run = started(tmp_path / "run")
    (run.path / "results.json").write_text(content)
    made = commands.run("report", run.path, "--out", tmp_path / "r.html", code=2)
    assert "results.json" in made.stderr.replace("\n", "")


def test_a_small_file_may_unpack_to_more_times_its_size_than_a_large_one() -> None:
    assert (untrusted.room(1000), untrusted.room(1_000_000)) == (64 << 20, 500_000_000)
