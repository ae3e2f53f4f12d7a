"""A run folder keeps results complete, and never uses an id from data as a path."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given

from floatlens import FloatLensError
from floatlens.cli import main
from floatlens.files import atomic_write, unfinished_name
from floatlens.store.diff import compare, results_differ
from floatlens.store.folder import Result, RunFolder, safe_name
from floatlens.store.storage import hash_value, hide_credentials, is_url
from floatlens.trace.trace import Trace
from tests.store import bucket  # noqa: F401  (the protocol bucket://)
from tests.store.conftest import TRACED, Undisturbed, Words


@given(st.text(max_size=300))
def test_any_id_becomes_one_plain_file_name(sample_id: str) -> None:
    name = safe_name(sample_id)
    assert Path(name).name == name and 0 < len(name) < 64 and not name.startswith((".", "-"))


@given(st.text(max_size=60), st.text(max_size=60))
def test_different_ids_have_different_names(a: str, b: str) -> None:
    assert (safe_name(a) == safe_name(b)) == (a == b)


def test_a_run_is_not_overwritten_and_resumes_only_with_the_same_settings(tmp_path: Path) -> None:
    asked = {"asked": {"model": "x", "steps": 4}}
    RunFolder.create(tmp_path / "run", asked).close()
    with pytest.raises(FloatLensError, match="use --resume"):
        RunFolder.create(tmp_path / "run", asked)
    RunFolder.create(tmp_path / "run", asked, resume=True).close()
    with pytest.raises(FloatLensError, match="other settings \\(steps: 4, now 5\\)"):
        RunFolder.create(tmp_path / "run", {"asked": {"model": "x", "steps": 5}}, resume=True)


def test_a_resumed_run_may_be_asked_for_less_and_not_for_more(tmp_path: Path) -> None:
    def manifest(models: list[str], data: list[str], limit: int | None, command: str = "eval") -> dict[str, Any]:
        asked = {"models": models, "data": data, "read": {"limit": limit}}
        return {"command": command, "asked": asked, "models": {name: {"sha256": name} for name in models}}

    whole = manifest(["a", "b"], ["x", "y"], 9)
    RunFolder.create(tmp_path / "run", whole).close()
    for less in (manifest(["b"], ["x", "y"], 9), manifest(["a", "b"], ["y"], 9), manifest(["a"], ["x"], 3), whole):
        RunFolder.create(tmp_path / "run", less, resume=True).close()
    assert RunFolder.open(tmp_path / "run").manifest == whole, "the run stays what it is"
    for more, said in (
        (manifest(["a", "c"], ["x", "y"], 9), "models"),
        (manifest(["a"], ["x", "z"], 9), "data"),
        (manifest(["a"], ["x"], 10), "read.limit: 9, now 10"),
        (manifest(["a"], ["x"], None), "read.limit: 9, now null"),
    ):
        with pytest.raises(FloatLensError, match=said):
            RunFolder.create(tmp_path / "run", more, resume=True)
    for number, asked in enumerate((["no", "settings"], {"read": {"limit": "many"}}, {"models": 3, "read": 4})):
        RunFolder.create(tmp_path / str(number), {**whole, "asked": asked}).close()
        with pytest.raises(FloatLensError, match="started with other settings"):
            RunFolder.create(tmp_path / str(number), whole, resume=True)


def test_a_study_that_is_asked_for_less_is_then_the_smaller_one(tmp_path: Path) -> None:
    def manifest(models: list[str], limit: int, only: list[str] | None = None) -> dict[str, Any]:
        sizes = {"traces": min(24, limit), "knowledge": limit}
        asked: dict[str, Any] = {"models": models, "data": ["x"], "read": {"limit": limit}, "sizes": sizes}
        asked |= {"findings": only or ["drift", "heads"], "scope": {"only": only or [], "skip": [], "setting": "paper"}}
        return {"command": "study", "asked": asked, "models": {name: {} for name in models}}

    def several(limit: int) -> dict[str, Any]:
        plans = [manifest([name], limit)["asked"] for name in ("a", "b")]
        return {"command": "study", "asked": {"models": ["a", "b"], "plans": plans}}

    RunFolder.create(tmp_path / "run", manifest(["a", "b"], 30)).close()
    for less in (manifest(["a"], 30), manifest(["a"], 25), manifest(["a"], 9), manifest(["a"], 9, ["heads"])):
        RunFolder.create(tmp_path / "run", less, resume=True).close()
        assert RunFolder.open(tmp_path / "run").manifest == less
    for more in (manifest(["a", "b"], 9, ["heads"]), manifest(["a"], 10, ["heads"]), manifest(["a"], 9)):
        with pytest.raises(FloatLensError, match="started with other settings"):
            RunFolder.create(tmp_path / "run", more, resume=True)
    RunFolder.create(tmp_path / "several", several(9)).close()
    RunFolder.create(tmp_path / "several", several(3), resume=True).close()
    with pytest.raises(FloatLensError, match="started with other settings"):
        RunFolder.create(tmp_path / "several", several(9), resume=True)


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("dear")
    with pytest.raises(FloatLensError, match="is not empty and is not a run folder"):
        RunFolder.create(tmp_path, {})
    with pytest.raises(FloatLensError, match="is not a run folder"):
        RunFolder.open(tmp_path)


def test_errors_and_tables_are_read_back(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", {"command": "eval"})
    run.put(("model", "q\n1"), {"error": "too long"})
    run.put(("model", "data", "open-book", "q2"), {"condition": "open-book", "error": "too short"})
    run.write_table("answers", pd.DataFrame({"id": ["a"], "em": [1.0]}))
    run.finish()
    first = {"sample": "model, data, open-book, q2", "reason": "too short"}
    assert RunFolder.open(run.path).errors() == [first, {"sample": "q\n1", "reason": "too long"}]
    listed = [json.loads(line) for line in (run.path / "errors.jsonl").read_text().splitlines()]
    assert listed == RunFolder.open(run.path).errors()
    assert pd.read_parquet(run.path / "answers.parquet")["id"].tolist() == ["a"]


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_write(target) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert target.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["file"]


# --- results ----------------------------------------------------------------------------------------------------------

PLACES = ["disk", "memory", "bucket"]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "run") if request.param == "disk" else f"{request.param}://{tmp_path.name}/run"


def some_trace() -> Trace:
    data = {
        "tokens": (("step", "position"), np.array([[1, 2, 3], [1, 2, 4]])),
        "committed_at": (("position",), np.array([-1, 0, 1])),
        "confidence": (("step", "position"), np.ones((2, 3), np.float32)),
    }
    return Trace(xr.Dataset(data, attrs={"sample_id": "../q1"}))


def test_results_are_there_once_however_often_they_are_put(place: str) -> None:
    with RunFolder.create(place, {"asked": {}}) as run:
        for value in (1, 2):
            for id_ in ("a", "../a", "a\n", ""):
                run.put(("model", id_), {"value": value})
        assert [(r.key[1], r.value["value"]) for r in run.results()] == [("", 2), ("../a", 2), ("a", 2), ("a\n", 2)]
        assert len(run.storage.names("results")) == 4


@pytest.mark.parametrize("harm", ["truncated", "bit flipped", "emptied", "not JSON", "of another kind"])
def test_a_broken_result_is_set_aside_and_can_be_done_again(place: str, harm: str) -> None:
    with RunFolder.create(place, {"asked": {}}) as run:
        run.put(("a",), {"answer": "Rusk"})
        run.put(("b",), {"answer": "Molen"})
        [name] = [result.file for result in run.results() if result.key == ("a",)]
        whole = run.storage.read(name)
        at = whole.index(b"Rusk")
        harmed = {
            "truncated": whole[:-7],
            "bit flipped": whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :],
            "emptied": b"",
            "not JSON": b"\xff\x00",
            "of another kind": b"[1]",
        }[harm]
        run.storage.write(name, harmed)
    with RunFolder.create(place, {"asked": {}}, resume=True) as run:
        assert [r.key for r in run.results()] == [("b",)]
        [broken] = run.storage.names("broken")
        assert run.storage.read(broken) == harmed


def test_a_broken_trace_takes_its_result_along(place: str) -> None:
    with RunFolder.create(place, {"asked": {}}) as run:
        trees = run.save_trace("q1", some_trace())
        run.put(("q1",), {}, trees)
        run.put(("q2",), {}, run.save_trace("q2", some_trace()))
        chunk = max((n for n in run.storage.names(*trees) if "/c." in n), key=lambda n: len(run.storage.read(n)))
        content = run.storage.read(chunk)
        run.storage.write(chunk, content[:5] + bytes([content[5] ^ 4]) + content[6:])
    with RunFolder.create(place, {"asked": {}}, resume=True) as run:
        assert [r.key for r in run.results()] == [("q2",)] and len(run.samples()) == 1


def test_traces_come_back_from_anywhere(place: str) -> None:
    with RunFolder.create(place, {"asked": {}}) as run:
        run.put(("q1",), {}, run.save_trace("q1", some_trace()))
    with RunFolder.open(place) as run:
        [(name, path)] = run.samples()
        assert name == "../q1" and Trace.open(path).data["tokens"].values.tolist() == [[1, 2, 3], [1, 2, 4]]


def test_what_was_being_written_is_swept_up(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", {"asked": {}})
    run.put(("a",), {})
    [name] = run.storage.names("results")
    (run.path / name).with_name(unfinished_name()).write_text("{")
    (run.path / "samples" / unfinished_name()).mkdir()
    run.close()
    with RunFolder.create(tmp_path / "run", {"asked": {}}, resume=True):
        assert not [p for p in (tmp_path / "run").rglob(".*")]


def test_a_run_that_fails_before_its_first_result_leaves_nothing_behind(tmp_path: Path) -> None:
    outer = tmp_path / "a" / "run"
    with (
        pytest.raises(FloatLensError),
        RunFolder.create(outer, {"asked": {}}) as run,
        RunFolder.create(run.inside("models", "one"), {"asked": {}}),
    ):
        raise FloatLensError("the weights are damaged")
    assert list(tmp_path.iterdir()) == []
    outer.mkdir(parents=True)
    with pytest.raises(FloatLensError), RunFolder.create(outer, {"asked": {}}):
        (outer / "samples" / ".mine").write_text("mine")
        raise FloatLensError("the weights are damaged")
    assert [path.name for path in outer.rglob("*")] == ["samples", ".mine"]


def test_a_run_with_a_result_or_of_an_earlier_command_is_kept_when_it_fails(place: str) -> None:
    for key in ("a", "b"):
        with pytest.raises(FloatLensError), RunFolder.create(place, {"asked": {}}, resume=True) as run:
            run.put((key,), {})
            raise FloatLensError("the disk is full")
    assert [result.key for result in RunFolder.open(place).results()] == [("a",), ("b",)]


def test_a_run_killed_before_its_manifest_can_be_started_again(tmp_path: Path) -> None:
    (tmp_path / "run" / "samples").mkdir(parents=True)
    (tmp_path / "run" / "lock").write_text("")
    (tmp_path / "run" / unfinished_name()).write_text("{")
    RunFolder.create(tmp_path / "run", {"asked": {}}).close()


def test_a_run_at_a_url_is_the_one_on_disk_also_when_it_was_cut_off_and_damaged(
    words: Words, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    place = f"bucket://{tmp_path.name}/deep/run"
    line = [str(word) for word in (*words["trace"], "--out", place)]
    assert main.run(line) == 0
    run = RunFolder.open(place)
    for name in run.storage.names("results")[:3]:
        run.storage.remove(name)
    [tree] = run.results()[-1].trees
    chunk = next(name for name in run.storage.names(tree) if "/received/c." in name)
    run.storage.write(chunk, b"harm")
    assert main.run([*line, "--resume"]) == 0
    found = compare(RunFolder.open(undisturbed["trace"]), run)
    assert not found["settings"] and not results_differ(found) and found["same"] == TRACED
    assert run.storage.names("broken") and not run.storage.exists("lock")


# --- what a power cut and an exit leave -------------------------------------------------------------------------------


def test_a_result_reaches_the_disk_before_its_name_and_its_name_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        events.append("sync folder" if folder else "sync content")
        real_sync(descriptor)

    def replace(source: Any, target: Any) -> None:
        events.append("rename")
        real_replace(source, target)

    with RunFolder.create(tmp_path / "run", {"asked": {}}) as run:
        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "replace", replace)
        run.put(("a",), {})
        monkeypatch.undo()
    assert events == ["sync content", "rename", "sync folder"]


LEAVE = """
import sys
sys.path[:0] = {path!r}
from floatlens.store.folder import RunFolder
from tests.store.test_folder import some_trace

