"""Causes: what anchors and retrieval heads are for, measured by removing or changing them.

This goes beyond arXiv 2601.07894, which only observes. Measured on the answers of `floatlens ablate`: the same questions
without an intervention, with it, and with its matched control, which treats the same number of random positions or heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from floatlens import stats
from floatlens.errors import FloatLensError
from floatlens.evaluation.ablate.condition import CHANGED, CONTROL, MEASURES, PLAIN
from floatlens.evaluation.answers import Answers, answers_of
from floatlens.findings import style
from floatlens.findings.draw_causes import LOWER_IS_BETTER, draw_dose, draw_effects
from floatlens.findings.finding import Finding, ReportTable, ReportText, as_table, register_claim, register_finding
from floatlens.findings.outcome import Outcome, difference, mean_of
from floatlens.findings.samples import Array, models_of
from floatlens.findings.spelling import number, percent, points
from floatlens.findings.style import short
from floatlens.version import __version__

VIEWS = ("dose", "effects")


def measure(answers: Answers | xr.Dataset) -> xr.Dataset:
    """Measure the effect of each intervention on each question, one row per model and question.

    | variable | dims | description |
    |---|---|---|
    | accuracy, f1, em, agreement, confidence, kl, gold_nll, ended, well_formed, ... | sample, intervention | with it |
    | NAME_control | sample, intervention | with its matched control, mean over seeds; NaN if there is none |
    | NAME_plain | sample | without any intervention |

    `group` and `dose` (along intervention) identify the curve that an intervention is a point of.
    """
    if isinstance(answers, xr.Dataset):
        return answers
    table = answers_of(answers)
    table = table[table["role"].isin([PLAIN, CHANGED, CONTROL])] if "role" in table else table.iloc[:0]
    if table.empty:
        raise FloatLensError("there are no answers under interventions; create them with floatlens ablate")
    key = ["model", "data", "id"]
    order = pd.MultiIndex.from_frame(table[key].drop_duplicates())
    changed = table[table["role"] == CHANGED]
    if changed["error"].notna().all():
        first = f"; the first failed because: {changed['error'].iloc[0]}" if len(changed) else ""
        raise FloatLensError(f"no intervention worked on any question{first}")
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
    models, sets, ids = (order.get_level_values(i).to_numpy(object) for i in range(3))
    kinds = table.drop_duplicates("model").set_index("model")["kind"]
    return xr.Dataset(
        data,
        coords={
            "sample": np.arange(len(order)),
            "intervention": names,
            "group": ("intervention", about["group"].to_numpy(object)),
            "dose": ("intervention", about["dose"].to_numpy(float)),
            "model": ("sample", models),
            "data": ("sample", sets),
            "sample_id": ("sample", np.array([f"{d}: {i}" for d, i in zip(sets, ids, strict=True)], object)),
            "model_kind": ("sample", kinds.reindex(models).to_numpy(str)),
        },
        attrs={"finding": "causes", "rule": "", "floatlens": __version__},
    )


def table(answers: Answers | xr.Dataset, *, score: str = "accuracy") -> pd.DataFrame:
    """Return one row per model and intervention: the score without it, with it and with its control, with intervals.

    `loss` is the loss of score beyond that of its control (without a control, compared with the plain run). For surprise
    and KL, where less is better, it is the increase.
    """
    measured = measure(answers)
    check_score(score)
    rows = []
    for model in models_of(measured):
        here = measured["model"].values == model
        for index, name in enumerate(map(str, measured["intervention"].values)):
            under, control = (measured[key].values[here, index] for key in (score, f"{score}_control"))
            if not np.isfinite(under).any():
                continue
            plain = measured[f"{score}_plain"].values[here]
            found = {"under": stats.percentile_mean(under), "plain": stats.percentile_mean(plain)}
            found |= {
                "control": stats.percentile_mean(control),
                "loss": stats.percentile_mean(loss(measured, score, index)[here]),
            }
            about: dict[str, Any] = {
                "model": model,
                "intervention": name,
                "group": str(measured["group"].values[index]),
            }
            about |= {"dose": float(measured["dose"].values[index]), "score": score, "n": found["under"].n}
            numbers: dict[str, float] = {}
            for key, estimate in found.items():
                numbers |= {key: estimate.value, f"{key}_low": estimate.low, f"{key}_high": estimate.high}
            rows.append({**about, **numbers})
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


def check_score(score: str) -> None:
    if score not in MEASURES:
        raise FloatLensError(f"score {score!r} is not known; use one of {', '.join(MEASURES)}")


def figure(
    answers: Answers | xr.Dataset, *, score: str = "accuracy", view: str = "dose", backend: str = "matplotlib"
) -> Figure | pd.DataFrame:
    """Draw the score over the dose with its control (`dose`), or the loss of each intervention beyond it (`effects`)."""
    style.check_backend(backend)
    style.check_view(view, VIEWS)
    numbers = table(answers, score=score)
    if view == "dose":
        numbers = numbers[np.isfinite(numbers["dose"])]
    if backend == "none":
        return numbers
    return draw_dose(numbers, score) if view == "dose" else draw_effects(numbers, score)


ACROSS_LAYERS = "across=layers"


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


def _halves(measured: xr.Dataset, kind: str) -> dict[str, list[int]]:
    """Interventions of a kind in the shallow half of the layers, and in the deep half."""
    return {half: _find_interventions(measured, kind, layers=half) for half in ("shallow", "deep")}


def _losses(measured: xr.Dataset, score: str, indices: Sequence[int]) -> Array:
    """Mean over interventions of the loss beyond the control; NaN if one is missing for a question."""
    if not indices:
        return np.full(measured.sizes["sample"], np.nan)
    return np.mean([loss(measured, score, index) for index in indices], axis=0)


def _raw(measured: xr.Dataset, score: str, indices: Sequence[int]) -> Array:
    """Mean over interventions of the loss compared with the plain run."""
    if not indices:
        return np.full(measured.sizes["sample"], np.nan)
    plain = measured[f"{score}_plain"].values
    return np.mean([plain - measured[score].values[:, index] for index in indices], axis=0)


@register_claim("causes.masking")
def anchors_claim(measured: xr.Dataset, *, mdm: str | None = None, arm: str | None = None) -> Outcome:
    indices = _find_interventions(measured, "mask-anchors", dosed=True) or _find_interventions(measured, "mask-anchors")
    return difference(
        measured,
        _losses(measured, "accuracy", indices),
        mdm=mdm,
        arm=arm,
        sign=-1,
        beside={"loss compared with the plain run": _raw(measured, "accuracy", indices)},
    )


@register_claim("causes.robust")
def robust_claim(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    indices = _find_interventions(measured, "mask-anchors", dosed=True) or _find_interventions(measured, "mask-anchors")
    lost = {"loss beyond the control": _losses(measured, "accuracy", indices)}
    return _loss_of(measured, -_raw(measured, "accuracy", indices), kind="mdm", model=mdm, beside=lost)


@register_claim("causes.pinning")
def pin_claim(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    return _loss_of_mdm(measured, _find_interventions(measured, "pin-anchors"), mdm)


@register_claim("causes.pinning_layers")
def pin_layers_claim(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    return _loss_of_mdm(measured, _find_interventions(measured, "pin-anchors", across_layers=True), mdm)


@register_claim("causes.moving")
def move_claim(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    return _loss_of_mdm(measured, _find_interventions(measured, "move-anchors"), mdm)


@register_claim("causes.heads")
def heads_claim(measured: xr.Dataset, *, model: str | None = None) -> Outcome:
    indices = _find_interventions(measured, "ablate-heads(heads=top", dosed=True) or _find_interventions(
        measured, "ablate-heads(heads=top"
    )
    return _loss_of(
        measured,
        _losses(measured, "accuracy", indices),
        model=model,
        beside={"loss compared with the plain run": _raw(measured, "accuracy", indices)},
    )


@register_claim("causes.form")
def form_claim(measured: xr.Dataset, *, model: str | None = None) -> Outcome:
    parts = _halves(measured, "mask-anchors")
    losses = {half: _losses(measured, "well_formed", indices) for half, indices in parts.items()}
    return _loss_of(
        measured,
        losses["shallow"] - losses["deep"],
        model=model,
        beside={f"lost with the {half} anchors": values for half, values in losses.items()}
        | {"answers that do not end, shallow": _losses(measured, "ended", parts["shallow"])},
    )


@register_claim("causes.content")
def content_claim(measured: xr.Dataset, *, model: str | None = None) -> Outcome:
    parts = _halves(measured, "ablate-heads(heads=top")
    losses = {half: _losses(measured, "accuracy", indices) for half, indices in parts.items()}
    return _loss_of(
        measured,
        losses["deep"] - losses["shallow"],
        model=model,
        beside={f"lost with the {half} heads": values for half, values in losses.items()},
    )


def _loss_of_mdm(measured: xr.Dataset, indices: Sequence[int], mdm: str | None) -> Outcome:
    """Loss of an MDM's accuracy under interventions beyond that of their controls."""
    return _loss_of(
        measured,
        _losses(measured, "accuracy", indices),
        kind="mdm",
        model=mdm,
        beside={"loss compared with the plain run": _raw(measured, "accuracy", indices)}
        | {"agreement with the plain answer": _mean(measured, "agreement", indices)}
        | {"KL to the plain run, nats": _mean(measured, "kl", indices)},
    )


