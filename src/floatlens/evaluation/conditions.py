"""The conditions under which questions are asked: interventions, their doses, and their matched random controls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floatlens.errors import FloatLensError
from floatlens.interventions.intervention import Intervention, check, parse_intervention
from floatlens.options import Load, Sampling

NONE = "none"
PLAIN, CHANGED, CONTROL = "plain", "intervention", "control"
DOSE = "{n}"  # placeholder of the dose in the text of an intervention
SEEDS = (0, 1)
NUMBERS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Condition:
    """One condition under which the questions are answered.

    `name` is the text of the intervention, `of` the text of the intervention that a control is matched to, and `group` the
    text with {n} instead of the dose: conditions of one group are the points of one curve.
    """

    name: str
    role: str
    group: str = ""
    dose: float | None = None
    of: str = ""
    seed: int | None = None

    @property
    def intervention(self) -> str:
        """The text of the active intervention, empty without one."""
        return "" if self.role == PLAIN else self.name


def standard(layers: int) -> list[str]:
    """Return the interventions that the claims need, for a model with this number of layers."""
    count = min(6, layers)
    some = sorted({round(i * (layers - 1) / max(count - 1, 1)) for i in range(count)})
    return [
        f"mask-anchors(rule=top({DOSE}))",
        "pin-anchors(rule=sigma(3))",
        "pin-anchors(rule=sigma(3), across=layers)",
        f"move-anchors(by={DOSE}, rule=sigma(3)) @ 1,8,32",
        "add-sink(score=0)",
        f"ablate-heads(heads=top({DOSE}))",
        *(f"mask-anchors(rule=top(4), layers={half})" for half in ("shallow", "deep")),
        *(f"ablate-heads(heads=top(2), layers={half})" for half in ("shallow", "deep")),
        f"mask-anchors(rule=sigma(3), layers={DOSE}) @ {','.join(map(str, some))}",
    ]


def conditions(
    specs: Sequence[str | Intervention], doses: Sequence[float] | None = None, seeds: Sequence[int] = SEEDS
) -> list[Condition]:
    """Return the run without interventions, and each intervention at each dose with its controls, one per seed.

    A text with {n} is run at each dose; its own doses may follow it, as in "soft-cap({n}) @ 2,5,10".

    >>> [c.name for c in conditions(["mask-anchors(top({n}))"], [1, 2], seeds=[7])]  # doctest: +NORMALIZE_WHITESPACE
    ['none', 'mask-anchors(rule=top(n=1))', 'mask-anchors(rule=top(n=1), random=7)',
     'mask-anchors(rule=top(n=2))', 'mask-anchors(rule=top(n=2), random=7)']
    """
    found = [Condition(NONE, PLAIN)]
    for spec in specs:
        for group, dose, one in _doses(spec, doses):
            changed = Condition(str(one), CHANGED, group, dose, str(one))
            if any(changed.name == other.name for other in found):
                continue
            found.append(changed)
            for seed in seeds:
                if (control := one.control(seed)) is not None:
                    found.append(Condition(str(control), CONTROL, group, dose, changed.name, seed))
    return found


def _doses(spec: str | Intervention, doses: Sequence[float] | None) -> list[tuple[str, float | None, Intervention]]:
    if isinstance(spec, Intervention):
        return [(str(spec), None, spec)]
    text, _, own = spec.partition("@")
    if DOSE not in text:
        if own:
            raise FloatLensError(f"intervention {spec!r} has doses but no {DOSE} to insert them")
        one = parse_intervention(text)
        return [(str(one), None, one)]
    try:
        chosen = [float(part) for part in own.split(",")] if own else list(doses or NUMBERS)
    except ValueError:
        raise FloatLensError(
            f"intervention {spec!r}: doses must be numbers separated by commas, such as @ 1,2,4"
        ) from None
    made = [(dose, parse_intervention(text.replace(DOSE, f"{dose:g}"))) for dose in chosen]
    return [(text.strip(), float(dose), one) for dose, one in made]


def check_settings(
    models: Sequence[str],
    loading: Load,
    samplings: Sequence[Sampling] = (),
    specs: Sequence[str] | None = (),
    doses: Sequence[float] | None = None,
    seeds: Sequence[int] = SEEDS,
) -> None:
    """Raise an error for a model, setting or intervention that cannot be used, before any weights are read.

    `specs` are the interventions, None those that the claims need: a model may lack their layers or heads.
    """
    from floatlens.lens import Lens  # which imports torch

    for model in models:
        lens = Lens.find(model, loading)
        for sampling in samplings:
            lens.settings_of((), sampling)
        chosen = standard(lens.shape["layers"] or 1) if specs is None else specs
        for condition in conditions(chosen, doses, seeds)[1:]:
            check([parse_intervention(condition.name)], lens.shape, lens.config)
