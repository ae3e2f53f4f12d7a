"""Which positions an intervention acts on: named one by one, by region, or by the kind of their tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from floatlens.data.token_kinds import KINDS
from floatlens.errors import FloatLensError
from floatlens.interventions import choose
from floatlens.interventions.intervention import words
from floatlens.interventions.scene import Scene

Array = np.ndarray[Any, Any]


def canonical_target(intervention: Any) -> dict[str, Any]:
    """The settings `positions`, `region` and `kind` in canonical form."""
    return {
        "positions": choose.canonical(intervention.positions, "position"),
        "region": words(intervention.region, "region"),
        "kind": kinds_of(intervention.kind),
    }


def kinds_of(given: Any) -> tuple[str, ...] | None:
    """Names of kinds, each of which exists."""
    found = words(given, "kind")
    known = (*KINDS, "structural", "lexical")
    for kind in found or ():
        if kind not in known:
            raise FloatLensError(f"token kind {kind!r} is not known; use one of {', '.join(known)}")
    return found


def check_target(intervention: Any, at_least: int, also: tuple[str, ...] = ()) -> None:
    """Refuse more than one way of saying which positions, or fewer than needed."""
    ways = ("positions", "region", "kind", *also)
    given = [way for way in ways if getattr(intervention, way) is not None]
    if len(given) > 1 or len(given) < at_least:
        said = f"not {' and '.join(given)} together" if given else "none is given"
        raise FloatLensError(f"{intervention.name} takes one of {', '.join(ways)}; {said}")


def target(intervention: Any) -> str:
    """What an intervention acts on, in words."""
    if intervention.positions is not None:
        one = intervention.positions.isdecimal()
        return f"position{'' if one else 's'} {intervention.positions.strip('[]')}"
    if intervention.region is not None:
        return f"the positions of {', '.join(intervention.region)}"
    return f"all tokens of kind {' or '.join(intervention.kind)}"


def chosen_columns(intervention: Any, scene: Scene) -> Array:
    """Columns (B, N; for a kind B, T so far) that an intervention names; found once a step, or once a run."""
    place = ("columns", intervention, scene.step if intervention.kind is not None else None)
    if place not in scene.notes:
        if intervention.positions is not None:
            scene.notes[place] = scene.positions_BN(intervention.positions)
        elif intervention.region is not None:
            scene.notes[place] = scene.regions_BN(intervention.region)
        else:
            scene.notes[place] = scene.kinds_BT(intervention.kind)
    found: Array = scene.notes[place]
    return found
