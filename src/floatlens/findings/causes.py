"""Causes: what are anchors and retrieval heads for? Break them and see what breaks.

Beyond arXiv 2601.07894, which observes. Measured on the answers of `floatlens ablate`: the same questions without and
with an intervention, and with its matched control, in which as many random positions or heads are treated alike.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from floatlens.errors import FloatLensError
from floatlens.findings import style
from floatlens.findings.registry import Finding
from floatlens.findings.samples import Array, mean_over, models_of
from floatlens.findings.sides import NAN, compare, side
from floatlens.findings.verdict import INCONCLUSIVE, Verdict, interval_of_mean, judge, too_few
from floatlens.tasks import statistics
from floatlens.tasks.ablate.condition import CHANGED, CONTROL, PLAIN
from floatlens.tasks.ablate.outcome import MEASURES
from floatlens.tasks.answers import Answers, answers_of
from floatlens.version import __version__

VIEWS = ("dose", "effects")
LOWER_IS_BETTER = ("kl", "gold_nll")
LABELS = {"kl": "KL to the un-intervened (nats)", "gold_nll": "surprise of the gold answer (nats)"}


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
    diffusion = table.drop_duplicates("model").set_index("model")["diffusion"]
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
            "diffusion": ("sample", diffusion.reindex(models).to_numpy(bool)),
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
    """What an intervention takes from the score of each question beyond its control, or beyond the plain run."""
    under, control = (measured[key].values[:, place] for key in (score, f"{score}_control"))
    beside = np.where(np.isfinite(control), control, measured[f"{score}_plain"].values)
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
    return _draw_dose(numbers, score) if view == "dose" else _draw_effects(numbers, score)


def _draw_dose(numbers: pd.DataFrame, score: str) -> Figure:
    groups, models = list(dict.fromkeys(numbers["group"])), list(dict.fromkeys(numbers["model"]))
    colours, markers = style.colour_of(models), style.marker_of(models)
    columns = max(1, min(3, len(groups)))
    rows = max(1, -(-len(groups) // columns))
    factor = 1.0 if score in LOWER_IS_BETTER else 100.0
    with style.sheet():
        drawn = style.new_figure(0.9 + 1.9 * rows)
        grid = drawn.subplots(rows, columns, squeeze=False, sharey=True)
        for axes, group in zip(grid.flat, groups, strict=False):
            for model in models:
                part = numbers[(numbers["group"] == group) & (numbers["model"] == model)].sort_values("dose")
                if len(part):
                    look = {"color": colours[model], "marker": markers[model], "label": style.short(model)}
                    _dose_line(axes, part, look, factor, starts="layers={n}" not in group)
            axes.set_title(_titled(group))
            axes.set_xlabel(_axis(group))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        for axes in list(grid.flat)[len(groups) :]:
            axes.set_axis_off()
        if not groups:
            grid[0, 0].text(0.5, 0.5, "no intervention was given in doses", ha="center", va="center")
        else:
            drawn.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(models))
            if factor == 100.0:
                grid[0, 0].set_ylim(-3, 103)
        for axes in grid[:, 0]:
            axes.set_ylabel(LABELS.get(score, f"{score.replace('_', ' ')} (%)"))
        n = int(numbers["n"].max()) if len(numbers) else 0
        style.caption(
            drawn,
            f"Mean over up to {n} questions; bands: 95 % bootstrap intervals. Dashed: as many random positions or heads, "
            f"mean over seeds. Dose 0 or dotted: without.",
        )
    return drawn


def _dose_line(axes: Axes, part: pd.DataFrame, look: dict[str, Any], factor: float, starts: bool) -> None:
    """The intervention as a line, its control dashed; both start at the un-intervened score where a dose is a number."""
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
    models, names = list(dict.fromkeys(numbers["model"])), list(dict.fromkeys(numbers["intervention"]))
    colours, markers = style.colour_of(models), style.marker_of(models)
    factor, unit = (1.0, "nats") if score in LOWER_IS_BETTER else (100.0, "points")
    with style.sheet():
        drawn = style.new_figure(1.1 + 0.22 * len(names))
        axes = drawn.subplots()
        for place, model in enumerate(models):
            part = numbers[numbers["model"] == model].set_index("intervention")
            y = np.array([names.index(name) for name in part.index]) + 0.26 * (place - (len(models) - 1) / 2)
            value, low, high = (factor * part[f"loss{end}"].to_numpy(float) for end in ("", "_low", "_high"))
            look: dict[str, Any] = {"color": colours[model], "marker": markers[model], "label": style.short(model)}
            axes.errorbar(value, y, xerr=np.array([value - low, high - value]), ls="none", lw=0.9, ms=3.5, **look)
        axes.axvline(0, color="#555555", lw=0.6)
        for place in range(1, len(names), 2):
            axes.axhspan(place - 0.5, place + 0.5, color="#f3f3f3", lw=0, zorder=0)
        axes.set_yticks(range(len(names)), [_titled(name) for name in names])
        axes.set_ylim(len(names) - 0.5, -0.5)
        what = "added to" if score in LOWER_IS_BETTER else "taken from"
        axes.set_xlabel(f"{what} {LABELS.get(score, score.replace('_', ' '))} beyond the control ({unit})")
        drawn.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=len(models))
        n = int(numbers["n"].max())
        style.caption(
            drawn, f"Mean over up to {n} questions with 95 % bootstrap intervals, paired question by question."
        )
    return drawn


def _axis(group: str) -> str:
    """What the dose of a group counts."""
    known = {"layers={n}": "layer", "heads=top({n}": "heads", "rule=top({n}": "anchors"}
    return next((word for part, word in known.items() if part in group), "dose")


def _titled(text: str) -> str:
    """An intervention's text without what every reader fills in.

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
        found = judge(interval)
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


