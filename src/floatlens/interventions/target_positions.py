"""The positions that an intervention acts on, selected by number, by region, or by the kind of their tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from floatlens.data.token_kinds import KINDS
from floatlens.errors import FloatLensError
from floatlens.interventions import selection
from floatlens.interventions.intervention import Intervention, names_of

if TYPE_CHECKING:
    from floatlens.interventions.decoding_state import DecodingState

Array = np.ndarray[Any, Any]


def canonical_target(intervention: Any) -> dict[str, Any]:
    """The settings `positions`, `region` and `kind` in canonical form."""
    return {
        "positions": selection.canonical_text(intervention.positions, "position"),
        "region": names_of(intervention.region, "region"),
        "kind": kinds_of(intervention.kind),
    }


def kinds_of(given: Any) -> tuple[str, ...] | None:
    """Names of kinds, each of which exists."""
    found = names_of(given, "kind")
    known = (*KINDS, "structural", "lexical")
    for kind in found or ():
        if kind not in known:
            raise FloatLensError(f"token kind {kind!r} is not known; use one of {', '.join(known)}")
    return found


def check_target(intervention: Any, at_least: int, also: tuple[str, ...] = ()) -> None:
    """Raise an error unless the positions are specified in exactly one way."""
    ways = ("positions", "region", "kind", *also)
    given = [way for way in ways if getattr(intervention, way) is not None]
    if len(given) > 1 or len(given) < at_least:
        text = f"not {' and '.join(given)} together" if given else "none is given"
        raise FloatLensError(f"{intervention.name} takes one of {', '.join(ways)}; {text}")


def same_target(one: Intervention, other: Intervention) -> bool:
    """Whether two interventions act on the same positions, apart from layers and heads."""
    settings = ("positions", "region", "kind", "rule", "random")
    return all(getattr(one, name, None) == getattr(other, name, None) for name in settings)


def describe_target(intervention: Any) -> str:
    """A description of the positions that an intervention acts on."""
    if intervention.positions is not None:
        one = intervention.positions.isdecimal()
        return f"position{'' if one else 's'} {intervention.positions.strip('[]')}"
    if intervention.region is not None:
        return f"the positions of {', '.join(intervention.region)}"
    return f"all tokens of kind {' or '.join(intervention.kind)}"


def target_columns(intervention: Any, state: DecodingState) -> Array:
    """Columns (B, N; for a kind B, T so far) that an intervention selects; computed once per step, or once per run."""
    key = ("columns", intervention, state.step if intervention.kind is not None else None)
    if key not in state.notes:
        if intervention.positions is not None:
            state.notes[key] = state.positions_BN(intervention.positions)
        elif intervention.region is not None:
            state.notes[key] = state.regions_BN(intervention.region)
        else:
            state.notes[key] = state.kinds_BT(intervention.kind)
    found: Array = state.notes[key]
    return found
