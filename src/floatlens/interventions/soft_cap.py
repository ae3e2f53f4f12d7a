"""SoftCap: limit scores smoothly by a cap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from floatlens.errors import FloatLensError
from floatlens.interventions.intervention import Intervention, Shape, number, set_fields, setting_text
from floatlens.interventions.registry import register_intervention

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from floatlens.interventions.attention_call import AttentionCall


@register_intervention
@dataclass(frozen=True)
class SoftCap(Intervention):
    """Limit scores smoothly by a cap: cap · tanh(score / cap), as Gemma 2 does (arXiv 2408.00118).

    cap      above 0; small caps make attention nearly uniform
    layers   layers to change; all by default

    >>> str(SoftCap(5, layers="deep"))
    'soft-cap(cap=5, layers=deep)'
    """

    name: ClassVar[str] = "soft-cap"

    cap: float = 10.0
    layers: Any = None

    def __post_init__(self) -> None:
        set_fields(
            self,
            cap=number(self.cap, "cap"),
            **self.canonical_places(),
        )
        if self.cap <= 0:
            raise FloatLensError(
                f"cap {setting_text(self.cap)} should be above 0; a small cap makes attention nearly uniform"
            )

    @property
    def summary(self) -> str:
        return f"Scores are limited smoothly to at most {setting_text(self.cap)}{self.where}."

    def check(self, shape: Shape, config: PreTrainedConfig) -> None:
        super().check(shape, config)
        if getattr(config, "attn_logit_softcapping", None):
            raise FloatLensError(
                f"the model caps its scores at {config.attn_logit_softcapping} itself; soft-cap would cap them twice"
            )

    def contradicts(self, other: Intervention) -> str:
        return "a layer can only have one cap" if isinstance(other, SoftCap) else ""

    def change(self, attention: AttentionCall) -> None:
        attention.cap(self.cap)
