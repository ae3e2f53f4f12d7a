"""AddSink: add an extra token that only absorbs attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from floatlens.interventions.intervention import Intervention, number, set_fields, setting_text
from floatlens.interventions.registry import register_intervention

if TYPE_CHECKING:
    from floatlens.interventions.attention_call import AttentionCall


@register_intervention
@dataclass(frozen=True)
class AddSink(Intervention):
    """Add an extra token that only absorbs attention: it has a score for every query and no value.

    After the sink token of arXiv 2601.19657, which sees only itself and is seen by all, here without training: the
    softmax runs over the keys and one more with the given score, which adds nothing to the output. A row's weights
    are multiplied by Z / (Z + exp(score)), where Z is the row's sum of exp(scores); score 0 is the softmax with one added
    to its denominator. A trace shows the weights of real positions, so received attention sums to less than 1.

    score    the sink's score, on the scale of the scores that the softmax sees
    layers, heads   layers and heads to change; all by default

    >>> str(AddSink(2)), AddSink(2).summary
    ('add-sink(score=2)', 'An extra token of score 2 absorbs attention and gives nothing back.')
    """

    name: ClassVar[str] = "add-sink"

    score: float = 0.0
    layers: Any = None
    heads: Any = None

    def __post_init__(self) -> None:
        set_fields(
            self,
            score=number(self.score, "score"),
            **self.canonical_places(),
        )

    @property
    def summary(self) -> str:
        return (
            f"An extra token of score {setting_text(self.score)} absorbs attention and gives nothing back{self.where}."
        )

    def contradicts(self, other: Intervention) -> str:
        return "a layer can only have one extra sink" if isinstance(other, AddSink) else ""

    def change(self, attention: AttentionCall) -> None:
        attention.absorb(self.score, self.heads_in(attention))
