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
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from floatlens import stats
from floatlens.errors import FloatLensError, check_known
from floatlens.evaluation.answers import Answers, answers_of
from floatlens.evaluation.conditions import CHANGED, CONTROL, MEASURES, PLAIN
from floatlens.findings import style
from floatlens.findings.finding import Finding, ReportTable, as_table, register_claim, register_finding
from floatlens.findings.samples import Array, mean, parts_of, per_question
from floatlens.findings.spelling import percent, points
from floatlens.findings.style import short
from floatlens.findings.verdict import Outcome, difference, mean_of, paired, rows_of

LOWER_IS_BETTER = ("kl", "gold_nll")
LABELS = {"kl": "KL to the un-intervened (nats)", "gold_nll": "surprise of the gold answer (nats)"}
ACROSS_LAYERS = "across=layers"
MOVED = 0.01  # nats of KL; below it no probability changes by more than 0.07 (Pinsker), so nothing was tested


class Causes(Finding):
    name = "causes"
    views = ("dose", "effects")
    reads = "answers"
    setting = "passages"
    parts = ("causes",)

    def measure_all(self, answers: Answers) -> xr.Dataset:
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
        names = list(dict.fromkeys(changed["of"]))
        about = changed.drop_duplicates("of").set_index("of").reindex(names)
        data: dict[str, Any] = {}
        for name in MEASURES:
            plain = table[table["role"] == PLAIN].set_index(key)[name].reindex(order)
            data[f"{name}_plain"] = ("sample", plain.to_numpy(float))
            for role, suffix in ((CHANGED, ""), (CONTROL, "_control")):
                part = table[table["role"] == role]
                wide = part.pivot_table(index=key, columns="of", values=name, aggfunc="mean", dropna=False)
                wide = wide.reindex(index=order, columns=names)
                data[f"{name}{suffix}"] = (("sample", "intervention"), wide.to_numpy(float))
        of_each = {
            name: ("intervention", about[name].to_numpy(kind)) for name, kind in (("group", object), ("dose", float))
        }
        return xr.Dataset(data, coords={**coords, "intervention": names, **of_each})

    def applies(self, answers: pd.DataFrame) -> bool:
        return "role" in answers and bool(answers["role"].notna().any())

    def draw_dose(self, measured: xr.Dataset, *, score: str = "accuracy", backend: str) -> Figure | pd.DataFrame:
        """Draw the score over the dose with its control."""
        numbers = table(measured, score=score)
        numbers = numbers[np.isfinite(numbers["dose"])]
        return numbers if backend == "none" else _draw_dose(numbers, score)

    def draw_effects(self, measured: xr.Dataset, *, score: str = "accuracy", backend: str) -> Figure | pd.DataFrame:
        """Draw the loss under each intervention beyond its control."""
        numbers = table(measured, score=score)
        return numbers if backend == "none" else _draw_effects(numbers, score)

    def tables(self, measured: xr.Dataset) -> list[ReportTable]:
        frame = table(measured)
        names = {"plain": "without", "under": "under it", "control": "under its control"}
        names |= {"loss": "lost beyond the control", "n": "questions"}
        shown = frame.assign(model=[short(str(model)) for model in frame["model"]], n=frame["n"].astype(int))
        return [as_table(self.table, shown[["intervention", "model", *names]].rename(columns=names))]

    def sentences(self, measured: xr.Dataset) -> list[str]:
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


