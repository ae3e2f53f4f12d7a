"""Causes: what anchors and retrieval heads are for, measured by removing or changing them.

This goes beyond arXiv 2601.07894, which only observes. Measured on the answers of `floatlens ablate`: the same questions
without an intervention, with it, and with its matched control: random positions that move as much attention, or as many
random heads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from floatlens import stats
from floatlens.errors import FloatLensError, check_known
from floatlens.evaluation.answers import MEASURES, Answers, answers_of
from floatlens.evaluation.conditions import CHANGED, CONTROL, PLAIN
from floatlens.findings import draw
from floatlens.findings.finding import ReportTable, as_table, declare_finding, register_claim
from floatlens.findings.samples import mean, parts_of, per_question
from floatlens.findings.spelling import percent, points
from floatlens.findings.style import short
from floatlens.findings.verdict import Verdict, difference, mean_of
from floatlens.stats import Array

LOWER_IS_BETTER = ("kl", "gold_nll")
LABELS = {"kl": "KL to the un-intervened (nats)", "gold_nll": "surprise of the gold answer (nats)"}
VARIANTS = {
    "under": "",
    "control": "random positions that move as much attention, or as many random heads, mean over seeds",
    "plain": "without",
}
ACROSS_LAYERS, MASK, HEADS = "across=layers", "mask-anchors", "ablate-heads(heads=top"
AT_ALL = "loss compared with the plain run"
MOVED = 0.01  # nats of KL; below it no probability changes by more than 0.07 (Pinsker), so nothing was tested


def applies(answers: pd.DataFrame) -> bool:
    return "role" in answers and bool(answers["role"].notna().any())


def draw_dose(measured: xr.Dataset, *, score: str = "accuracy", backend: str) -> Figure | pd.DataFrame:
    """Draw the score over the dose with its control."""
    numbers = table(measured, score=score)
    numbers = numbers[np.isfinite(numbers["dose"])]
    if backend == "none":
        return numbers
    groups = list(dict.fromkeys(numbers["group"]))
    return draw.curves(
        pd.concat([_variant(numbers, key, name) for key, name in VARIANTS.items()]),
        "dose",
        "group",
        {group: _titled(group) for group in groups},
        xlabel={group: _axis(group) for group in groups},
        ylabel=LABELS.get(score, f"{score.replace('_', ' ')} (%)"),
        ylim=(None, None) if score in LOWER_IS_BETTER else (-3, 103),
        note=f"Mean over up to {numbers['n'].max()} questions; bands: 95 % bootstrap intervals.",
    )


def draw_effects(measured: xr.Dataset, *, score: str = "accuracy", backend: str) -> Figure | pd.DataFrame:
    """Draw the loss under each intervention beyond its control."""
    numbers = table(measured, score=score)
    if backend == "none":
        return numbers
    shown = _variant(numbers, "loss", "").assign(panel="", name=[_titled(one) for one in numbers["intervention"]])
    what, unit = ("added to", "nats") if score in LOWER_IS_BETTER else ("taken from", "points")
    xlabel = f"{what} {LABELS.get(score, score.replace('_', ' '))} beyond the control ({unit})"
    note = f"Mean over up to {numbers['n'].max()} questions with 95 % bootstrap intervals, paired question by question."
    return draw.points(shown, "name", "panel", xlabel=xlabel, note=note)


def tables(measured: xr.Dataset) -> list[ReportTable]:
    frame = table(measured)
    names = {"plain": "without", "under": "under it", "control": "under its control"}
    names |= {"loss": "lost beyond the control", "n": "questions"}
    shown = frame.assign(model=[short(str(model)) for model in frame["model"]], n=frame["n"].astype(int))
    return [as_table(causes.table, shown[["intervention", "model", *names]].rename(columns=names))]


def sentences(measured: xr.Dataset) -> list[str]:
    found = []
    for model, of in table(measured).groupby("model", sort=False):
        worst = of.iloc[int(of["loss"].fillna(-1).argmax())]
        found.append(
            f"{short(str(model))} answers {percent(float(of['plain'].iloc[0]))} correctly without interventions. The "
            f"largest loss beyond the matched control is under {worst['intervention']}: "
            f"{points(-float(worst['loss']))} points ({percent(float(worst['under']))} correct with it, "
            f"{percent(float(worst['control']))} with the control)."
        )
    return found


@declare_finding(applies=applies, draw_dose=draw_dose, draw_effects=draw_effects, tables=tables, sentences=sentences)
def causes(answers: Answers) -> xr.Dataset:
    """Measure the effect of each intervention on each question, one row per model and question.

    Each of `MEASURES` stands under its own name (sample, intervention: with the intervention), as NAME_control (with its
    matched control, mean over seeds; NaN if there is none) and as NAME_plain (sample: without any intervention). `group`
    and `dose` (along intervention) identify the curve that an intervention is a point of.
    """
    table = answers_of(answers)
    table = table[table["role"].isin([PLAIN, CHANGED, CONTROL])] if "role" in table else table.iloc[:0]
    if table.empty:
        raise FloatLensError("there are no answers under interventions; create them with floatlens ablate")
    changed = table[table["role"] == CHANGED]
    if changed["error"].notna().all():
        first = f"; the first failed because: {changed['error'].iloc[0]}" if len(changed) else ""
        raise FloatLensError(f"no intervention worked on any question{first}")
    key = ["model", "data", "id"]
    order, coords = per_question(table, key)
    about = changed.drop_duplicates("of").set_index("of")
    data: dict[str, Any] = {}
    for name in MEASURES:
        plain = table[table["role"] == PLAIN].set_index(key)[name].reindex(order)
        data[f"{name}_plain"] = ("sample", plain.to_numpy(float))
        for role, suffix in ((CHANGED, ""), (CONTROL, "_control")):
            part = table[table["role"] == role]
            wide = part.pivot_table(index=key, columns="of", values=name, aggfunc="mean", dropna=False)
            wide = wide.reindex(index=order, columns=about.index)
            data[f"{name}{suffix}"] = (("sample", "intervention"), wide.to_numpy(float))
    coords["intervention"] = about.index.to_list()
    coords["group"] = "intervention", about["group"].to_numpy(object)
    coords["dose"] = "intervention", about["dose"].to_numpy(float)
    return xr.Dataset(data, coords)


def table(answers: Any, *, score: str = "accuracy") -> pd.DataFrame:
    """Return one row per model and intervention: the score without it, with it and with its control, with intervals.

    `loss` is the loss of score beyond that of its control (without a control, compared with the plain run). For surprise
    and KL, where less is better, it is the increase.
    """
    measured = causes.measure(answers)
    check_known("score", score, MEASURES)
    rows = []
    for model, part in parts_of(measured):
        lost = loss(part, score)
        for index, name in enumerate(map(str, measured["intervention"].values)):
            values = {
                "under": part[score].values[:, index],
                "plain": part[f"{score}_plain"].values,
                "control": part[f"{score}_control"].values[:, index],
                "loss": lost[:, index],
            }
            if not np.isfinite(values["under"]).any():
                continue
            found = {key: stats.percentile_mean(numbers) for key, numbers in values.items()}
            row: dict[str, Any] = {"model": model, "intervention": name, "group": str(part["group"].values[index])}
            row |= {"dose": float(part["dose"].values[index]), "score": score, "n": found["under"].n}
            for key, estimate in found.items():
                row |= {key: estimate.value, f"{key}_low": estimate.low, f"{key}_high": estimate.high}
            rows.append(row)
    return pd.DataFrame(rows)


def loss(measured: xr.Dataset, score: str = "accuracy") -> Array:
    """Loss of score (sample, intervention) beyond that of the control; NaN where the control failed.

    For a model without answers under the control, the loss compared with the plain run.
    """
    under, control = (measured[key].values for key in (score, f"{score}_control"))
    controlled = pd.DataFrame(np.isfinite(control)).groupby(measured["model"].values).transform("any")
    beside = np.where(controlled, control, measured[f"{score}_plain"].values[:, None])
    return np.asarray(under - beside if score in LOWER_IS_BETTER else beside - under)


# Claims


def _find(measured: xr.Dataset, kind: str, layers: str = "", across_layers: bool = False) -> list[int]:
    """Indices of interventions of a kind that have a control, in these layers (by default in all).

    `across_layers`: those that act across layers instead of across steps.
    """
    found = []
    for index, name in enumerate(map(str, measured["intervention"].values)):
        where = f"layers={layers}" in name if layers else "layers=" not in name
        controlled = np.isfinite(measured["accuracy_control"].values[:, index]).any()
        if name.startswith(kind) and where and (ACROSS_LAYERS in name) == across_layers and controlled:
            found.append(index)
    return found


def _dosed_first(measured: xr.Dataset, kind: str) -> list[int]:
    """Interventions of a kind that are given in doses, or all of that kind if there are none."""
    found = _find(measured, kind)
    return [index for index in found if np.isfinite(measured["dose"].values[index])] or found


def _mean(values_NI: Any, indices: Sequence[int]) -> Array:
    """Mean over interventions of a number; NaN if one is missing for a question, or there is none."""
    values_NI = np.asarray(values_NI)
    return np.asarray(values_NI[:, indices].mean(axis=1)) if indices else np.full(len(values_NI), np.nan)


def _lost_at_all(measured: xr.Dataset, indices: Sequence[int]) -> Array:
    """Mean over interventions of the loss of accuracy compared with the plain run."""
    return np.asarray(measured["accuracy_plain"].values - _mean(measured["accuracy"], indices))


def _loss_of(measured: xr.Dataset, values: Array, *groups: Sequence[int], **about: Any) -> Verdict:
    """Mean loss over questions; each of `groups` are interventions whose losses are averaged before they are compared."""
    if not np.isfinite(values).any():
        about["reason"] = "the run holds no such intervention with its control"
    return _as_proportion(measured, mean_of(measured, values, what="questions", **about), *groups)


def _as_proportion(measured: xr.Dataset, found: Verdict, *groups: Sequence[int]) -> Verdict:
    """The outcome with the interval for differences of 0/1 scores, not testable if an intervention moved nothing.

    An interval for real numbers has no width where no answer differs, although some would in other questions.
    """
    if not found.n or found.values is None:
        return found
    weights = [sign / len(group) for group in groups for _ in group for sign in (1, -1)]
    low, high = stats.padded_wald(found.values, np.array(weights))
    return _unless_it_failed(measured, replace(found, interval=(float(low), float(high))), *groups)


def _unless_it_failed(measured: xr.Dataset, found: Verdict, *groups: Sequence[int]) -> Verdict:
    """Not testable if one of the interventions hardly changed the predictions of the models that were tested."""
    rows = np.isin(measured["model"].values, found.models)
    moved = min((mean(measured["kl"].values[rows, index]) for group in groups for index in group), default=MOVED)
    why = f"the manipulation failed: KL to the plain run is {moved:.2g} nats, below {MOVED:g}"
    return found.unless(why if moved < MOVED else "")


@register_claim("causes.masking")
def masking_hurts_the_arm(measured: xr.Dataset, *, mdm: str | None = None, arm: str | None = None) -> Verdict:
    indices = _dosed_first(measured, MASK)
    beside = {AT_ALL: _lost_at_all(measured, indices)}
    found = difference(measured, _mean(loss(measured), indices), mdm=mdm, arm=arm, sign=-1, beside=beside)
    return _as_proportion(measured, found, indices, indices)


@register_claim("causes.robust")
def keeps_its_accuracy(measured: xr.Dataset, *, mdm: str | None = None) -> Verdict:
    indices = _dosed_first(measured, MASK)
    beside = {"loss beyond the control": _mean(loss(measured), indices)}
    return _loss_of(measured, -_lost_at_all(measured, indices), indices, kind="mdm", model=mdm, beside=beside)


def _register_loss(id: str, kind: str, across_layers: bool = False) -> None:
    """Register the claim that an MDM loses accuracy under a kind of intervention, beyond that under its control."""

    @register_claim(id)
    def loses(measured: xr.Dataset, *, mdm: str | None = None) -> Verdict:
        indices = _find(measured, kind, across_layers=across_layers)
        beside = {
            AT_ALL: _lost_at_all(measured, indices),
            "agreement with the plain answer": _mean(measured["agreement"], indices),
            "KL to the plain run, nats": _mean(measured["kl"], indices),
        }
        return _loss_of(measured, _mean(loss(measured), indices), indices, kind="mdm", model=mdm, beside=beside)


_register_loss("causes.pinning", "pin-anchors")
_register_loss("causes.pinning_layers", "pin-anchors", across_layers=True)
_register_loss("causes.moving", "move-anchors")


@register_claim("causes.sink")
def a_sink_helps(measured: xr.Dataset, *, mdm: str | None = None) -> Verdict:
    indices = [n for n, name in enumerate(measured["intervention"].values) if str(name).startswith("add-sink")]
    saved = measured["gold_nll_plain"].values - _mean(measured["gold_nll"], indices)
    beside = {"KL to the plain run, nats": _mean(measured["kl"], indices)}
    reason = "" if indices else "the run has no answers under add-sink"
    found = mean_of(measured, saved, kind="mdm", model=mdm, beside=beside, what="questions", reason=reason)
    return _unless_it_failed(measured, found, indices)


@register_claim("causes.heads")
def heads_matter(measured: xr.Dataset, *, model: str | None = None) -> Verdict:
    indices = _dosed_first(measured, HEADS)
    beside = {AT_ALL: _lost_at_all(measured, indices)}
    return _loss_of(measured, _mean(loss(measured), indices), indices, model=model, beside=beside)


@register_claim("causes.form")
def shallow_anchors_carry_form(measured: xr.Dataset, *, model: str | None = None) -> Verdict:
    shallow, deep = (_find(measured, MASK, half) for half in ("shallow", "deep"))
    lost = [_mean(loss(measured, "well_formed"), indices) for indices in (shallow, deep)]
    beside = {"lost with the shallow anchors": lost[0], "lost with the deep anchors": lost[1]}
    beside["answers that do not end, shallow"] = _mean(loss(measured, "ended"), shallow)
    return _loss_of(measured, lost[0] - lost[1], shallow, deep, model=model, beside=beside)


@register_claim("causes.content")
def deep_heads_carry_content(measured: xr.Dataset, *, model: str | None = None) -> Verdict:
    shallow, deep = (_find(measured, HEADS, half) for half in ("shallow", "deep"))
    lost = [_mean(loss(measured), indices) for indices in (shallow, deep)]
    beside = {"lost with the shallow heads": lost[0], "lost with the deep heads": lost[1]}
    return _loss_of(measured, lost[1] - lost[0], shallow, deep, model=model, beside=beside)


# Figures


def _variant(numbers: pd.DataFrame, key: str, variant: str) -> pd.DataFrame:
    """The table with the mean and the interval of one of its numbers, in percent if it is a share."""
    factor = np.where(numbers["score"].isin(LOWER_IS_BETTER), 1.0, 100.0)
    ends = {name: factor * numbers[f"{key}{end}"] for name, end in (("mean", ""), ("low", "_low"), ("high", "_high"))}
    return numbers.assign(**ends, variant=variant)


def _axis(group: str) -> str:
    """Axis label of a group's dose."""
    known = {"layers={n}": "layer", "heads=top({n}": "heads", "rule=top({n}": "anchors"}
    known["by={n}"] = "positions further on"
    return next((word for part, word in known.items() if part in group), "dose")


def _titled(text: str) -> str:
    """A short title for an intervention.

    >>> _titled("mask-anchors(rule=top(n=4), layers=deep)"), _titled("ablate-heads(heads=top({n}))")
    ('mask-anchors, top 4, deep', 'ablate-heads, top n')
    >>> _titled("mask-anchors(rule=sigma(k=3), layers=2)"), _titled("mask-anchors(rule=sigma(3), layers={n})")
    ('mask-anchors, sigma 3, layer 2', 'mask-anchors, sigma 3, by layer')
    """
    name, _, inside = text.partition("(")
    inside = re.sub(r", by=retrieval|\b(rule|heads|k|n)=", "", inside[:-1]).replace("layers={n}", "by layer")
    inside = re.sub(r"layers=(shallow|deep)", r"\1", inside.replace("{n}", "n"))
    inside = re.sub(r"layers=(\d+)\b(?!:)", r"layer \1", inside)
    words = re.sub(r"\b(top|sigma|share|excess|random)\(([^()]*)\)", r"\1 \2", inside)
    return f"{name}, {words}" if words else name


measure, figure, claims = causes.measure, causes.figure, causes.claims
