"""What is done in a study of causes: interventions, the doses of each, and the matched control beside every one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floatlens.errors import FloatLensError
from floatlens.interventions import parse
from floatlens.interventions.intervention import Intervention

NONE = "none"
PLAIN, CHANGED, CONTROL = "plain", "intervention", "control"
DOSE = "{n}"  # where the dose goes in an intervention's text
SEEDS = (0, 1)
NUMBERS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Condition:
    """One way of running the questions.

    `name` is the intervention's text, `of` that of the intervention which a control is matched to; `group` is the text
    with {n} in place of the dose, the curve that the condition is a point of.
    """

    name: str
    role: str
    group: str = ""
    dose: float | None = None
    of: str = ""
    seed: int | None = None

    @property
    def interventions(self) -> list[Intervention]:
        return [] if self.role == PLAIN else [parse(self.name)]


def standard(layers: int) -> list[str]:
    """What the claims rest on, for models of at least so many layers."""
    count = min(6, layers)
    some = sorted({round(place * (layers - 1) / max(count - 1, 1)) for place in range(count)})
    return [
        f"mask-anchors(rule=top({DOSE}))",
        "pin-anchors(rule=sigma(3))",
        f"ablate-heads(heads=top({DOSE}))",
        *(f"mask-anchors(rule=top(4), layers={half})" for half in ("shallow", "deep")),
        *(f"ablate-heads(heads=top(2), layers={half})" for half in ("shallow", "deep")),
        f"mask-anchors(rule=sigma(3), layers={DOSE}) @ {','.join(map(str, some))}",
    ]


def conditions(
    specs: Sequence[str | Intervention], doses: Sequence[float] | None = None, seeds: Sequence[int] = SEEDS
) -> list[Condition]:
    """The un-intervened run, and each intervention at each dose with its controls, one a seed.

    A text with {n} is run at each dose; its own doses may follow it, as in "soft-cap({n}) @ 2,5,10".

    >>> [c.name for c in conditions(["mask-anchors(top({n}))"], [1, 2], seeds=[7])]  # doctest: +NORMALIZE_WHITESPACE
    ['none', 'mask-anchors(rule=top(n=1))', 'mask-anchors(rule=top(n=1), random=7)',
     'mask-anchors(rule=top(n=2))', 'mask-anchors(rule=top(n=2), random=7)']
    """
    if not specs:
        raise FloatLensError("there is no intervention to study; name at least one")
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
            raise FloatLensError(f"intervention {spec!r} has doses but no {DOSE} where they go")
        one = parse(text)
        return [(str(one), None, one)]
    chosen = _numbers(own, spec) if own else list(doses or NUMBERS)
    made = [(dose, parse(text.replace(DOSE, f"{dose:g}"))) for dose in chosen]
    return [(text.strip(), float(dose), one) for dose, one in made]


def _numbers(text: str, spec: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise FloatLensError(f"intervention {spec!r}: doses are numbers between commas, such as @ 1,2,4") from None
