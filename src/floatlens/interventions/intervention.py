"""The base class of interventions: a small frozen dataclass that changes attention calls.

Its fields are its settings. They are converted to a canonical form on creation, so that two equivalent interventions are
equal and print the same: `str(intervention)` is its text, which `parse_intervention` parses again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from floatlens.errors import FloatLensError
from floatlens.interventions import selection
from floatlens.specs import split_list

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from floatlens.anchors import Rule, RuleFunction
    from floatlens.interventions.attention_call import AttentionCall
    from floatlens.interventions.decoding_state import DecodingState
    from floatlens.lens import Lens, PromptLike

Shape = Mapping[str, int | None]


@dataclass(frozen=True)
class Intervention:
    """Base of all interventions. A subclass sets `name`, has its settings as fields, and overrides the methods it needs.

    Only `change` is required. It is called once per layer and forward pass with an `AttentionCall` of R rows, H heads, Q
    queries and T keys, and calls any of its methods, which commute:

        hide(columns, heads)       bool (B, length): these positions get no attention
        weigh(logs, heads)         float (B, length): log factors on the attention that positions get
        sharpen(factor, heads)     all scores times a factor
        cap(cap)                   scores become cap · tanh(scores / cap)
        absorb(score, heads)       one more key of this score and of no value
        replace(heads, output_HD)  the output of heads; None for zero

    It may read `attention.layer`, `attention.state` (tokens, regions and step: `DecodingState`) and
    `attention.received_RT()`, the attention that positions would receive without any intervention.

    Settings called `layers` and `heads` select where it acts: None for all, or a text such as 0:4 or [0, 2].
    """

    name: ClassVar[str]

    def __str__(self) -> str:
        parts = []
        for field in fields(self):
            value = getattr(self, field.name)
            shown = field.default is MISSING or value != field.default or field.name == "rule"
            if shown and value is not None:
                parts.append(f"{field.name}={setting_text(value)}")
        return f"{self.name}({', '.join(parts)})" if parts else self.name

    @property
    def summary(self) -> str:
        """One sentence that describes the intervention."""
        raise NotImplementedError

    def control(self, seed: int) -> Intervention | None:
        """The matched control: the same change of equally many random positions or heads. None if there is none."""
        return None

    @property
    def where(self) -> str:
        """Layers and heads as part of a sentence."""
        parts = []
        for what, choice in (("layer", getattr(self, "layers", None)), ("head", getattr(self, "heads", None))):
            if choice is not None:
                plural = "" if choice.isdecimal() else "s"
                words = choice.strip("[]")
                parts.append(f"in the {choice} layers" if choice in selection.HALVES else f"in {what}{plural} {words}")
        return f" {', '.join(parts)}" if parts else ""

    def layer_numbers(self, shape: Shape) -> list[int]:
        """The layers in which it acts, for a model of this shape."""
        return selection.select_numbers(getattr(self, "layers", None), shape["layers"] or 0, "layer")

    def head_numbers(self, shape: Shape) -> list[int]:
        """The heads on which it acts, for a model of this shape."""
        return selection.select_numbers(getattr(self, "heads", None), shape["heads"] or 0, "head")

    def heads_in(self, attention: AttentionCall) -> list[int] | None:
        """The heads of an attention call on which it acts; None for all."""
        heads = getattr(self, "heads", None)
        return None if heads is None else selection.select_numbers(heads, attention.H, "head")

    def canonical_places(self) -> dict[str, Any]:
        """The settings `layers`, `heads` and `random`, as far as it has them, in canonical form."""
        found: dict[str, Any] = {}
        if hasattr(self, "layers"):
            found["layers"] = selection.canonical_text(self.layers, "layer", selection.HALVES)
        if hasattr(self, "heads"):
            found["heads"] = selection.canonical_text(self.heads, "head")
        if hasattr(self, "random"):
            found["random"] = None if self.random is None else whole_number(self.random, "random")
        return found

    def check(self, shape: Shape, config: PreTrainedConfig) -> None:
        """Raise an error for layers and heads that the model does not have; needs no weights."""
        self.layer_numbers(shape)
        self.head_numbers(shape)

    def contradicts(self, other: Intervention) -> str:
        """The reason why this cannot be combined with another one in the same layer and heads; empty if it can."""
        return ""

    def prepared(self, lens: Lens, reference: Sequence[PromptLike] | None) -> Intervention:
        """The intervention prepared for a model, for example with the model's best heads."""
        return self

    def begin(self, state: DecodingState) -> None:
        """Called before a batch is decoded; raise an error if the prompts lack something that it needs."""

    def change(self, attention: AttentionCall) -> None:
        """Change one attention call; called only for layers in which the intervention acts."""
        raise NotImplementedError


def setting_text(value: Any) -> str:
    """A setting as text in a spec.

    >>> setting_text(0.5), setting_text(2.0), setting_text(("doc1", "doc2")), setting_text("gold")
    ('0.5', '2', '[doc1, doc2]', 'gold')
    """
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, tuple):
        return setting_text(value[0]) if len(value) == 1 else f"[{', '.join(map(setting_text, value))}]"
    return str(value)


def number(value: Any, what: str) -> float:
    """A finite number, from a number or its text."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = float("nan")
    if isinstance(value, bool) or found != found or abs(found) == float("inf"):
        raise FloatLensError(f"{what} {value!r} is not a number")
    return found


def whole_number(value: Any, what: str, least: int = 0) -> int:
    """An integer of at least `least`, from a number or its text."""
    found = number(value, what)
    if found != int(found) or found < least:
        raise FloatLensError(f"{what} should be an integer of {least} or more, not {value!r}")
    return int(found)


def names_of(value: Any, what: str) -> tuple[str, ...] | None:
    """Names, from a text such as doc1 or [doc1, doc2], or from several.

    >>> names_of("[doc1, gold]", "region"), names_of("query", "region"), names_of(None, "region")
    (('doc1', 'gold'), ('query',), None)
    """
    if value is None:
        return None
    parts = split_list(value) if isinstance(value, str) else list(value)
    found = tuple(dict.fromkeys(str(part).strip() for part in parts if str(part).strip()))
    if not found:
        raise FloatLensError(f"no {what} was given; pass at least one, or leave it out")
    return found


def rule_text(given: str | Rule | RuleFunction) -> str:
    """The canonical id of an anchor rule; raise an error if it would choose every position.

    >>> rule_text("sigma(3)")
    'sigma(k=3)'
    """
    from floatlens.anchors import parse_rule

    rule = parse_rule(given)
    if rule.function is not None:
        raise FloatLensError(
            f"anchor rule {rule.name!r} is a function without a registered name; an intervention is stored as text, so "
            f"register the rule with @floatlens.register_rule first"
        )
    name, value = next(iter(rule.settings.items()), ("", 1.0))
    if value < 0 or (rule.name == "share" and value == 0):
        raise FloatLensError(
            f"anchor rule {rule.id} selects every position, so no position would be left to attend to; use a {name} above 0"
        )
    return rule.id


def set_fields(intervention: Intervention, **values: Any) -> None:
    """Set fields of a frozen dataclass in its `__post_init__`."""
    for name, value in values.items():
        object.__setattr__(intervention, name, value)
