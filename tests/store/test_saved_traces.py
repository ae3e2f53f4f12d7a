"""A trace of one's own is something: saved alone or as a run, every command takes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import floatlens
from floatlens import FloatLensError
from floatlens.cli.explore import open_lenses_and_runs
from floatlens.cli.main import run
from floatlens.explorer.run_folders import RunFolders
from floatlens.options import Load


@pytest.fixture(scope="module")
def traces() -> list[floatlens.Trace]:
    lens = floatlens.load("tiny-mdm")
    return [lens.trace(question, max_new_tokens=3) for question in ("Where was Ada born?", "Who is Bob?")]


@pytest.fixture(scope="module", params=["trace", "run"])
def saved(
    request: pytest.FixtureRequest, traces: list[floatlens.Trace], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("saved") / "mine"
    return traces[0].save(path) if request.param == "trace" else floatlens.save_run(path, traces)


def test_figure_and_report_take_it(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(path for path in saved.rglob("*") if "samples" in path.parts or (saved / "zarr.json").exists())
    assert run(["figure", "absorption", str(saved), "--json"]) == 0
    target = Path(json.loads(capsys.readouterr().out)["run"])
    assert list(target.rglob("absorption.png")) and all(path.exists() for path in before)
    report = saved.parent / "report.html"
    assert run(["report", str(saved), "--out", str(report)]) == 0
    assert "tiny-mdm" in report.read_text(encoding="utf-8")
    found = saved if (saved / "zarr.json").exists() else next((saved / "samples").iterdir())
    assert floatlens.Trace.open(found).model == "tiny-mdm"  # and still opens after the figures


def test_explore_takes_it(saved: Path, traces: list[floatlens.Trace]) -> None:
    lenses, runs = open_lenses_and_runs([str(saved)], Load())
    assert not lenses and runs == [saved]
    [contents] = RunFolders(runs).contents()
    assert contents["samples"][0]["model"] == "tiny-mdm" and contents["samples"][0]["question"]
    assert RunFolders(runs).film(0, 0)["model"] == "tiny-mdm"


def test_a_run_of_own_traces_says_so_and_keeps_their_ids(traces: list[floatlens.Trace], tmp_path: Path) -> None:
    named = floatlens.Trace(traces[0].data.assign_attrs(sample_id="ada"))
    folder = floatlens.save_run(tmp_path / "mine", [named, traces[1]])
    assert json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["command"] == "save_run"
    found = {
        trace.data.attrs["sample_id"]: trace for trace in map(floatlens.Trace.open, (folder / "samples").iterdir())
    }
    assert set(found) == {"ada", "trace-1"} and found["trace-1"].question == traces[1].question
    with pytest.raises(FloatLensError, match="is already a run"):
        floatlens.save_run(folder, traces)
    with pytest.raises(FloatLensError, match="two traces of tiny-mdm have the sample_id 'ada'"):
        floatlens.save_run(tmp_path / "other", [named, named])
    with pytest.raises(FloatLensError, match="there are no traces to save"):
        floatlens.save_run(tmp_path / "other", [])
    assert not (tmp_path / "other").exists()


def test_links_beside_the_arrays_of_a_saved_trace_are_refused(traces: list[floatlens.Trace], tmp_path: Path) -> None:
    secret, trace = tmp_path / "secret", traces[0].save(tmp_path / "trace")
    secret.write_text("secret", encoding="utf-8")
    (trace / "answers.parquet").symlink_to(secret)
    assert run(["figure", "absorption", str(trace), "--out", str(tmp_path / "figures")]) == 2
    assert run(["report", str(trace), "--out", str(tmp_path / "report.html")]) == 2
