"""`floatlens figure`: files, claims, JSON, and helpful errors."""

import json
from pathlib import Path

import pandas as pd
import pytest
import typer
from matplotlib.figure import Figure
from typer.testing import CliRunner

from floatlens.cli.figure import command
from floatlens.errors import FloatLensError
from floatlens.findings.finding import FINDINGS
from floatlens.store.folder import RunFolder
from floatlens.store.runs import RunTraces
from tests.findings.planted import TRACED, planted, wandering


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folders = []
    for model in ("mdm", "arm"):
        run = RunFolder.create(tmp_path_factory.mktemp("runs") / model, {"command": "trace"})
        for i in range(5):
            plan = wandering() if model == "mdm" else None
            trace = planted(
                seed=i,
                model=model,
                kind=model,
                anchors=plan,
                copying=(4, 1),
                gold=1 + i % 2,
            )
            trace.save(run.trace_path(f"sample-{i}"))
        folders.append(run.path)
    run.put(("arm", "sample-9"), {"error": "too long"})  # of the ARM
    return folders


@pytest.fixture
def run_command():
    app = typer.Typer()
    app.command()(command)
    return lambda *words: CliRunner().invoke(app, [str(w) for w in words])


@pytest.fixture
def quick_pictures(monkeypatch):
    """Drawing is slow and tested elsewhere: here only whether files are written."""
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **settings: Path(path).write_bytes(b"a picture"))


@pytest.mark.usefixtures("quick_pictures")
@pytest.mark.parametrize("name", TRACED)
def test_one_json_object_and_all_files(name, runs, run_command, tmp_path):
    result = run_command(name, *runs, "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert {r["finding"] for r in found["results"]} == {name}
    for view in FINDINGS[name].views:
        stem = name if view == FINDINGS[name].views[0] else f"{name}-{view}"
        for ending in ("png", "svg", "pdf", "parquet"):
            assert (tmp_path / f"{stem}.{ending}").is_file()
    assert json.loads((tmp_path / "claims.json").read_text())["claims"] == found["results"]
    assert set(pd.read_parquet(tmp_path / f"{name}-samples.parquet")["model"]) == {"mdm", "arm"}


@pytest.mark.usefixtures("quick_pictures")
def test_the_verdict_is_shown_in_the_terminal(runs, run_command, tmp_path):
    result = run_command(
        "drift", *runs, "--out", tmp_path, "--layer", "0", "--rule", "sigma(2)", "--sample", "sample-3"
    )
    assert result.exit_code == 0, result.output
    assert "too few" in result.output, "five samples decide nothing"
    assert "sigma(k=2)" in (tmp_path / "claims.json").read_text()
    cells = pd.read_parquet(tmp_path / "drift.parquet")
    assert set(cells["sample"]) == {"sample-3"} and set(cells["layer"]) == {0}
    numbers = pd.read_parquet(tmp_path / "drift-samples.parquet")
    assert set(numbers["layer"]) == set(range(6))  # the maps' layer does not narrow the numbers


def test_samples_that_failed_are_spoken_of(runs, run_command, tmp_path, quick_pictures):
    assert json.loads(run_command("heads", *runs, "--out", tmp_path, "--json").stdout)["failed"] == 1
    assert "1 samples failed" in run_command("heads", *runs, "--out", tmp_path).output


def test_results_go_to_the_run_when_no_place_is_named(runs, run_command):
    assert run_command("flow", runs[0]).exit_code == 0
    for name in ("figures/flow.png", "findings/flow.parquet", "claims.json"):
        assert (runs[0] / name).is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["vibes"], "unknown finding 'vibes'"),
        (["drift", "--layer", "x"], "--layer 'x' is not understood"),
        (["drift", "--rule", "loud(3)"], "anchor rule 'loud"),
        (["drift", "--rule", "first", "--rule", "top(1)"], "one --rule"),
        (["heads", "--layer", "1"], "heads has no option --layer"),
    ],
)
def test_errors_name_the_thing_and_the_way_out(words, message, runs, run_command, tmp_path):
    result = run_command(words[0], *runs, *words[1:], "--out", tmp_path)
    assert isinstance(result.exception, FloatLensError)
    assert message in str(result.exception)


def test_a_run_without_traces_is_refused(tmp_path):
    run = RunFolder.create(tmp_path / "run", {})
    with pytest.raises(FloatLensError, match="has no traces"):
        RunTraces([run])


def test_traces_are_opened_when_they_are_asked_for(runs):
    traces = RunTraces([RunFolder.open(run) for run in runs], limit=2)
    assert len(traces) == 4 and traces[0].model == "mdm" and [t.model for t in traces[2:]] == ["arm", "arm"]


@pytest.mark.usefixtures("quick_pictures")
def test_runs_in_another_setting_than_the_claims_are_named(runs, run_command, tmp_path):
    found = json.loads(run_command("drift", *runs, "--out", tmp_path, "--json").stdout)
    assert {claim["setting"] for claim in found["results"]} == {"passages", "text"}
    assert "about short questions without passages; these runs are in another setting" in found["note"]
    assert json.loads(run_command("flow", *runs, "--out", tmp_path, "--json").stdout)["note"] == ""


def test_the_footer_of_a_figure_names_the_setting():
    for name, view in (("drift", "heatmap"), ("drift", "numbers"), ("flow", "rollout")):
        footer = FINDINGS[name].figure([planted()], view=view).get_supxlabel()
        assert "Setting: questions with passages." in " ".join(footer.split()), name