def table(answers: Any, *, score: str = "accuracy") -> pd.DataFrame:
    """Return one row per model and intervention: the score without it, with it and with its control, with intervals.

    `loss` is the loss of score beyond that of its control (without a control, compared with the plain run). For surprise
    and KL, where less is better, it is the increase.
    """
    measured = causes.measure(answers)
    check_known("score", score, MEASURES)
    rows = []
    for model, part in parts_of(measured):
        for index, name in enumerate(map(str, measured["intervention"].values)):
            values = {
                "under": part[score].values[:, index],
                "plain": part[f"{score}_plain"].values,
                "control": part[f"{score}_control"].values[:, index],
                "loss": loss(part, score, index),
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


def loss(measured: xr.Dataset, score: str, index: int) -> Array:
    """Loss of score of each question beyond that of the control; NaN where the control failed.

    For a model without answers under the control, the loss compared with the plain run.
    """
    under, control = (measured[key].values[:, index] for key in (score, f"{score}_control"))
    models = measured["model"].values
    controlled = np.isin(models, models[np.isfinite(control)])
    beside = np.where(controlled, control, measured[f"{score}_plain"].values)
    return np.asarray(under - beside if score in LOWER_IS_BETTER else beside - under)


# Claims


def _find_interventions(
    measured: xr.Dataset, kind: str, *, layers: str | None = None, dosed: bool = False, across_layers: bool = False
) -> list[int]:
    """Indices of interventions of a kind: in these layers, or in all by default; `dosed`: only those given in doses.

    `across_layers`: only those that act across layers instead of across steps.
    """
    found = []
    for index, (name, dose) in enumerate(zip(measured["intervention"].values, measured["dose"].values, strict=True)):
        where = f"layers={layers}" in str(name) if layers else "layers=" not in str(name)
        where = where and (ACROSS_LAYERS in str(name)) == across_layers
        controlled = np.isfinite(measured["accuracy_control"].values[:, index]).any()
        if str(name).startswith(kind) and where and controlled and (np.isfinite(dose) or not dosed):
            found.append(index)
    return found


def _dosed_first(measured: xr.Dataset, kind: str) -> list[int]:
    """Interventions of a kind that are given in doses, or all of that kind if there are none."""
    return _find_interventions(measured, kind, dosed=True) or _find_interventions(measured, kind)


def _halves(measured: xr.Dataset, kind: str) -> dict[str, list[int]]:
    """Interventions of a kind in the shallow half of the layers, and in the deep half."""
    return {half: _find_interventions(measured, kind, layers=half) for half in ("shallow", "deep")}


def _mean(measured: xr.Dataset, name: str, indices: Sequence[int]) -> Array:
    """Mean over interventions of a number; NaN if one is missing for a question, or there is none."""
    none = np.full(measured.sizes["sample"], np.nan)
    return np.asarray(measured[name].values[:, indices].mean(axis=1)) if indices else none


def _losses(measured: xr.Dataset, score: str, indices: Sequence[int]) -> Array:
    """Mean over interventions of the loss beyond the control."""
    none = np.full(measured.sizes["sample"], np.nan)
    return np.mean([loss(measured, score, index) for index in indices], axis=0) if indices else none


def _raw(measured: xr.Dataset, score: str, indices: Sequence[int]) -> Array:
    """Mean over interventions of the loss compared with the plain run."""
    return np.asarray(measured[f"{score}_plain"].values - _mean(measured, score, indices))


def _loss_of(measured: xr.Dataset, values: Array, *groups: Sequence[int], **about: Any) -> Outcome:
    """Mean loss over questions; each of `groups` are interventions whose losses are averaged before they are compared."""
    if not np.isfinite(values).any():
        about["reason"] = "the run holds no such intervention with its control"
    found = mean_of(measured, values, what="questions", **about)
    rows = rows_of(measured, about.get("kind"), about.get("model"))
    return _as_proportion(measured, found, values[rows], rows, groups)


def _as_proportion(
    measured: xr.Dataset, found: Outcome, values: Array, rows: Array, groups: Sequence[Sequence[int]]
) -> Outcome:
    """The outcome with the interval for differences of 0/1 scores, not testable if an intervention moved nothing.

    An interval for real numbers has no width where no answer differs, although some would in other questions.
    """
    there = values[np.isfinite(values)]
    if not found.n or not len(there):
        return found
    weights = [sign / len(group) for group in groups for _ in group for sign in (1, -1)]
    low, high = stats.padded_wald(there, np.array(weights))
    failed = _moved_nothing(measured, rows, [index for group in groups for index in group])
    return replace(found, interval=(float(low), float(high)), blocked=failed)


def _moved_nothing(measured: xr.Dataset, rows: Array, indices: Sequence[int]) -> str:
    """Why interventions were not tested at all: one of them hardly changed the model's predictions; empty if all did."""
    moved = min(mean(measured["kl"].values[rows, index]) for index in indices)
    return f"the manipulation failed: KL to the plain run is {moved:.2g} nats, below {MOVED:g}" if moved < MOVED else ""


def _loss_of_mdm(measured: xr.Dataset, indices: Sequence[int], mdm: str | None) -> Outcome:
    """Loss of an MDM's accuracy under interventions beyond that of their controls."""
    beside = {
        "loss compared with the plain run": _raw(measured, "accuracy", indices),
        "agreement with the plain answer": _mean(measured, "agreement", indices),
        "KL to the plain run, nats": _mean(measured, "kl", indices),
    }
    return _loss_of(measured, _losses(measured, "accuracy", indices), indices, kind="mdm", model=mdm, beside=beside)


@register_claim("causes.masking")
def anchors_claim(measured: xr.Dataset, *, mdm: str | None = None, arm: str | None = None) -> Outcome:
    indices = _dosed_first(measured, "mask-anchors")
    beside = {"loss compared with the plain run": _raw(measured, "accuracy", indices)}
    lost = _losses(measured, "accuracy", indices)
    found = difference(measured, lost, mdm=mdm, arm=arm, sign=-1, beside=beside)
    sides = rows_of(measured, "mdm", mdm), rows_of(measured, "arm", arm)
    left, right = paired(measured, lost, *sides)
    return _as_proportion(measured, found, right - left, np.concatenate(sides), (indices, indices))


@register_claim("causes.robust")
def robust_claim(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    indices = _dosed_first(measured, "mask-anchors")
    lost = {"loss beyond the control": _losses(measured, "accuracy", indices)}
    return _loss_of(measured, -_raw(measured, "accuracy", indices), indices, kind="mdm", model=mdm, beside=lost)


@register_claim("causes.pinning")
def pin_claim(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    return _loss_of_mdm(measured, _find_interventions(measured, "pin-anchors"), mdm)


@register_claim("causes.pinning_layers")
def pin_layers_claim(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    return _loss_of_mdm(measured, _find_interventions(measured, "pin-anchors", across_layers=True), mdm)


@register_claim("causes.moving")
def move_claim(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    return _loss_of_mdm(measured, _find_interventions(measured, "move-anchors"), mdm)


@register_claim("causes.sink")
def sink_claim(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    indices = [n for n, name in enumerate(measured["intervention"].values) if str(name).startswith("add-sink")]
    saved = measured["gold_nll_plain"].values - _mean(measured, "gold_nll", indices)
    beside = {"KL to the plain run, nats": _mean(measured, "kl", indices)}
    reason = "" if indices else "the run has no answers under add-sink"
    outcome = mean_of(measured, saved, kind="mdm", model=mdm, beside=beside, what="questions", reason=reason)
    rows = rows_of(measured, "mdm", mdm)
    return replace(outcome, blocked=_moved_nothing(measured, rows, indices)) if outcome.n else outcome


@register_claim("causes.heads")
def heads_claim(measured: xr.Dataset, *, model: str | None = None) -> Outcome:
    indices = _dosed_first(measured, "ablate-heads(heads=top")
    beside = {"loss compared with the plain run": _raw(measured, "accuracy", indices)}
    return _loss_of(measured, _losses(measured, "accuracy", indices), indices, model=model, beside=beside)


@register_claim("causes.form")
def form_claim(measured: xr.Dataset, *, model: str | None = None) -> Outcome:
    parts = _halves(measured, "mask-anchors")
    losses = {half: _losses(measured, "well_formed", indices) for half, indices in parts.items()}
    beside = {f"lost with the {half} anchors": values for half, values in losses.items()}
    beside["answers that do not end, shallow"] = _losses(measured, "ended", parts["shallow"])
    return _loss_of(measured, losses["shallow"] - losses["deep"], *parts.values(), model=model, beside=beside)


@register_claim("causes.content")
def content_claim(measured: xr.Dataset, *, model: str | None = None) -> Outcome:
    parts = _halves(measured, "ablate-heads(heads=top")
    losses = {half: _losses(measured, "accuracy", indices) for half, indices in parts.items()}
    beside = {f"lost with the {half} heads": values for half, values in losses.items()}
    return _loss_of(measured, losses["deep"] - losses["shallow"], *parts.values(), model=model, beside=beside)


# Figures


def _draw_dose(numbers: pd.DataFrame, score: str) -> Figure:
    groups, looks = list(dict.fromkeys(numbers["group"])), style.looks_of(list(dict.fromkeys(numbers["model"])))
    factor = 1.0 if score in LOWER_IS_BETTER else 100.0
    with style.sheet():
        drawn = style.new_figure(0.9 + 1.9 * max(1, -(-len(groups) // 3)))
        grid = style.panels(drawn, len(groups), 3, sharey=True)
        for axes, group in zip(grid.flat, groups, strict=False):
            for model, look in looks.items():
                part = numbers[(numbers["group"] == group) & (numbers["model"] == model)].sort_values("dose")
                if len(part):
                    _dose_line(axes, part, look, factor, starts="layers={n}" not in group)
            axes.set_title(_titled(group))
            axes.set_xlabel(_axis(group))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        if not groups:
            grid[0, 0].text(0.5, 0.5, "no intervention was given in doses", ha="center", va="center")
        else:
            style.legend(drawn)
            if factor == 100.0:
                grid[0, 0].set_ylim(-3, 103)
        for axes in grid[:, 0]:
            axes.set_ylabel(LABELS.get(score, f"{score.replace('_', ' ')} (%)"))
        n = int(numbers["n"].max()) if len(numbers) else 0
        style.caption(
            drawn,
            f"Mean over up to {n} questions; bands: 95 % bootstrap intervals. Dashed: random positions that move as "
            f"much attention, or as many random heads, mean over seeds. Dose 0 or dotted: without.",
        )
    return drawn


def _dose_line(axes: Axes, part: pd.DataFrame, look: dict[str, Any], factor: float, starts: bool) -> None:
    """Draw the intervention as a line and its control dashed; both start at the plain score if doses are numbers."""
    plain = factor * float(part["plain"].iloc[0])
    x = part["dose"].to_numpy(float)
    for key, line in (("under", {"ls": "-"}), ("control", {"ls": "--", "mfc": "white", "label": "_"})):
        y, low, high = (factor * part[f"{key}{end}"].to_numpy(float) for end in ("", "_low", "_high"))
        if not np.isfinite(y).any():
            continue
        at, values = (np.r_[0.0, x], np.r_[plain, y]) if starts else (x, y)
        axes.plot(at, values, **{**look, **line}, clip_on=False)
        axes.fill_between(x, low, high, color=look["color"], alpha=0.13 if key == "under" else 0.05, lw=0)
    if not starts:
        axes.axhline(plain, color=look["color"], lw=0.7, ls=":")


def _draw_effects(numbers: pd.DataFrame, score: str) -> Figure:
    names, looks = list(dict.fromkeys(numbers["intervention"])), style.looks_of(list(dict.fromkeys(numbers["model"])))
    factor, unit = (1.0, "nats") if score in LOWER_IS_BETTER else (100.0, "points")
    with style.sheet():
        drawn = style.new_figure(1.1 + 0.22 * len(names))
        axes = drawn.subplots()
        for index, (model, look) in enumerate(looks.items()):
            part = numbers[numbers["model"] == model].set_index("intervention")
            y = np.array([names.index(name) for name in part.index]) + 0.26 * (index - (len(looks) - 1) / 2)
            value, low, high = (factor * part[f"loss{end}"].to_numpy(float) for end in ("", "_low", "_high"))
            axes.errorbar(value, y, xerr=np.array([value - low, high - value]), ls="none", lw=0.9, ms=3.5, **look)
        axes.axvline(0, color="#555555", lw=0.6)
        for index in range(1, len(names), 2):
            axes.axhspan(index - 0.5, index + 0.5, color="#f3f3f3", lw=0, zorder=0)
        axes.set_yticks(range(len(names)), [_titled(name) for name in names])
        axes.set_ylim(len(names) - 0.5, -0.5)
        what = "added to" if score in LOWER_IS_BETTER else "taken from"
        axes.set_xlabel(f"{what} {LABELS.get(score, score.replace('_', ' '))} beyond the control ({unit})")
        style.legend(drawn)
        n = int(numbers["n"].max())
        style.caption(
            drawn, f"Mean over up to {n} questions with 95 % bootstrap intervals, paired question by question."
        )
    return drawn


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


causes = register_finding(Causes())
measure, figure, claims = causes.measure, causes.figure, causes.claims