run = RunFolder.create("memory://run", {{"asked": {{}}}})
run.put(("q1",), {{}}, run.save_trace("q1", some_trace()))
run.write_text("results.json", "{{}}")
run.write_lines("errors.jsonl", [{{"sample": "q2", "reason": "failed"}}])
assert len(RunFolder.open("memory://run").samples()) == 1
"""


def test_a_run_at_a_url_leaves_no_temporary_folder(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    code = LEAVE.format(path=[str(root / "src"), str(root)])
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"TMPDIR": str(tmp_path)}, check=True)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_nobody_closed_is_not_locked_after_its_process(tmp_path: Path) -> None:
    code = f"from floatlens.store.folder import RunFolder; RunFolder.create({str(tmp_path / 'run')!r}, {{}})"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["manifest.json", "samples"]


def test_all_problems_of_the_data_are_in_the_run_folder(place: str) -> None:
    problems = [{"source": "nq.jsonl", "line": n, "problem": "has no question", "skipped": True} for n in range(250)]
    with RunFolder.create(place, {"asked": {}}) as run:
        run.write_lines("problems.jsonl", iter(problems))
        run.finish()
    lines = RunFolder.open(place).storage.read("problems.jsonl").splitlines()
    assert [json.loads(line) for line in lines] == problems
    with RunFolder.create(place, {"asked": {}}, resume=True) as run:
        run.write_lines("problems.jsonl", [])
        assert run.remote or not (run.path / "problems.jsonl").exists()


def test_a_damaged_trace_and_a_link_out_of_the_run_are_left_out_and_named(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", {"asked": {}})
    for name in ("good", "cut", "pipe"):
        run.save_trace(name, some_trace())
    cut, pipe = (run.trace_path(name) / "zarr.json" for name in ("cut", "pipe"))
    cut.write_text(cut.read_text()[:40])
    pipe.unlink()
    os.mkfifo(pipe)
    shutil.copytree(run.trace_path("good"), tmp_path / "mine")
    (run.path / "samples" / "linked").symlink_to(tmp_path / "mine")
    with pytest.warns(UserWarning) as warned:
        assert [path for _, path in run.samples()] == [run.trace_path("good")]
    said = "\n".join(str(warning.message) for warning in warned)
    assert said.count("left out: ") == 3
    for part in (f"{cut} is not valid JSON", f"{pipe} is not a regular file", "is a link that leads out of"):
        assert part in said
    run.close()


def test_errors_that_are_gone_are_gone_at_a_url_too(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/errors"
    with RunFolder.create(url, {"asked": {}}) as run:
        run.put(("q1",), {"error": "failed"})
        run.finish()
    assert len(RunFolder.open(url).errors()) == 1 and run.storage.exists("errors.jsonl")
    with RunFolder.create(url, {"asked": {}}, resume=True) as run:
        run.put(("q1",), {"error": None})
        run.finish()
    assert RunFolder.open(url).errors() == [] and not run.storage.exists("errors.jsonl")


def test_what_killed_workers_were_writing_is_removed_at_the_end(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", {"asked": {}}) as run:
        run.put(("q1",), {})
        (run.path / "results" / unfinished_name()).write_text("half")
        run.finish()
    assert not list((tmp_path / "run").rglob(".*"))


@pytest.mark.parametrize("name", ["exp::1", "~", "a:b", "s3:x", "run %20"])
def test_a_run_is_one_folder_of_the_name_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with RunFolder.create(f"{name}/run" if name == "~" else name, {"asked": {}}) as run:
        run.put(("q1",), {"answer": "Rusk"})
        run.write_text("results.json", "{}")
    expected = tmp_path / ("home" if name == "~" else name)
    assert [path for path in tmp_path.iterdir()] == [expected] and len(list(expected.rglob("*.json"))) == 3


def test_names_of_files_stay_the_same_and_are_never_paths() -> None:
    assert safe_name("../../etc/passwd") == "etc-passwd-3754d6cb3a38"
    assert Result(("tiny-mdm", "../nq", "q1"), {}).file == "results/e4/tiny-mdm-nq-q1-1e921fccf79c.json"


def test_a_url_is_not_a_path_and_is_shown_without_credentials() -> None:
    assert is_url("s3://bucket/run") and not is_url("C:/run") and not is_url("run")
    given = "ftp://me:secret@host/run and https://host/data.jsonl?token=abc"
    assert hide_credentials(given) == "ftp://host/run and https://host/data.jsonl?..."
    assert hash_value({"a": 1, "b": 2}) == hash_value({"b": 2, "a": 1}) != hash_value({"a": 2, "b": 1})
