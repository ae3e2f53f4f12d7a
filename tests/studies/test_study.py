"""A study of the bundled models: all parts run once, nothing is lost, and there is a report."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest

import floatlens as fl
from floatlens.cli.main import run as command_line
from floatlens.errors import FloatLensError
from floatlens.evaluation.sources import CLOSED, OPEN, SHORT
from floatlens.findings.finding import FINDINGS, Finding, register_finding
from floatlens.findings.samples import split_id
from floatlens.interventions.run import in_force
from floatlens.lens import Lens
from floatlens.options import Scope
from floatlens.store.diff import compare, results_differ
from floatlens.store.folder import RunFolder
from floatlens.store.runs import all_runs, model_runs
from floatlens.store.storage import Storage
from floatlens.studies.parts import stress_levels
from floatlens.studies.plan import StudyPlan

QUICK = {"data": "world:fresh", "max_new_tokens": 8, "batch_size": 8}


class Counter:
    """What was generated: model, prompt and settings of every row of every batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[tuple[str, tuple[int, ...], str, str]] = []
        whole = Lens.steps

        def steps(lens: Lens, batch: Any, settings: Any) -> Any:
            changes = " ".join(map(str, in_force(lens)))
            self.rows += [
                (lens.name, tuple(prompt.ids), f"{settings} {prompt.script}", changes) for prompt in batch.prompts
            ]
            return whole(lens, batch, settings)

        monkeypatch.setattr(Lens, "steps", steps)


@pytest.mark.timeout(1800)  # a minute of work, on a machine that may be busy
def test_every_finding_on_two_models_with_nothing_done_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter(monkeypatch)
    sizes = {"traces": 2, "knowledge": 3, "stress": 2, "causes": 2, "short": 2}
    models = ["tiny-mdm", "tiny-arm"]
    data = ["world:fresh", "world:hops"]
    broken = ["mask-anchors(rule=top({n})) @ 1"]
    given: dict[str, Any] = {"data": data, "sizes": sizes, "interventions": broken, "max_new_tokens": 8, "beyond": True}
    found = fl.study(models, out=tmp_path / "s", **given)  # type: ignore[operator]
    assert not found.failed
    plain = [row for row in counter.rows if not row[3]]
    again = len(plain) - len(set(plain))
    assert again == len(models) * sizes["causes"], (
        "only causes runs the model as it is once more, to look at every step"
    )

    answers = pd.read_parquet(found.path / "answers.parquet")
    assert answers["error"].isna().all()
    traces = [fl.Trace.open(path) for folder in model_runs(found.path) for _, path in folder.samples()]
    assert len(traces) == len(models) * len(data) * (sizes["traces"] + sizes["short"])
    by_setting = {split_id(str(t.data.attrs["sample_id"]))[1]: t for t in traces}
    assert not any(region.name.startswith("doc") for region in by_setting[SHORT].regions)
    assert any(region.name.startswith("doc") for region in by_setting[OPEN].regions)
    traced = {(t.model, name): t.answer for t in traces if split_id(name := str(t.data.attrs["sample_id"]))[1] == OPEN}
    open_book = answers[answers["condition"] == OPEN].set_index(["model", "data", "id"])["answer"]
    assert len(open_book) == len(models) * len(data) * sizes["knowledge"]
    for (model, sample), text in traced.items():
        label, _, number = sample.split(", ")
        assert open_book[model, label, number] == text.strip()
    # as many masks as everywhere else is the setting of Table 1
    usual = answers[answers["condition"] == "masks=8"]
    assert len(usual) == len(models) * 2
    assert all(open_book[row["model"], row["data"], row["id"]] == row["answer"] for _, row in usual.iterrows())

    claims = json.loads((found.path / "claims.json").read_text())["claims"]
    assert {claim["finding"] for claim in claims} == set(FINDINGS.names())
    assert len(found.to_dataframe()) == len(claims)
    page = found.report.read_text()
    for name in FINDINGS:
        assert f'<section id="{name}"' in page
        assert all(
            (found.path / "figures" / f"{name}.{ending}").exists() for ending in ("png", "svg", "pdf", "parquet")
        )
    assert (found.path / "table1.md").read_text().count("tiny-mdm") == 2
    assert len(page) < 15e6


