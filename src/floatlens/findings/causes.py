"""Causes: what are anchors and retrieval heads for? Break them and see what breaks.

Beyond arXiv 2601.07894, which observes. Measured on the answers of `floatlens ablate`: the same questions without and
with an intervention, and with its matched control, in which as many random positions or heads are treated alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from floatlens.errors import FloatLensError
from floatlens.evaluation import statistics
from floatlens.evaluation.ablate.condition import CHANGED, CONTROL, PLAIN
from floatlens.evaluation.ablate.job import MEASURES
from floatlens.evaluation.answers import Answers, answers_of
from floatlens.findings import style
from floatlens.findings.draw_causes import LOWER_IS_BETTER, draw_dose, draw_effects
from floatlens.findings.finding import Finding, ReportText, Table, as_table, register_claim, register_finding
from floatlens.findings.samples import Array, mean_over, models_of
from floatlens.findings.sides import NAN, compare, names, side
from floatlens.findings.spelling import number, percent, points
from floatlens.findings.style import short
from floatlens.findings.verdict import Verdict
from floatlens.stats import INCONCLUSIVE, bootstrap_mean, judge_scores, too_few
from floatlens.version import __version__

VIEWS = ("dose", "effects")


def measure(answers: Answers | xr.Dataset) -> xr.Dataset:
    """What does each intervention do to each question? One row a model and question.

    | variable | dims | what |
    |---|---|---|
    | accuracy, f1, em, agreement, confidence, kl, gold_nll, ended, well_formed, ... | sample, intervention | under it |
    | NAME_control | sample, intervention | under its matched control, mean over seeds; NaN where there is none |
    | NAME_plain | sample | without any intervention |

    `group` and `dose` (along intervention) say which curve an intervention is a point of.
    """
    if isinstance(answers, xr.Dataset):
        return answers
    table = answers_of(answers)
    table = table[table["role"].isin([PLAIN, CHANGED, CONTROL])] if "role" in table else table.iloc[:0]
    if table.empty:
        raise FloatLensError("there are no answers under interventions; make them with floatlens ablate")
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
    """One row a model and intervention: the score without it, under it and under its control, with intervals.

    `loss` is what the intervention takes from the score beyond its control (without a control, beyond the plain run); for
    surprise and KL, where less is better, what it adds.
    """
    measured = measure(answers)
    check_score(score)
    rows = []
    for model in models_of(measured):
        here = measured["model"].values == model
        for place, name in enumerate(map(str, measured["intervention"].values)):
            under, control = (measured[key].values[here, place] for key in (score, f"{score}_control"))
            if not np.isfinite(under).any():
                continue
            plain = measured[f"{score}_plain"].values[here]
            found = {"under": statistics.mean(under), "plain": statistics.mean(plain)}
            found |= {"control": statistics.mean(control), "loss": statistics.mean(loss(measured, score, place)[here])}
            about: dict[str, Any] = {
                "model": model,
                "intervention": name,
                "group": str(measured["group"].values[place]),
            }
            about |= {"dose": float(measured["dose"].values[place]), "score": score, "n": found["under"].n}
            numbers: dict[str, float] = {}
            for key, estimate in found.items():
                numbers |= {key: estimate.value, f"{key}_low": estimate.low, f"{key}_high": estimate.high}
            rows.append({**about, **numbers})
    return pd.DataFrame(rows)


def loss(measured: xr.Dataset, score: str, place: int) -> Array:
    """What an intervention takes from the score of each question beyond its control; NaN where the control failed.

    For a model that was never asked under the control, what it takes beyond the plain run.
    """
    under, control = (measured[key].values[:, place] for key in (score, f"{score}_control"))
    models = measured["model"].values
    controlled = np.isin(models, models[np.isfinite(control)])
    beside = np.where(controlled, control, measured[f"{score}_plain"].values)
    return np.asarray(under - beside if score in LOWER_IS_BETTER else beside - under)


def check_score(score: str) -> None:
    if score not in MEASURES:
        raise FloatLensError(f"score {score!r} is not known; use one of {', '.join(MEASURES)}")


# --- figures --------------------------------------------------------------------------------------------------------------


def figure(
    answers: Answers | xr.Dataset, *, score: str = "accuracy", view: str = "dose", backend: str = "matplotlib"
) -> Figure | pd.DataFrame:
    """Score over the dose beside its control (`dose`), or what each intervention takes beyond its control (`effects`)."""
    style.check_backend(backend)
    style.check_view(view, VIEWS)
    numbers = table(answers, score=score)
    if view == "dose":
        numbers = numbers[np.isfinite(numbers["dose"])]
    if backend == "none":
        return numbers
    return draw_dose(numbers, score) if view == "dose" else draw_effects(numbers, score)


# --- claims ---------------------------------------------------------------------------------------------------------------


def _places(measured: xr.Dataset, kind: str, *, layers: str | None = None, dosed: bool = False) -> list[int]:
    """Interventions of a kind: in these layers, or in all when none are named; `dosed`: those given in doses."""
    found = []
    for place, (name, dose) in enumerate(zip(measured["intervention"].values, measured["dose"].values, strict=True)):
        where = f"layers={layers}" in str(name) if layers else "layers=" not in str(name)
        controlled = np.isfinite(measured["accuracy_control"].values[:, place]).any()
        if str(name).startswith(kind) and where and controlled and (np.isfinite(dose) or not dosed):
            found.append(place)
    return found


def _halves(measured: xr.Dataset, kind: str) -> dict[str, list[int]]:
    """Interventions of a kind in the shallow half of the layers, and in the deep half."""
    return {half: _places(measured, kind, layers=half) for half in ("shallow", "deep")}


def _losses(measured: xr.Dataset, score: str, places: Sequence[int]) -> Array:
    """Mean over interventions of what each takes beyond its control; NaN where a question lacks one."""
    if not places:
        return np.full(measured.sizes["sample"], np.nan)
    return np.mean([loss(measured, score, place) for place in places], axis=0)


def _raw(measured: xr.Dataset, score: str, places: Sequence[int]) -> Array:
    """The same beside the un-intervened run."""
    if not places:
        return np.full(measured.sizes["sample"], np.nan)
    plain = measured[f"{score}_plain"].values
    return np.mean([plain - measured[score].values[:, place] for place in places], axis=0)


@register_claim(
    "causes.masking",
    finding="causes",
    sentence="Masking anchors hurts the ARM more than the MDM",
    source="FloatLens",
)
def anchors_claim(answers: Answers | xr.Dataset, *, mdm: str | None = None, arm: str | None = None) -> Verdict:
    """Masking anchors hurts the ARM more than the MDM."""
    measured = measure(answers)
    places = _places(measured, "mask-anchors", dosed=True) or _places(measured, "mask-anchors")
    raw = _raw(measured, "accuracy", places)

    def decide(interval: tuple[float, float], sides: dict[str, Array]) -> tuple[str, str, dict[str, Any]]:
        beyond = {name.upper(): 100 * float(mean_over(sides[f"{name}_values"], 0)) for name in ("mdm", "arm")}
        alone = {name.upper(): 100 * float(mean_over(raw[sides[name]], 0)) for name in ("mdm", "arm")}
        said = f"beyond its control the ARM loses {beyond['ARM']:.1f} points, the MDM {beyond['MDM']:.1f}"
        details = {f"{name} loss beyond control, points": value for name, value in beyond.items()}
        details |= {f"{name} loss, points": value for name, value in alone.items()}
        found = judge_scores(interval)
        return found, said if found != INCONCLUSIVE else f"the interval holds zero ({said})", details

    return compare(
        measured,
        _losses(measured, "accuracy", places),
        finding="causes",
        claim="Masking anchors hurts the ARM more than the MDM",
        statistic="loss of accuracy beyond the control, mean over doses, ARM minus MDM",
        mdm=mdm,
        arm=arm,
        decide=decide,
        sign=-1,
    )


@register_claim(
    "causes.pinning",
    finding="causes",
    sentence="Pinning the anchors hurts the MDM",
    source="FloatLens",
)
def pin_claim(answers: Answers | xr.Dataset, *, mdm: str | None = None) -> Verdict:
    """Pinning the anchors hurts the MDM."""
    measured = measure(answers)
    places = _places(measured, "pin-anchors")
    return _judged(
        measured,
        _losses(measured, "accuracy", places),
        side(measured, "mdm", mdm),
        claim="Pinning the anchors hurts the MDM",
        statistic="loss of accuracy beyond the control",
        beside={"loss beside the plain run": _raw(measured, "accuracy", places)}
        | {"agreement with the plain answer": _mean(measured, "agreement", places)}
        | {"KL to the plain run, nats": _mean(measured, "kl", places)},
    )


@register_claim(
    "causes.heads",
    finding="causes",
    sentence="The top retrieval heads matter more than as many random heads",
    source="FloatLens",
)
def heads_claim(answers: Answers | xr.Dataset, *, model: str | None = None) -> Verdict:
    """The top retrieval heads matter more than as many random heads."""
    measured = measure(answers)
    places = _places(measured, "ablate-heads(heads=top", dosed=True) or _places(measured, "ablate-heads(heads=top")
    return _judged(
        measured,
        _losses(measured, "accuracy", places),
        _rows(measured, model),
        claim="The top retrieval heads matter more than as many random heads",
        statistic="loss of accuracy beyond the control, mean over doses",
        beside={"loss beside the plain run": _raw(measured, "accuracy", places)},
    )


@register_claim(
    "causes.form",
    finding="causes",
    sentence="Shallow anchors matter for form",
    source="FloatLens",
)
def form_claim(answers: Answers | xr.Dataset, *, model: str | None = None) -> Verdict:
    """Shallow anchors matter for form: masking them leaves fewer well-formed answers than masking deep ones."""
    measured = measure(answers)
    parts = _halves(measured, "mask-anchors")
    losses = {half: _losses(measured, "well_formed", places) for half, places in parts.items()}
    return _judged(
        measured,
        losses["shallow"] - losses["deep"],
        _rows(measured, model),
        claim="Shallow anchors matter for form",
        statistic="well-formed answers lost beyond the control, shallow anchors minus deep ones",
        beside={f"lost with the {half} anchors": values for half, values in losses.items()}
        | {"answers that do not end, shallow": _losses(measured, "ended", parts["shallow"])},
    )


@register_claim(
    "causes.content",
    finding="causes",
    sentence="Deep heads matter for content",
    source="FloatLens",
)
def content_claim(answers: Answers | xr.Dataset, *, model: str | None = None) -> Verdict:
    """Deep heads matter for content: taking out the deep ones costs more accuracy than the shallow ones."""
    measured = measure(answers)
    parts = _halves(measured, "ablate-heads(heads=top")
    losses = {half: _losses(measured, "accuracy", places) for half, places in parts.items()}
    return _judged(
        measured,
        losses["deep"] - losses["shallow"],
        _rows(measured, model),
        claim="Deep heads matter for content",
        statistic="loss of accuracy beyond the control, deep retrieval heads minus shallow ones",
        beside={f"lost with the {half} heads": values for half, values in losses.items()},
    )


def _rows(measured: xr.Dataset, model: str | None) -> Array:
    rows = np.arange(measured.sizes["sample"])
    return rows if model is None else rows[measured["model"].values == model]


def _mean(measured: xr.Dataset, name: str, places: Sequence[int]) -> Array:
    if not places:
        return np.full(measured.sizes["sample"], np.nan)
    return np.asarray(measured[name].values[:, places].mean(axis=1))


def _judged(
    measured: xr.Dataset, values: Array, rows: Array, *, claim: str, statistic: str, beside: dict[str, Array]
) -> Verdict:
    """The mean of `values` over these rows lies above zero, or not."""
    usable = rows[np.isfinite(values[rows])]
    value, interval = bootstrap_mean(values[usable]) if len(usable) else (float("nan"), NAN)
    verdict = judge_scores(interval)
    reason = too_few(len(usable), "questions") if len(usable) else "the run holds no such intervention with its control"
    if reason:
        verdict = INCONCLUSIVE
    else:
        low, high = (100 * end for end in interval)
        reason = f"{100 * value:.1f} points, interval {low:.1f} to {high:.1f}"
    details = {name: float(mean_over(numbers[usable], 0)) for name, numbers in beside.items()} if len(usable) else {}
    return Verdict(
        "causes", claim, statistic, value, interval, verdict, "", len(usable), names(measured, rows), reason, details
    )


def tables(measured: xr.Dataset) -> list[Table]:
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
            f"{short(str(model))} has {percent(plain)} right when it is left alone. What costs it most beyond the matched "
            f"control is {worst['intervention']}: {points(-float(worst['loss']))} points ({percent(float(worst['under']))} "
            f"right under it, {percent(float(worst['control']))} under the control)."
        )
    return found


REPORT = ReportText(
    title="Causes",
    question="What are anchors and retrieval heads for?",
    views={
        "dose": (
            "Score over the dose, beside the control",
            "The more anchors are masked or heads taken out, the further right. The control treats as many random positions "
            "or heads alike; where the two lines part, it matters which ones are taken.",
        ),
        "effects": (
            "What each intervention takes beyond its control",
            "Zero is as much as random positions or heads take. Lines are 95 % intervals over questions.",
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
        report=REPORT,
        part="causes",
        applies=lambda answers: "role" in answers and bool(answers["role"].notna().any()),
    )
)
claims = causes.claims
