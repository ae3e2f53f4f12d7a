"""What an intervention is: a small frozen dataclass that changes attention calls, and can say so in one line.

Its fields are its settings. Texts are turned into their canonical form when it is made, so two interventions that do the
same are equal and print the same: `str(intervention)` is its spec, which `parse` reads back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from floatlens.errors import FloatLensError
from floatlens.interventions import choose
from floatlens.specs import split_list

if TYPE_CHECKING:
    from floatlens.anchors import Rule
    from floatlens.interventions.attention import Attention
    from floatlens.interventions.scene import Scene
    from floatlens.lens import Lens, PromptLike

Shape = Mapping[str, int | None]


@dataclass(frozen=True)
class Intervention:
    """Base of all interventions. A subclass names itself, has its settings as fields, and overrides what it needs."""

    name: ClassVar[str]

    # --- what it says ---------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        parts = []
        for field in fields(self):
            value = getattr(self, field.name)
            told = field.default is MISSING or value != field.default or field.name == "rule"
            if told and value is not None:
                parts.append(f"{field.name}={spelled(value)}")
        return f"{self.name}({', '.join(parts)})" if parts else self.name

    @property
    def summary(self) -> str:
        """One plain sentence."""
        raise NotImplementedError

    def control(self, seed: int) -> Intervention | None:
        """The same done to as many random positions or heads; None where there is nothing to match."""
        return None

    # --- where it acts --------------------------------------------------------------------------------------------------

    @property
    def where(self) -> str:
        """Layers and heads as part of a sentence."""
        parts = []
        for what, choice in (("layer", getattr(self, "layers", None)), ("head", getattr(self, "heads", None))):
            if choice is not None:
                plural = "" if choice.isdecimal() else "s"
                words = choice.strip("[]")
                parts.append(f"in the {choice} layers" if choice in choose.HALVES else f"in {what}{plural} {words}")
        return f" {', '.join(parts)}" if parts else ""

    def layer_numbers(self, shape: Shape) -> list[int]:
        return choose.numbers(getattr(self, "layers", None), shape["layers"] or 0, "layer")

    def head_numbers(self, shape: Shape) -> list[int]:
        return choose.numbers(getattr(self, "heads", None), shape["heads"] or 0, "head")

    def heads_in(self, attention: Attention) -> list[int] | None:
        """The heads of an attention call on which it acts; None for all."""
        heads = getattr(self, "heads", None)
        return None if heads is None else choose.numbers(heads, attention.H, "head")

    def canonical_places(self) -> dict[str, Any]:
        """Those of the settings `layers`, `heads` and `random` that it has, in canonical form."""
        found: dict[str, Any] = {}
        if hasattr(self, "layers"):
            found["layers"] = choose.canonical(self.layers, "layer", choose.HALVES)
        if hasattr(self, "heads"):
            found["heads"] = choose.canonical(self.heads, "head")
        if hasattr(self, "random"):
            found["random"] = None if self.random is None else whole(self.random, "random")
        return found

    # --- what it does ---------------------------------------------------------------------------------------------------

    def check(self, shape: Shape, config: Any) -> None:
        """Refuse layers and heads that the model does not have; no weight is needed for that."""
        self.layer_numbers(shape)
        self.head_numbers(shape)

    def prepared(self, lens: Lens, reference: Sequence[PromptLike] | None) -> Intervention:
        """Ready for the model: an intervention that needs to look at it first (which heads are the best) does so here."""
        return self

    def begin(self, scene: Scene) -> None:
        """A run of a batch is about to start: refuse what these prompts do not have."""

    def change(self, attention: Attention) -> None:
        """Change one attention call of a layer in which this acts."""
        raise NotImplementedError


def spelled(value: Any) -> str:
    """A setting as a spec has it.

    >>> spelled(0.5), spelled(2.0), spelled(("doc1", "doc2")), spelled("gold")
    ('0.5', '2', '[doc1, doc2]', 'gold')
    """
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, tuple):
        return spelled(value[0]) if len(value) == 1 else f"[{', '.join(map(spelled, value))}]"
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


def whole(value: Any, what: str, least: int = 0) -> int:
    """A whole number of at least `least`, from a number or its text."""
    found = number(value, what)
    if found != int(found) or found < least:
        raise FloatLensError(f"{what} should be a whole number of {least} or more, not {value!r}")
    return int(found)


def words(value: Any, what: str) -> tuple[str, ...] | None:
    """Names, from a text such as doc1 or [doc1, doc2], or from several.

    >>> words("[doc1, gold]", "region"), words("query", "region"), words(None, "region")
    (('doc1', 'gold'), ('query',), None)
    """
    if value is None:
        return None
    parts = split_list(value) if isinstance(value, str) else list(value)
    found = tuple(dict.fromkeys(str(part).strip() for part in parts if str(part).strip()))
    if not found:
        raise FloatLensError(f"no {what} was named; name at least one, or leave it out")
    return found


def rule_of(given: str | Rule) -> str:
    """The canonical id of an anchor rule; one that would choose every position is refused.

    >>> rule_of("sigma(3)")
    'sigma(k=3)'
    """
    from floatlens.anchors import parse_rule

    rule = parse_rule(given)
    name, value = next(iter(rule.settings.items()), ("", 1.0))
    if value < 0 or (rule.name == "share" and value == 0):
        raise FloatLensError(
            f"anchor rule {rule.id} chooses every position, so nothing would be left to see; use a {name} above 0"
        )
    return rule.id


def set_fields(intervention: Intervention, **values: Any) -> None:
    """Put canonical values into a frozen dataclass while it is made."""
    for name, value in values.items():
        object.__setattr__(intervention, name, value)