def test_a_part_that_fails_is_told_in_its_section_and_done_by_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {**QUICK, "out": tmp_path / "s", "only": ["knowledge", "stress"], "limit": 6}
    with monkeypatch.context() as broken:

        def fail(*_: object) -> None:
            raise RuntimeError("the <b>disk</b> is full")

        broken.setattr("floatlens.studies.parts.stress_levels", fail)
        found = fl.study("tiny-arm", **given)  # type: ignore[operator]
    assert found.failed["tiny-arm, stress"] == "RuntimeError: the <b>disk</b> is full"
    assert (found.path / "figures" / "knowledge.png").exists()
    page = found.report.read_text()
    assert "the &lt;b&gt;disk&lt;/b&gt; is full" in page and "<b>disk" not in page
    counter = Counter(monkeypatch)
    again = fl.study("tiny-arm", **given, resume=True)  # type: ignore[operator]
    assert not again.failed
    assert {claim["finding"] for claim in again.claims} == {"knowledge", "stress"}
    answers = pd.read_parquet(found.path / "answers.parquet")
    closed = answers.loc[answers["condition"] == CLOSED, "prompt_tokens"]
    assert min(len(ids) for _, ids, *_ in counter.rows) > closed.max(), "a question of Table 1 was asked again"
    counter.rows.clear()
    last = fl.study("tiny-arm", **given, resume=True)  # type: ignore[operator]
    assert not counter.rows, "a finished study was worked on again"
    assert last.claims == again.claims


