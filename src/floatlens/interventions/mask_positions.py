"""MaskPositions: what is this token, this document, all punctuation for? Let nobody look at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from floatlens.errors import FloatLensError
from floatlens.interventions import choose
from floatlens.interventions.anchors import as_many_others
from floatlens.interventions.attention import Attention
from floatlens.interventions.intervention import Intervention, set_fields, whole, words
from floatlens.interventions.scene import Scene
from floatlens.kinds import KINDS

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class MaskPositions(Intervention):
    """Named positions receive no attention; rows renormalise.

    Exactly one of `positions`, `region` and `kind` says which:

    positions  0, 0:4 or [0, 7], counted from the prompt's first token
    region     bos, instruction, query, doc2, answer; gold (the gold documents), docs, prompt, template (in no region)
    kind       the kind of the token that stands there at the step: punctuation, newline, special, mask, template,
               function, number, name, content; structural or lexical for a group of them
    layers, heads   where; everywhere when left out
    random     a seed: mask as many random other positions instead, the matched control

    A query that would be left with nothing to see keeps itself. Naming every position is refused.

    >>> str(MaskPositions(kind="punctuation")), MaskPositions(0).summary
    ('mask-positions(kind=punctuation)', 'Position 0 receives no attention.')
    """

    name: ClassVar[str] = "mask-positions"

    positions: Any = None
    region: Any = None
    kind: Any = None
    layers: Any = None
    heads: Any = None
    random: int | None = None

    def __post_init__(self) -> None:
        set_fields(
            self,
            positions=choose.canonical(self.positions, "position"),
            region=words(self.region, "region"),
            kind=kinds_of(self.kind),
            layers=choose.canonical(self.layers, "layer", choose.HALVES),
            heads=choose.canonical(self.heads, "head"),
            random=None if self.random is None else whole(self.random, "random"),
        )
        check_target(self, at_least=1)
        if self.positions in (":", "0:"):
            raise FloatLensError(f"positions={self.positions} is every position; a row must be left something to see")

    @property
    def summary(self) -> str:
        what = f"as many random positions as {target(self)}" if self.random is not None else target(self)
        one = self.random is None and self.positions is not None and self.positions.isdecimal()
        return f"{what[0].upper()}{what[1:]} {'receives' if one else 'receive'} no attention{self.where}."

    def control(self, seed: int) -> MaskPositions:
        return MaskPositions(self.positions, self.region, self.kind, self.layers, self.heads, seed)

    def begin(self, scene: Scene) -> None:
        if self.kind is None:
            columns = chosen_columns(self, scene)
            if bool((columns | ~scene.real_BN())[:, : scene.length].all(axis=1).any()):
                raise FloatLensError(f"{self} masks every position of a prompt; a row must be left something to see")

    def change(self, attention: Attention) -> None:
        scene = attention.scene
        columns = chosen_columns(self, scene)[:, : scene.length]
        if self.random is not None:
            columns = as_many_others(scene, columns, self.random)
        if columns.any():
            attention.hide(columns, None if self.heads is None else choose.numbers(self.heads, attention.H, "head"))


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