def pin_claim(answers: Answers | xr.Dataset, *, mdm: str | None = None) -> Verdict:
    """Pinning the anchors hurts the MDM."""
    measured = measure(answers)
    places = _places(measured, "pin-anchors")
    return _judged(
        measured,
        _losses(measured, "accuracy", places),
        side(measured, True, mdm),
        claim="Pinning the anchors hurts the MDM",
        statistic="loss of accuracy beyond the control",
        beside={"loss beside the plain run": _raw(measured, "accuracy", places)}
        | {"agreement with the plain answer": _mean(measured, "agreement", places)}
        | {"KL to the plain run, nats": _mean(measured, "kl", places)},
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


def form_claim(answers: Answers | xr.Dataset, *, model: str | None = None) -> Verdict:
    """Shallow anchors matter for form: masking them leaves fewer well-formed answers than masking deep ones."""
    measured = measure(answers)
    parts = {half: _places(measured, "mask-anchors", layers=half) for half in ("shallow", "deep")}
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


def content_claim(answers: Answers | xr.Dataset, *, model: str | None = None) -> Verdict:
    """Deep heads matter for content: taking out the deep ones costs more accuracy than the shallow ones."""
    measured = measure(answers)
    parts = {half: _places(measured, "ablate-heads(heads=top", layers=half) for half in ("shallow", "deep")}
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
    return np.flatnonzero(
        np.full(measured.sizes["sample"], True) if model is None else measured["model"].values == model
    )


def _mean(measured: xr.Dataset, name: str, places: Sequence[int]) -> Array:
    if not places:
        return np.full(measured.sizes["sample"], np.nan)
    return np.asarray(measured[name].values[:, places].mean(axis=1))


def _judged(
    measured: xr.Dataset, values: Array, rows: Array, *, claim: str, statistic: str, beside: dict[str, Array]
) -> Verdict:
    """The mean of `values` over these rows lies above zero, or not."""
    usable = rows[np.isfinite(values[rows])]
    models = tuple(dict.fromkeys(str(m) for m in measured["model"].values[rows]))
    value, interval = interval_of_mean(values[usable]) if len(usable) else (float("nan"), NAN)
    verdict = judge(interval)
    reason = too_few(len(usable), "questions") if len(usable) else "the run holds no such intervention with its control"
    if reason:
        verdict = INCONCLUSIVE
    else:
        low, high = (100 * end for end in interval)
        reason = f"{100 * value:.1f} points, interval {low:.1f} to {high:.1f}"
    details = {name: float(mean_over(numbers[usable], 0)) for name, numbers in beside.items()} if len(usable) else {}
    return Verdict("causes", claim, statistic, value, interval, verdict, "", len(usable), models, reason, details)


class Causes(Finding):
    """Its claims are about any model by itself, but for those about an MDM, or an MDM beside an ARM."""

    def claims(self, traces: Any, **settings: Any) -> list[Verdict]:
        measured = measure(traces)
        found = []
        for claim in self._claims:
            if "model" in inspect.signature(claim).parameters:
                found += [claim(measured, model=model) for model in models_of(measured)]
        rest = [claim for claim in self._claims if "model" not in inspect.signature(claim).parameters]
        paired = Finding("causes", paper="", measure=measure, figure=figure, claims=rest, views=())
        return paired.claims(measured) + found


causes = Causes(
    "causes",
    paper="beyond the paper",
    measure=measure,
    figure=figure,
    claims=(anchors_claim, pin_claim, heads_claim, form_claim, content_claim),
    views=VIEWS,
    reads="answers",
)