def test_a_resumed_study_may_be_asked_for_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is then the smaller study, from what the larger one has done; stress tests draw their passages again."""
    given: dict[str, Any] = {
        **QUICK,
        "max_new_tokens": 4,
        "only": ["drift", "stress", "knowledge"],
        "stresses": ["noise"],
    }
    more: dict[str, Any] = {**given, "data": ["world:fresh", "world:hops"], "limit": 5}
    less: dict[str, Any] = {**given, "only": ["drift", "stress"], "limit": 3}
    fl.study(["tiny-mdm", "tiny-arm"], out=tmp_path / "s", **more)  # type: ignore[operator]
    with monkeypatch.context() as counted:
        counter = Counter(counted)
        found = fl.study("tiny-mdm", out=tmp_path / "s", resume=True, **less)  # type: ignore[operator]
        again = [row for row in counter.rows if row[2].endswith(" None")]  # without texts that are given
    fresh = fl.study("tiny-mdm", out=tmp_path / "f", **less)  # type: ignore[operator]
    assert not found.failed and found.claims == fresh.claims
    pd.testing.assert_frame_equal(*(pd.read_parquet(one.path / "answers.parquet") for one in (found, fresh)))
    homes = [model_runs(one.path)[0] for one in (found, fresh)]
    assert len(model_runs(found.path)) == 1 and "tiny-arm" not in found.report.read_text()
    assert [name for name, _ in homes[0].samples()] == [name for name, _ in homes[1].samples()]
    assert len(again) == 3 * 4, "only three questions with 1, 2, 4 and 8 distractors, which are others"
    for larger in ({**less, "limit": 4}, {**less, "only": given["only"]}, {**less, "data": more["data"]}):
        with pytest.raises(FloatLensError, match="started with other settings"):
            fl.study("tiny-mdm", out=tmp_path / "s", resume=True, **larger)  # type: ignore[operator]


def test_a_resumed_study_asks_questions_that_failed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {**QUICK, "out": tmp_path / "s", "only": ["knowledge"], "limit": 3}
    whole = Lens.generate

    def generate(lens: Lens, prompts: Any, **settings: Any) -> Any:
        if len(prompts) > 1 or not prompts[0].passages:
            raise RuntimeError("the device is gone")
        return whole(lens, prompts, **settings)

    with monkeypatch.context() as broken:
        broken.setattr(Lens, "generate", generate)
        fl.study("tiny-arm", **given)  # type: ignore[operator]
    [home] = model_runs(tmp_path / "s")
    assert len(home.errors()) == 3
    fl.study("tiny-arm", **given, resume=True)  # type: ignore[operator]
    assert not home.errors() and pd.read_parquet(tmp_path / "s" / "answers.parquet")["error"].isna().all()


def test_the_command_prints_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["study", "tiny-arm", "--data", "world:fresh", "--only", "knowledge", "--max-new-tokens", "8"]
    code = command_line([*words, "--limit", "12", "--jobs", "1", "--out", str(tmp_path / "s"), "--json"])
    shown, said = capsys.readouterr()
    printed = json.loads(shown)
    assert code == 0 and printed["report"].endswith("report.html")
    first, probe, work, time_, *_ = said.splitlines()
    assert (first, probe) == ("Study of tiny-arm on world:fresh: knowledge", "Timing a few questions of each model …")
    assert work == "24 answers without and with passages."
    assert re.match(r"This takes about [\d.]+ (s|min|h) on this machine; --limit N makes", time_)
    entry = next(each for each in printed["results"] if each["condition"] == OPEN)
    assert entry["n"] == 12 and 0 <= entry["accuracy"] <= 1 and set(entry["intervals"]["f1"])


def test_a_study_has_the_gold_passage_at_each_position(tmp_path: Path) -> None:
    given = {"data": "world:fresh", "only": ["flow"], "max_new_tokens": 4, "limit": 1}
    fl.study("tiny-arm", out=tmp_path / "s", passages=5, gold_at=[1, 5], **given)  # type: ignore[operator]
    [home] = model_runs(tmp_path / "s")
    traces = [fl.Trace.open(path) for _, path in home.samples()]
    assert sorted(tuple(trace.gold) for trace in traces) == [("doc1",), ("doc5",)]


def test_figure_gives_the_numbers_and_the_setting_of_the_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {"data": "world:fresh", "only": ["absorption", "heads"], "max_new_tokens": 8, "limit": 2}
    found = fl.study(["tiny-mdm", "tiny-arm"], out=tmp_path / "s", **given)  # type: ignore[operator]
    capsys.readouterr()
    assert command_line(["figure", "absorption", str(tmp_path / "s"), "--out", str(tmp_path / "f"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    several = [[c for c in claims if c["finding"] == "absorption"] for claims in (found.claims, printed["results"])]
    numbers = [{(c["id"], *c["models"]): (c["value"], c["n"], c["setting"]) for c in claims} for claims in several]
    assert numbers[0] == numbers[1] and {setting for *_, setting in numbers[0].values()} == {"short"}
    assert printed["note"] == ""


def test_what_cannot_work_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    for given, message in (
        ({"models": []}, "needs at least one model"),
        ({"models": "no-such-model"}, "no-such-model"),
        ({"data": "world:nothing"}, "unknown data set 'world:nothing'"),
        ({"budget": "10m"}, "unknown option 'budget'"),
        ({"setting": "long"}, "unknown setting 'long'"),
        ({"only": ["everything"]}, "unknown finding 'everything'"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
    ):
        with pytest.raises(FloatLensError, match=message):
            fl.study(**{"models": "tiny-arm", "data": "world:fresh", "out": tmp_path / "s", **given})  # type: ignore[operator]
    assert not (tmp_path / "s").exists()


def test_a_study_at_a_url_is_that_of_a_disk_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {**QUICK, "only": ["drift", "knowledge", "causes"], "limit": 2, "max_new_tokens": 4}
    given["interventions"] = ["mask-anchors(rule=top(1))"]
    url = f"memory://{tmp_path.name}/study"
    with monkeypatch.context() as interrupted:

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        interrupted.setattr("floatlens.studies.study.analyse_findings", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fl.study("tiny-arm", out=url, **given)  # type: ignore[operator]
    with pytest.raises(FloatLensError, match="is already a run; use --resume"):
        fl.study("tiny-arm", out=url, **given)  # type: ignore[operator]
    with monkeypatch.context() as counted:
        counter = Counter(counted)
        found = fl.study("tiny-arm", out=url, resume=True, **given)  # type: ignore[operator]
        assert not counter.rows, "a question that was answered before the interruption was asked again"
    disk = fl.study("tiny-arm", out=tmp_path / "s", **given)  # type: ignore[operator]
    assert not found.failed and found.location == url and '<section id="drift"' in found.report.read_text()
    storage = Storage(url)
    assert storage.read("claims.json") == (disk.path / "claims.json").read_bytes()
    on_disk = {name for name in Storage(disk.path).names() if not name.startswith("models/")}
    at_url = {name for name in storage.names() if not name.startswith("models/")}
    assert at_url == on_disk
    assert len(all_runs(RunFolder.open(url))) == len(all_runs(RunFolder.open(disk.path))) == 4  # with prose
    same = compare(RunFolder.open(url), RunFolder.open(disk.path))
    assert same["same"] and not results_differ(same)


def test_a_finding_of_a_plugin_is_studied_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import xarray as xr

    _ = FINDINGS["drift"]  # the built-in ones are loaded before a copy is made
    monkeypatch.setattr(FINDINGS, "_entries", dict(FINDINGS._entries))

    class Width(Finding):
        name, title, question = "width", "Width", "How wide?"
        labels: ClassVar = {"entropy": "entropy (nats)"}

        def measure_one(self, trace: Any) -> xr.Dataset:
            return xr.Dataset({"entropy": trace.data["entropy"].mean(["step", "head"])})

    register_finding(Width())
    found = fl.study(  # type: ignore[operator]
        "tiny-arm", data="world:fresh", only=["width"], limit=2, max_new_tokens=2, out=tmp_path / "s"
    )
    assert not found.failed
    assert '<section id="width"' in found.report.read_text() and (found.path / "figures" / "width.png").exists()
    [home] = model_runs(found.path)
    assert [split_id(name)[1] for name, _ in home.samples()] == [SHORT, SHORT]


def test_a_stress_without_suitable_data_is_noted() -> None:
    scope = Scope(only=["stress"], sizes={"stress": 2})
    plan = StudyPlan(models=("m",), data=("world:fresh",), scope=scope)
    made, notes = stress_levels(plan, plan.sources())
    assert ("layout", "world:fresh") not in made
    assert any(note.startswith("stress layout was left out: ") for note in notes)
    only = replace(plan, scope=replace(scope, stresses=("position",)))
    assert {name for name, _ in stress_levels(only, only.sources())[0]} == {"position"}


def test_causes_of_a_model_without_attention_are_left_out_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "softmax attention, and a state-space model has none"
    given: dict[str, Any] = {"data": "world:fresh", "only": ["causes"], "sizes": {"causes": 2}}
    found = fl.study("tiny-ssm", out=tmp_path / "s", **given)  # type: ignore[operator]
    assert [reason in note for note in found.notes] == [True]
    assert found.failed.keys() == {"causes"}, "there are no answers, and no model or part failed"
    assert reason in found.report.read_text()
    words = ["ablate", "tiny-ssm", "--data", "world:fresh", "--limit", "2", "--intervention", "mask-anchors"]
    assert command_line([*words, "--out", str(tmp_path / "a")]) == 2
    assert reason in capsys.readouterr().err and not (tmp_path / "a").exists()


def test_the_demo_replaces_an_earlier_demo_and_nothing_else(tmp_path: Path) -> None:
    from floatlens.cli.demo import MODELS, clear

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(FloatLensError, match="something other than a demo"):
        clear(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.tex").exists()
    earlier = tmp_path / "demo"
    earlier.mkdir()
    (earlier / "manifest.json").write_text(json.dumps({"asked": {"models": list(MODELS)}}))
    clear(earlier)
    assert not earlier.exists()
