"""MaskPositions: hide positions, a region or a kind of token from all queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from floatlens.errors import FloatLensError
from floatlens.interventions.intervention import Intervention, set_fields
from floatlens.interventions.live_anchors import draw_others
from floatlens.interventions.registry import register_intervention
from floatlens.interventions.target_positions import canonical_target, check_target, describe_target, target_columns

if TYPE_CHECKING:
    from floatlens.interventions.attention_call import AttentionCall
    from floatlens.interventions.decoding_state import DecodingState


@register_intervention
@dataclass(frozen=True)
class MaskPositions(Intervention):
    """Named positions receive no attention; rows renormalise.

    Exactly one of `positions`, `region` and `kind` selects them:

    positions  0, 0:4 or [0, 7], counted from the prompt's first token
    region     bos, instruction, query, doc2, answer; gold (the gold documents), docs, prompt, template (in no region)
    kind       the kind of the token at the current step: punctuation, newline, special, mask, template,
               function, number, name, content; structural or lexical for a group of them
    layers, heads   layers and heads to change; all by default
    random     a seed: mask the same number of other, random positions instead (the matched control)

    A query that would not see any key still sees itself. Selecting every position is an error.

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
            **canonical_target(self),
            **self.canonical_places(),
        )
        check_target(self, at_least=1)
        if self.positions in (":", "0:"):
            raise FloatLensError(f"positions={self.positions} is every position; leave at least one position visible")

    @property
    def summary(self) -> str:
        what = (
            f"as many random positions as {describe_target(self)}" if self.random is not None else describe_target(self)
        )
        one = self.random is None and self.positions is not None and self.positions.isdecimal()
        return f"{what[0].upper()}{what[1:]} {'receives' if one else 'receive'} no attention{self.where}."

    def control(self, seed: int) -> MaskPositions:
        return MaskPositions(self.positions, self.region, self.kind, self.layers, self.heads, seed)

    def begin(self, state: DecodingState) -> None:
        if self.kind is None:
            columns = target_columns(self, state)
            if bool((columns | ~state.real_BN())[:, : state.length].all(axis=1).any()):
                raise FloatLensError(f"{self} masks every position of a prompt; leave at least one position visible")

    def change(self, attention: AttentionCall) -> None:
        state = attention.state
        columns = target_columns(self, state)[:, : state.length]
        if self.random is not None:
            columns = draw_others(state, columns, self.random)
        if columns.any():
            attention.hide(columns, self.heads_in(attention))
