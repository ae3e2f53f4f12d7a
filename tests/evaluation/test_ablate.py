"""Ablations measure divergence, surprise, agreement and form as defined, also after a run is resumed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import floatlens as fl
from floatlens.cli.main import run as command
from floatlens.data.read import read
from floatlens.data.sample import Sample
from floatlens.evaluation.ablate import (
    MEASURES,
    Ablation,
    ablate,
    effects,
    gold_surprise,
    replay,
    well_formed,
)
from floatlens.evaluation.answers import AnswerRecord, answers_table
from floatlens.evaluation.conditions import conditions, standard
from floatlens.evaluation.loop import Batch
from floatlens.findings.causes import causes
from floatlens.interventions.intervention import parse_intervention
from floatlens.lens import Generation
from floatlens.options import Run, Sampling
from floatlens.store.engine import Engine
from floatlens.store.folder import RunFolder

NEW = 6
HOW: dict[str, Any] = {"sampling": Sampling(max_new_tokens=NEW), "run": Run(batch_size=4)}
MODELS = ("tiny-arm", "tiny-mdm", "tiny-dream")


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    return list(read("world:fresh", limit=5, passages=2))


@pytest.fixture(scope="module")
def lenses() -> dict[str, fl.Lens]:
    return {name: fl.load(name) for name in MODELS}


def prompts(lens: fl.Lens, samples: list[Sample]) -> list[Any]:
    return [lens.prompt(s.question, s.passages, answers=s.answers) for s in samples]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("spec", [None, "mask-anchors(top(3))", "pin-anchors(rule=top(2))"])
def test_a_replay_of_its_own_trajectory_says_what_the_sampler_said(
    model: str, spec: str | None, lenses: dict[str, fl.Lens], samples: list[Sample]
) -> None:
    lens = lenses[model]
    batch, settings = lens._batch(prompts(lens, samples)[:3]), lens.settings(max_new_tokens=NEW)
    with lens.intervene(*([spec] if spec else [])):
        steps = list(lens.steps(batch, settings))
        again = list(replay(lens, batch, settings, [step.tokens_BT for step in steps]))
    compared = 0
    for step, (first, logits) in zip(steps, again, strict=True):
        for row, column in step.committed_BT.nonzero().tolist():
            said = logits[row, column - first].softmax(-1)[step.after_BT[row, column]]
            assert float(said) == pytest.approx(float(step.confidence_BT[row, column]), abs=1e-5)
            compared += 1
    assert compared >= 6


@pytest.mark.parametrize("model", MODELS)
def test_the_surprise_of_the_gold_answer_is_that_of_its_tokens_one_after_another(
    model: str, lenses: dict[str, fl.Lens], samples: list[Sample]
) -> None:
    """By hand, one prompt at a time and without a cache."""
    lens = lenses[model]
    asked = prompts(lens, samples)[:3]
    gold = [lens.tokenizer(s.answers[0], add_special_tokens=False)["input_ids"][:NEW] for s in samples[:3]]
    assert len({len(ids) for ids in gold}) > 1
    found = gold_surprise(lens, lens._batch(asked), lens.settings(max_new_tokens=NEW), gold)
    for prompt, ids, value in zip(asked, gold, found, strict=True):
        total = 0.0
        for place, token in enumerate(ids):
            x = [*prompt.ids, *ids[:place]]
            if lens.family.kind == "mdm":
                x += [lens.mask_id] * (NEW - place)
            with torch.no_grad():
                logits = lens.model(input_ids=torch.tensor([x]), use_cache=False).logits[0]
            row = len(prompt.ids) + place - (0 if model == "tiny-mdm" else 1)
            total -= float(logits[row].log_softmax(-1)[token])
        assert value == pytest.approx(total / len(ids), abs=1e-4)


@pytest.fixture(scope="module")
def answers(lenses: dict[str, fl.Lens], samples: list[Sample]) -> pd.DataFrame:
    specs = ["scale-attention(1, positions=0)", "mask-anchors(top({n}))", "mask-positions(region=doc9)"]
    return ablate([lenses["tiny-mdm"]], {"fresh": samples}, specs, doses=[1, 3], seeds=[0], **HOW)


def test_an_intervention_that_does_nothing_changes_nothing(answers: pd.DataFrame) -> None:
    nothing = answers[answers["condition"] == "scale-attention(factor=1, positions=0)"]
    plain = answers[answers["condition"] == "none"]
    assert (nothing["agreement"] == 1).all() and nothing["kl"].max() < 1e-6
    for name in ("accuracy", "f1", "ended", "well_formed"):
        np.testing.assert_array_equal(nothing[name].to_numpy(), plain[name].to_numpy())
    np.testing.assert_allclose(nothing["gold_nll"].to_numpy(), plain["gold_nll"].to_numpy(), atol=1e-5)
    masked = answers[answers["condition"] == "mask-anchors(rule=top(n=3))"]
    assert masked["kl"].min() > 0


def test_every_dose_has_its_control_and_every_question_its_row(answers: pd.DataFrame, samples: list[Sample]) -> None:
    counts = answers.groupby(["of", "role"]).size()
    for dose in (1, 3):
        name = f"mask-anchors(rule=top(n={dose}))"
        assert counts[name, "intervention"] == counts[name, "control"] == len(samples)
    assert set(answers.loc[answers["role"] == "control", "condition"]) >= {"mask-anchors(rule=top(n=1), random=0)"}


def test_a_condition_that_fails_keeps_its_rows_with_the_reason(answers: pd.DataFrame, samples: list[Sample]) -> None:
    failed = answers[answers["condition"] == "mask-positions(region=doc9)"]
    assert len(failed) == len(samples) and failed["error"].str.contains("doc9").all()
    assert failed["accuracy"].isna().all()
    assert answers[answers["role"] == "plain"]["error"].isna().all()


def test_the_answer_is_the_one_that_generation_gives(
    answers: pd.DataFrame, lenses: dict[str, fl.Lens], samples: list[Sample]
) -> None:
    lens = lenses["tiny-mdm"]
    found = answers[answers["condition"] == "mask-anchors(rule=top(n=3))"].set_index("id")
    with lens.intervene("mask-anchors(top(3))"):
        for sample, prompt in zip(samples[:2], prompts(lens, samples), strict=False):
            alone = lens.generate(prompt, max_new_tokens=NEW)
            assert found.loc[sample.id, "answer"] == alone.text
            assert found.loc[sample.id, "confidence"] == pytest.approx(alone.confidence, abs=1e-4)


def test_a_killed_study_resumes_with_the_same_numbers(
    tmp_path: Path, lenses: dict[str, fl.Lens], samples: list[Sample]
) -> None:
    specs, lens = ["mask-anchors(top(2))", "soft-cap(3)"], lenses["tiny-arm"]
    whole = ablate([lens], {"fresh": samples}, specs, seeds=[1], **HOW)
    folder = RunFolder.create(tmp_path / "run", {"command": "ablate"})

    class Killed(BaseException):
        pass

    count = 0

    def watch(about: str, total: int | None) -> Any:
        def done() -> None:
            nonlocal count
            count += 1
            if count == 7:
                raise Killed

        return done

    with pytest.raises(Killed):
        ablate([lens], {"fresh": samples}, specs, seeds=[1], **HOW, folder=folder, watch=watch)
    assert 7 <= len(folder.results()) < len(whole)
    resumed = ablate([lens], {"fresh": samples}, specs, seeds=[1], **HOW, folder=folder)
    pd.testing.assert_frame_equal(resumed, whole)


def test_what_failed_is_tried_again_when_asked(
    tmp_path: Path, lenses: dict[str, fl.Lens], samples: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    lens, whole = lenses["tiny-arm"], fl.Lens.steps
    hit = samples[2].question

    def steps(lens: fl.Lens, batch: Any, *given: Any) -> Any:
        if any(prompt.question == hit for prompt in batch.prompts):
            raise RuntimeError("the device is gone")
        return whole(lens, batch, *given)

    with monkeypatch.context() as broken, RunFolder.create(tmp_path / "run", {"command": "ablate"}) as folder:
        broken.setattr(fl.Lens, "steps", steps)
        failed = ablate([lens], samples, ["soft-cap(3)"], **HOW, folder=folder)
        assert set(failed.loc[failed["error"].notna(), "id"]) == {samples[2].id} and len(folder.errors()) == 2
    with RunFolder.create(tmp_path / "run", {"command": "ablate"}, resume=True) as folder:
        again = ablate([lens], samples, ["soft-cap(3)"], **HOW, folder=folder)
        assert again["error"].isna().all() and not folder.errors()


def test_lenses_stay_in_their_process(lenses: dict[str, fl.Lens], samples: list[Sample]) -> None:
    with pytest.raises(fl.FloatLensError, match=r"pass the name of the model \(tiny-arm\) instead of a lens"):
        ablate([lenses["tiny-arm"]], samples, ["soft-cap(3)"], engine=Engine(workers=2))


def test_a_batch_is_taken_apart_by_questions_and_then_by_conditions(
    lenses: dict[str, fl.Lens], samples: list[Sample]
) -> None:
    chosen = conditions(["mask-anchors(top({n}))"], [1, 2], seeds=[0])
    made = Ablation("tiny-arm", "data", "ablation", (), Sampling(max_new_tokens=NEW), conditions=tuple(chosen))
    cases = [case for sample in samples[:2] for case in made.cases(lenses["tiny-arm"], sample)]
    some = frozenset(case.record.key for case in cases if case.record.condition != "none")

    parts = made.divide(cases)
    assert [{case.record.condition for case in part} for part in parts] == [{each.name} for each in chosen]
    batch = Batch(made, cases, some)
    parts = [part for one in batch.split() for part in one.split()]
    assert len(parts) == 2 * (len(chosen) - 1) and all(len(part.split()) == 1 for part in parts)
    assert {case.record.key for part in parts for case in part.cases} == some


def test_the_standard_study_holds_what_the_claims_need() -> None:
    found = conditions(standard(32))
    assert found[0].name == "none"
    layers = [c.dose for c in found if c.group.startswith("mask-anchors(rule=sigma") and c.role == "intervention"]
    assert layers[0] == 0 and layers[-1] == 31 and len(layers) == 6
    for name in ("pin-anchors", "ablate-heads(heads=top(2, by=retrieval), layers=deep)", "mask-anchors(rule=top(n=4)"):
        matching = [c for c in found if c.of.startswith(name)]
        assert {c.role for c in matching} == {"intervention", "control"}
    for condition in found[1:]:
        assert str(parse_intervention(condition.name)) == condition.name


def test_well_formed_answers_end_and_do_not_stutter() -> None:
    assert well_formed(Generation("the old town", [5, 6, 7], 3, 0.5, True))
    assert not well_formed(Generation("the old town", [5, 6, 7], 3, 0.5, False))
    assert not well_formed(Generation("", [], 1, 0.5, True))
    assert not well_formed(Generation("town Town, town", [7, 7, 7], 3, 0.5, True))
    assert not well_formed(Generation("town", [7, 2], 3, 0.5, True), special=[2])


# --- the finding, on planted answers ----------------------------------------------------------------------------------


def planted(scores: dict[str, dict[str, float]], n: int = 40) -> pd.DataFrame:
    """Answers of an MDM `m` and an ARM `a`: share of right (and well-formed) answers under each condition."""
    names = [name for by_model in scores.values() for name in by_model]
    changed = [name for name in dict.fromkeys(names) if "random" not in name and name != "none"]
    kinds = {c.name: c for c in conditions(changed, seeds=[0])}
    rows = []
    for model, by_condition in scores.items():
        for name, share in by_condition.items():
            condition = kinds[name]
            for i in range(n):
                right = float((i * 7) % n < share * n)
                row = AnswerRecord(f"q{i}", "?", ["x"], model, "d", name, kind="mdm" if model == "m" else "arm")
                row.of, row.numbers = condition.of, dict.fromkeys(MEASURES, right) | {"control_seed": None}
                row.numbers |= {"role": condition.role, "group": condition.group, "dose": condition.dose}
                rows.append(row)
    return answers_table(rows)


MASK, PIN = "mask-anchors(rule=top(n=2))", "pin-anchors(rule=sigma(k=3))"
HEADS = "ablate-heads(heads=top(2, by=retrieval))"
CONTROLS = {
    MASK: "mask-anchors(rule=top(n=2), random=0)",
    PIN: "pin-anchors(rule=sigma(k=3), random=0)",
    HEADS: "ablate-heads(heads=random(2, seed=0, apart=retrieval))",
}


def verdicts(scores: dict[str, dict[str, float]]) -> dict[tuple[str, tuple[str, ...]], Any]:
    return {(v.claim, v.models): v for v in causes.claims(causes.measure(planted(scores)))}


def test_claims_are_judged_beyond_their_controls() -> None:
    mdm = {"none": 1.0, MASK: 0.9, CONTROLS[MASK]: 0.9, PIN: 0.5, CONTROLS[PIN]: 0.9, HEADS: 0.3, CONTROLS[HEADS]: 0.8}
    arm = {"none": 1.0, MASK: 0.2, CONTROLS[MASK]: 0.9, PIN: 1.0, CONTROLS[PIN]: 1.0, HEADS: 0.7, CONTROLS[HEADS]: 0.7}
    found = verdicts({"m": mdm, "a": arm})
    masked = found["Masking anchors hurts the ARM more than the MDM", ("m", "a")]
    assert masked.verdict == "holds" and masked.value == pytest.approx(0.7)
    assert masked.details["ARM"] == pytest.approx(0.7) and masked.details["MDM"] == pytest.approx(0)
    pinned = found["Pinning the anchors hurts the MDM", ("m",)]
    assert pinned.verdict == "holds" and pinned.value == pytest.approx(0.4)
    heads = "Top retrieval heads matter more than random heads"
    assert found[heads, ("m",)].verdict == "holds" and found[heads, ("m",)].value == pytest.approx(0.5)
    none = found[heads, ("a",)]  # no answer of 40 differs, which does not exclude five in a hundred
    assert none.verdict == "inconclusive" and none.interval[0] < 0 < 0.05 < none.interval[1]
    missing = found["Shallow anchors matter for form", ("m",)]
    assert missing.verdict == "not testable here" and missing.n == 0


def test_a_loss_that_the_control_has_too_supports_nothing() -> None:
    mdm = {"none": 1.0, PIN: 0.5, CONTROLS[PIN]: 0.5}
    assert verdicts({"m": mdm})["Pinning the anchors hurts the MDM", ("m",)].verdict == "inconclusive"
    mdm[CONTROLS[PIN]] = 0.3  # the control hurts more
    assert verdicts({"m": mdm})["Pinning the anchors hurts the MDM", ("m",)].verdict == "fails"


def test_an_intervention_that_moved_nothing_was_not_tested() -> None:
    table = planted({"m": {"none": 1.0, PIN: 0.5, CONTROLS[PIN]: 1.0}})
    table.loc[table["condition"] == PIN, "kl"] = 0.009
    found = {v.claim: v for v in causes.claims(causes.measure(table))}["Pinning the anchors hurts the MDM"]
    assert found.verdict == "not testable here" and found.reason.startswith("the manipulation failed: KL")
    table.loc[table["condition"] == PIN, "kl"] = 0.011
    found = {v.claim: v for v in causes.claims(causes.measure(table))}["Pinning the anchors hurts the MDM"]
    assert found.verdict == "holds" and found.value == pytest.approx(0.5)


def test_a_question_whose_control_failed_is_left_out_and_not_compared_with_the_plain_run() -> None:
    table = planted({"m": {"none": 1.0, PIN: 0.5, CONTROLS[PIN]: 0.5}})
    failed = (table["condition"] == CONTROLS[PIN]) & table["id"].isin(table["id"].unique()[:8])
    table[list(MEASURES)] = table[list(MEASURES)].mask(failed)
    found = {v.claim: v for v in causes.claims(causes.measure(table))}["Pinning the anchors hurts the MDM"]
    assert found.n == 32 and found.value == 0


def test_form_and_content_are_told_apart_by_depth() -> None:
    parts = {"none": 1.0}
    for half, share in (("shallow", 0.2), ("deep", 0.9)):
        parts[f"mask-anchors(rule=top(n=4), layers={half})"] = share
        parts[f"mask-anchors(rule=top(n=4), layers={half}, random=0)"] = 1.0
        parts[f"ablate-heads(heads=top(2, by=retrieval), layers={half})"] = 1.1 - share
        parts[f"ablate-heads(heads=random(2, seed=0, apart=retrieval), layers={half})"] = 1.0
    found = verdicts({"m": parts})
    assert found["Shallow anchors matter for form", ("m",)].value == pytest.approx(0.7)
    assert found["Deep heads matter for content", ("m",)].value == pytest.approx(0.7)
    assert found["Deep heads matter for content", ("m",)].verdict == "holds"


def test_results_pair_the_same_questions() -> None:
    mdm = {"none": 1.0, MASK: 0.25, CONTROLS[MASK]: 0.75}
    entries = {entry["condition"]: entry for entry in effects(planted({"m": mdm}))}
    assert set(entries) == {"none", MASK}
    entry = entries[MASK]
    assert entry["accuracy"] == pytest.approx(0.25) and entry["n"] == 40
    assert entry["change"]["accuracy"]["value"] == pytest.approx(-0.75)
    assert entry["beyond"]["accuracy"]["value"] == pytest.approx(-0.5)
    low, high = entry["beyond"]["accuracy"]["interval"]
    assert low < -0.5 < high and entry["beyond"]["accuracy"]["p"] < 0.01
    assert entry["gold_perplexity"] == pytest.approx(math.exp(0.25))


@pytest.mark.parametrize("view", causes.views)
@pytest.mark.parametrize("score", ["accuracy", "kl"])
def test_figures_show_the_numbers_of_the_table(view: str, score: str) -> None:
    doses = ["none", *(f"mask-anchors(rule=top(n={n}))" for n in (1, 2))]
    shares = dict(zip(doses, (1.0, 0.8, 0.4), strict=True))
    shares |= {f"mask-anchors(rule=top(n={n}), random=0)": 0.9 for n in (1, 2)}
    data = planted({"m": shares})
    data.loc[data["role"] != "plain", "group"] = "mask-anchors(rule=top({n}))"
    data.loc[data["condition"].str.contains("n=1"), "dose"] = 1.0
    data.loc[data["condition"].str.contains("n=2"), "dose"] = 2.0
    numbers = causes.figure(data, view=view, score=score, backend="none")
    assert numbers["under"].tolist() == pytest.approx([0.8, 0.4])
    assert numbers["loss"].tolist() == pytest.approx([-0.1, -0.5] if score == "kl" else [0.1, 0.5])
    drawn = causes.figure(data, view=view, score=score)
    drawn.draw_without_rendering()
    assert drawn.axes


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_writes_answers_results_claims_and_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ["ablate", "tiny-arm", "--data", "world:fresh", "--limit", "5", "--passages", "2", "--max-new-tokens", "6"]
    words += ["--intervention", "mask-anchors(rule=top({n}))", "--doses", "1,2", "--controls", "0", "--out", str(out)]
    assert command([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [entry["condition"] for entry in said["results"]] == [
        "none",
        "mask-anchors(rule=top(n=1))",
        "mask-anchors(rule=top(n=2))",
    ]
    for name in ("answers.parquet", "results.json", "claims.json", "figures/causes.png", "figures/causes-effects.svg"):
        assert (out / name).exists(), name
    assert len(pd.read_parquet(out / "answers.parquet")) == 5 * 5
    assert command(words) == 2
    assert "is already a run" in capsys.readouterr().err
    assert command([*words, "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"] == said["results"]
    assert command(["figure", "causes", str(out), "--out", str(tmp_path / "figures"), "--json"]) == 0
    assert (tmp_path / "figures" / "causes.png").exists()


def test_an_intervention_that_fails_on_every_question_is_said_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["ablate", "tiny-arm", "--data", "world:fresh", "--limit", "2", "--passages", "2", "--max-new-tokens", "2"]
    assert command([*words, "--intervention", "mask-positions(region=doc9)", "--out", str(tmp_path / "run")]) == 2
    assert "no intervention worked on any question; the first failed because: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--intervention", "mask-everything"], "unknown intervention 'mask-everything'"),
        (["--intervention", "mask-anchors(layers=99)"], "layer 99 does not exist"),
        (["--intervention", "mask-anchors(top({n}))", "--doses", "x"], "--doses 'x' is not understood"),
        (["--intervention", "soft-cap(3) @ 1,2"], "has doses but no {n}"),
        (["--resume"], "--resume needs --out"),
    ],
)
def test_what_cannot_work_is_refused_before_the_model_is_loaded(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floatlens.lens.load_model", lambda *a, **k: pytest.fail("a weight was read"))
    assert command(["ablate", "tiny-mdm", "--data", "world:fresh", "--limit", "3", *words]) == 2
    assert reason in capsys.readouterr().err


def test_a_well_formed_answer_ends_and_does_not_stutter() -> None:
    assert well_formed(Generation("in Paris", [5, 6], 2, 0.9, True))
    assert not well_formed(Generation("no no no", [7] * 3, 3, 0.9, True))
    assert not well_formed(Generation("in Paris", [5, 6], 2, 0.9, False))
    assert not well_formed(Generation("in Paris", [5, 6], 2, 0.9, True), special=[6])
