"""The run folders on show: their samples by number, and no other files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from floatlens.explorer.film import film
from floatlens.explorer.guard import HEADER
from floatlens.explorer.run_folders import names, runs_in
from floatlens.explorer.server import first
from floatlens.store.folder import RunFolder
from floatlens.trace.trace import Trace
from tests.explorer.app_client import TOKEN, app_of, client
from tests.explorer.traces import tiny


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    made = RunFolder.create(tmp_path / "runs" / "mdm", {"command": "trace"})
    for name in ("b", "../../a"):
        trace = tiny("tiny-mdm")
        Trace(trace.data.assign_attrs(sample_id=name)).save(made.trace_path(name))
    return made


def served(*runs: Path) -> TestClient:
    return client(app_of(runs=runs))


def get(to: TestClient, path: str) -> tuple[int, dict | list]:
    sign = "&" if "?" in path else "?"
    answer = to.get(f"{path}{sign}token={TOKEN}")
    return answer.status_code, answer.json()


def test_samples_are_listed_and_shown_by_number(run: RunFolder) -> None:
    to = served(run.path)
    code, [listed] = get(to, "/api/store")
    assert code == 200 and listed["name"] == "mdm" and listed["run"] == 0
    assert {s["id"] for s in listed["samples"]} == {"b", "../../a"}
    for sample in listed["samples"]:
        code, shown = get(to, f"/api/film?run=0&sample={sample['sample']}")
        assert code == 200 and shown == json.loads(json.dumps(film(Trace.open(run.trace_path(sample["id"])))))
        assert sample["question"] == shown["question"] and sample["answer"] == shown["output"]


@pytest.mark.parametrize(
    "asked",
    [
        "run=0&sample=2", "run=1&sample=0", "run=-1&sample=0", "run=0", "sample=0", "", "run=0&sample=b",
        "run=../..&sample=0", "run=0&sample=..%2f..%2fetc%2fpasswd", "run=0&sample=0x0", "run=0&sample=٠",
        "run=0&sample=99999999999999999999", "run=%00&sample=0",
    ],
)  # fmt: skip
def test_nothing_but_a_number_of_the_list_is_a_sample(run: RunFolder, asked: str) -> None:
    code, answer = get(served(run.path), f"/api/film?{asked}")
    assert code == 404 and isinstance(answer, dict) and "\n" not in answer["error"]


def test_links_out_of_a_run_are_not_followed(run: RunFolder, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    shutil.copytree(run.trace_path("b"), outside)
    (run.path / "samples" / "0-linked").symlink_to(outside)
    inner = run.path / "samples" / "1-inner"
    shutil.copytree(run.trace_path("b"), inner)
    shutil.rmtree(inner / "received")
    (inner / "received").symlink_to(outside / "received")
    loop = run.path / "samples" / "2-loop"
    loop.symlink_to(loop)
    late = served(run.path)
    _, [listed] = get(late, "/api/store")
    assert len(listed["samples"]) == 3 and listed["samples"][0]["id"] == "b"
    code, answer = get(late, "/api/film?run=0&sample=0")
    assert code == 404 and "received is a link" in answer["error"]  # type: ignore[call-overload]
    code, answer = get(late, "/api/trace?run=0&sample=0")
    assert code == 404 and "received is a link" in answer["error"], "nor put into an archive"  # type: ignore[call-overload]
    assert get(late, "/api/film?run=0&sample=1")[0] == 200
    assert late.get("/", headers={HEADER: TOKEN}).status_code == 200
    shutil.rmtree(inner)
    late, [listed] = served(run.path), get(served(run.path), "/api/store")[1]
    get(late, "/api/store")
    swapped = run.trace_path("../../a") if listed["samples"][0]["id"] != "b" else run.trace_path("b")
    shutil.rmtree(swapped)
    swapped.symlink_to(outside)
    code, answer = get(late, "/api/film?run=0&sample=0")
    assert code == 404 and "leads out of" in answer["error"]  # type: ignore[call-overload]


def test_a_sample_keeps_its_number_while_the_run_grows(run: RunFolder) -> None:
    to = served(run.path)
    _, [before] = get(to, "/api/store")
    Trace(tiny("tiny-mdm").data.assign_attrs(sample_id="0")).save(run.trace_path("0"))
    _, [after] = get(to, "/api/store")
    assert after["samples"][:2] == before["samples"] and after["samples"][2]["id"] == "0"


def shorten_chunks(sample: Path) -> None:
    for chunk in (sample / "received").glob("c.*"):
        if chunk.is_file():
            chunk.write_bytes(chunk.read_bytes()[:20])


def garble_attributes(sample: Path) -> None:
    about = json.loads((sample / "zarr.json").read_text())
    about["attributes"] |= {"vocabulary": "[]", "regions": '{"a": 1}', "question": ["<script>"], "prompt_length": "x"}
    (sample / "zarr.json").write_text(json.dumps(about))


def cut_metadata(sample: Path) -> None:
    text = (sample / "zarr.json").read_text()
    (sample / "zarr.json").write_text(text[: len(text) // 2])


@pytest.mark.parametrize(
    "break_it",
    [lambda sample: shutil.rmtree(sample / "tokens"), shorten_chunks, garble_attributes, cut_metadata, shutil.rmtree],
)
def test_a_broken_sample_is_one_sentence_and_the_page_still_opens(run: RunFolder, break_it: Callable) -> None:
    to = served(run.path)
    _, [listed] = get(to, "/api/store")
    for name in ("b", "../../a"):
        break_it(run.trace_path(name))
    for sample in listed["samples"]:
        code, answer = get(to, f"/api/film?run=0&sample={sample['sample']}")
        assert code == 404 and isinstance(answer, dict) and "\n" not in answer["error"]
    assert get(to, "/api/store")[0] == 200
    assert to.get("/", headers={HEADER: TOKEN}).status_code == 200


def test_a_sample_that_was_cut_off_before_the_start_is_listed_by_its_folder(run: RunFolder) -> None:
    cut_metadata(run.trace_path("b"))
    to = served(run.path)
    code, [listed] = get(to, "/api/store")
    assert code == 200 and len(listed["samples"]) == 2
    assert to.get("/", headers={HEADER: TOKEN}).status_code == 200


def test_the_page_starts_with_the_same_question_of_every_run(run: RunFolder, tmp_path: Path) -> None:
    other = RunFolder.create(tmp_path / "runs" / "arm", {"command": "trace"})
    Trace(tiny("tiny-arm").data.assign_attrs(sample_id="b")).save(other.trace_path("b"))
    shown = served(other.path, run.path).get("/", headers={HEADER: TOKEN}).text
    data = shown.partition('id="explorer-data">')[2].partition("</script>")[0]
    assert [made["model"] for made in json.loads(data)["films"]] == ["tiny-mdm", "tiny-arm"]


def test_a_study_opens_with_its_text_without_and_with_the_token_of_the_sink() -> None:
    several = [{"sample": n, "id": name, "diffusion": True} for n, name in enumerate(("with", "without"))]
    other = {"run": 1, "samples": [{"sample": 0, "id": "with", "diffusion": False}]}
    assert first([{"run": 0, "samples": several}, other]) == [(0, 1), (0, 0)]


def test_a_folder_of_runs_stands_for_its_runs(run: RunFolder, tmp_path: Path) -> None:
    assert runs_in(run.path) == [run.path] and runs_in(tmp_path / "runs") == [run.path]
    study = RunFolder.create(tmp_path / "study", {"command": "study"})
    assert runs_in(study.path) == [study.path]  # it has only begun
    (study.path / "models").mkdir()
    shutil.copytree(run.path, study.path / "models" / "tiny-mdm")
    assert runs_in(study.path) == [study.path / "models" / "tiny-mdm"]
    assert runs_in(study.path / "models" / "tiny-mdm" / "samples") == []
    switch = study.path / "models" / "tiny-mdm" / "switch"
    shutil.copytree(run.path, switch)
    assert runs_in(study.path) == [switch, study.path / "models" / "tiny-mdm"]
    assert names([Path("a/x"), Path("b/x"), Path("y")]) == ["a/x", "b/x", "y"]