def _mean(measured: xr.Dataset, name: str, indices: Sequence[int]) -> Array:
    if not indices:
        return np.full(measured.sizes["sample"], np.nan)
    return np.asarray(measured[name].values[:, indices].mean(axis=1))


def _loss_of(measured: xr.Dataset, values: Array, **about: Any) -> Outcome:
    """Mean loss over questions; the reason is set if the run does not hold the intervention."""
    more: dict[str, Any] = (
        {} if np.isfinite(values).any() else {"reason": "the run holds no such intervention with its control"}
    )
    return mean_of(measured, values, what="questions", **about, **more)


def tables(measured: xr.Dataset) -> list[ReportTable]:
    frame = table(measured)
    shown = pd.DataFrame(
        {
            "intervention": frame["intervention"],
            "model": [short(str(model)) for model in frame["model"]],
            "without": frame["plain"],
            "under it": frame["under"],
            "under its control": frame["control"],
            "lost beyond the control": frame["loss"],
            "questions": frame["n"].astype(int),
        }
    )
    return [as_table("Accuracy without and with each intervention", shown, number)]


def sentences(measured: xr.Dataset) -> list[str]:
    found = []
    frame = table(measured)
    for model, of in frame.groupby("model", sort=False):
        worst = of.iloc[int(of["loss"].fillna(-1).argmax())]
        plain = float(of["plain"].iloc[0])
        found.append(
            f"{short(str(model))} answers {percent(plain)} correctly without interventions. The largest loss beyond the "
            f"matched control is under {worst['intervention']}: {points(-float(worst['loss']))} points "
            f"({percent(float(worst['under']))} correct with it, {percent(float(worst['control']))} with the control)."
        )
    return found


REPORT = ReportText(
    title="Causes",
    question="What are anchors and retrieval heads for?",
    views={
        "dose": (
            "Score over the dose, compared with the control",
            "The dose is the number of masked anchors or removed heads. The control treats the same number of random "
            "positions or heads; where the two lines differ, it matters which ones are chosen.",
        ),
        "effects": (
            "Loss under each intervention beyond its control",
            "Zero is the loss with random positions or heads. Lines are 95 % intervals over questions.",
        ),
    },
    tables=tables,
    sentences=sentences,
)
causes = register_finding(
    Finding(
        "causes",
        paper="beyond the paper",
        measure=measure,
        figure=figure,
        views=VIEWS,
        reads="answers",
        setting="passages",
        report=REPORT,
        part="causes",
        applies=lambda answers: "role" in answers and bool(answers["role"].notna().any()),
    )
)
claims = causes.claims
