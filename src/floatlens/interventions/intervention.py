"""The base class of interventions, an effect at a place, and their registry.

An intervention is a small frozen dataclass whose fields are its settings, in canonical form, so that two equivalent ones
are equal: `str(intervention)` is its text, which `parse_intervention` parses again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from floatlens.anchors import parse_rule
from floatlens.errors import FloatLensError
from floatlens.interventions.settings import READERS, TYPES, select_numbers, setting_text
from floatlens.registry import Registry
from floatlens.specs import parse_spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from floatlens.interventions.attention_call import AttentionCall
    from floatlens.interventions.decoding_state import DecodingState
    from floatlens.lens import Lens, PromptLike

Array = np.ndarray[Any, Any]
Shape = Mapping[str, int | None]
PLACES = ("positions", "region", "kind", "rule")
EXAMPLE = "mask-anchors(rule=sigma(3))"
NO_ATTENTION = "a state-space model has none (its implicit attention is observed, not computed with)"


@dataclass(frozen=True)
class Intervention:
    """Base of all interventions. A subclass sets `name`, has its settings as fields, and says what it changes.

    Settings with these names are the place where it acts, and are read and checked here:

        layers, heads             3, 0:4, [0, 2]; layers also shallow, deep; None for all
        positions, region, kind   positions by number, by region, or by the kind of their tokens
        rule, regions             the anchors that this rule finds at each layer and step, inside these regions
        random                    a seed: the same change at random positions instead (the matched control)

    An effect on the attention that positions receive is a `log_factor`, or `log_factors` that depend on the call. Any
    other effect overrides `change`, which is called once per layer and forward pass with an `AttentionCall` of R rows,
    H heads, Q queries and T keys, and calls any of its methods, which commute:

        hide(columns, heads)       bool (B, length): these positions get no attention
        weigh(logs, heads)         float (B, length): log factors on the attention that positions get
        sharpen(factor, heads)     all scores times a factor
        cap(cap)                   scores become cap · tanh(scores / cap)
        absorb(score, heads)       one more key of this score and of no value
        replace(heads, output_HD)  the output of heads; None for zero

    It may read `attention.layer`, `attention.state` (tokens, regions and step: `DecodingState`) and
    `attention.received_RT()`, the attention that positions would receive without any intervention.
    """

    name: ClassVar[str]
    effect: ClassVar[str] = ""  # what its positions do: "the same positions cannot be moved and receive nothing"
    once: ClassVar[str] = ""  # why two of this kind contradict each other at the same place; empty if they do not
    all_anchors: ClassVar[bool] = False  # whether it rearranges all anchors, so that no other rule can act beside it
    log_factor: ClassVar[float]
    readers: ClassVar[Mapping[str, Callable[[Any], Any]]] = READERS

    def __post_init__(self) -> None:
        for field in fields(self):
            value, kind = getattr(self, field.name), str(getattr(field.type, "__name__", field.type))
            if value is None and field.default is None:
                continue
            if field.name in self.readers:
                object.__setattr__(self, field.name, self.readers[field.name](value))
            elif kind in TYPES:
                object.__setattr__(self, field.name, TYPES[kind](value, field.name))
        if len(self.place) > 1:
            raise self.needs_place(f"not {' and '.join(self.place)} together")

    def __str__(self) -> str:
        parts = []
        for field in fields(self):
            value = getattr(self, field.name)
            shown = field.default is MISSING or value != field.default or field.name == "rule"
            if shown and value is not None:
                parts.append(f"{field.name}={setting_text(value)}")
        return f"{self.name}({', '.join(parts)})" if parts else self.name

    @property
    def place(self) -> dict[str, Any]:
        """The setting that chooses its positions, if it acts on some positions only."""
        return {name: value for name in PLACES if (value := getattr(self, name, None)) is not None}

    def needs_place(self, problem: str) -> FloatLensError:
        """The error for a missing or an ambiguous place."""
        ways = [field.name for field in fields(self) if field.name in PLACES]
        return FloatLensError(f"{self.name} takes one of {', '.join(ways)}; {problem}")

    def control(self, seed: int) -> Intervention | None:
        """The matched control: the same change at random positions or heads. None if there is none."""
        changed: dict[str, Any] = {"random": seed}
        return replace(self, **changed) if self.place and hasattr(self, "random") else None

    def contradicts(self, other: Intervention) -> str:
        """The reason why this cannot be combined with another one in the same layer and heads; empty if it can."""
        same = self.place == other.place and getattr(self, "random", None) == getattr(other, "random", None)
        if self.all_anchors or other.all_anchors:
            same = "rule" in self.place and "rule" in other.place
        if type(self) is type(other):
            return self.once if same else ""
        if same and self.place and self.effect and other.effect and self.effect != other.effect:
            return f"the same positions cannot {self.effect} and {other.effect}"
        return ""

    def layer_numbers(self, shape: Shape) -> list[int]:
        """The layers in which it acts, for a model of this shape."""
        return select_numbers(getattr(self, "layers", None), shape["layers"] or 0, "layer")

    def head_numbers(self, shape: Shape) -> list[int]:
        """The heads on which it acts, for a model of this shape."""
        return select_numbers(getattr(self, "heads", None), shape["heads"] or 0, "head")

    def heads_in(self, attention: AttentionCall) -> list[int] | None:
        """The heads of an attention call on which it acts; None for all."""
        heads = getattr(self, "heads", None)
        return None if heads is None else select_numbers(heads, attention.H, "head")

    def check(self, shape: Shape, config: PreTrainedConfig) -> None:
        """Raise an error for layers and heads that the model does not have; needs no weights."""
        self.layer_numbers(shape)
        self.head_numbers(shape)

    def prepared(self, lens: Lens, reference: Sequence[PromptLike] | None) -> Intervention:
        """The intervention prepared for a model, for example with the model's best heads."""
        return self

    def begin(self, state: DecodingState) -> None:
        """Called before a batch is decoded; raise an error if the prompts lack something that it needs."""
        for way in ("positions", "region", "regions"):
            if value := getattr(self, way, None):
                state.columns(way, value)
        if "rule" in self.place:
            rule = parse_rule(self.place["rule"])
            wanted = max(rule.settings.get("n", 0.0), rule.minimum)
            if wanted >= state.shortest or (rule.name == "share" and rule.settings["eps"] * state.shortest < 1):
                raise FloatLensError(
                    f"anchor rule {rule.id} may select all {state.shortest} positions of a prompt, "
                    f"so no position would be left to attend to; select fewer"
                )

    def change(self, attention: AttentionCall) -> None:
        """Change one attention call; called only for layers in which the intervention acts."""
        logs, seed = self.log_factors(attention), getattr(self, "random", None)
        if not logs.any():
            return
        if seed is not None:
            # Positions stay for the whole run; anchors are found again at each layer and step.
            if "rule" in self.place:
                parts = (attention.layer, attention.state.step)
                logs = attention.state.elsewhere(logs, seed, *parts, received_RT=attention.received_RT())
            else:
                logs = attention.state.elsewhere(logs, seed)
        attention.weigh(logs, self.heads_in(attention))

    def log_factors(self, attention: AttentionCall) -> Array:
        """Log factors (B or R, length) on the attention that positions receive: 0 changes nothing, −inf hides."""
        state = attention.state
        if "rule" in self.place:
            columns, _ = attention.anchors(self.place["rule"])
            if regions := getattr(self, "regions", None):
                inside_BN = state.columns("regions", regions)
                columns &= np.tile(inside_BN[:, : columns.shape[1]], (len(columns) // state.B, 1))
        else:
            [(way, value)] = self.place.items()
            columns = state.columns(way, value)[:, : state.length]
        return np.where(columns, self.log_factor, 0.0)


def check(interventions: Sequence[Intervention], shape: Shape, config: PreTrainedConfig) -> None:
    """Raise an error for layers and heads that a model lacks, and for interventions that contradict each other.

    A state-space model has no attention that they could change, and is refused. Needs no weights.
    """
    from floatlens.models.describe import is_state_space

    if interventions and is_state_space(config):
        raise FloatLensError(
            f"{interventions[0]} changes softmax attention, and {NO_ATTENTION}; use a model with attention layers"
        )
    for one in interventions:
        one.check(shape, config)
    for one, other in combinations(interventions, 2):
        reason = "it is given twice" if one == other else one.contradicts(other) or other.contradicts(one)
        layers = set(one.layer_numbers(shape)) & set(other.layer_numbers(shape))
        if reason and layers and set(one.head_numbers(shape)) & set(other.head_numbers(shape)):
            raise FloatLensError(f"{one} and {other} contradict each other: {reason}; use one of them, or other layers")


INTERVENTIONS: Registry[type[Intervention]] = Registry(
    "intervention", "floatlens.interventions", ("effects", "ablate_heads")
)

Class = TypeVar("Class", bound=type[Intervention])


def register_intervention(kind: Class) -> Class:
    """Register a subclass of `Intervention` under its `name`, as a class decorator above `@dataclass(frozen=True)`."""
    if not hasattr(kind, "name"):
        raise FloatLensError(f"intervention {kind.__name__} has no 'name'; see docs/howto/new-intervention.md")
    if "__dataclass_fields__" not in vars(kind) or not is_dataclass(kind):
        raise FloatLensError(f"intervention {kind.__name__} is not a dataclass; put @dataclass(frozen=True) above it")
    INTERVENTIONS.add(kind.name, kind)
    return kind


def parse_intervention(spec: str | Intervention) -> Intervention:
    """Parse an intervention from its text, with settings by name or in order.

    >>> parse_intervention("mask-anchors(sigma(3), layers=0:4)")
    MaskAnchors(rule='sigma(k=3)', layers='0:4', heads=None, regions=None, random=None)
    >>> str(parse_intervention("ablate-heads(top(4))"))
    'ablate-heads(heads=top(4, by=retrieval))'
    """
    if isinstance(spec, Intervention):
        return spec
    if not isinstance(spec, str):
        raise FloatLensError(f"intervention {spec!r} is neither an intervention nor a string such as {EXAMPLE}")
    parsed = parse_spec(spec, "intervention", EXAMPLE)
    kind: Any = INTERVENTIONS[parsed.name]
    settings = parsed.bind([field.name for field in fields(kind)])
    missing = [f.name for f in fields(kind) if f.name not in settings and f.default is MISSING]
    if missing:
        raise parsed.error(f"it needs {missing[0]}; write {parsed.name}({missing[0]}=...)")
    made: Intervention = kind(**settings)
    return made
