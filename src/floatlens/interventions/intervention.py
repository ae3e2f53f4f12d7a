"""The base class of interventions, an effect at a place; their settings, and their registry.

An intervention is a small frozen dataclass whose fields are its settings, in canonical form, so that two equivalent ones
are equal: `str(intervention)` is its text, which `parse_intervention` parses again. Layers, heads and positions are selected
as 3, 0:4 or [0, 2, 5], layers also as shallow or deep; a selection stays text until the model is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from floatlens.anchors import Rule, RuleFunction, parse_rule
from floatlens.data.token_kinds import KINDS
from floatlens.errors import FloatLensError, check_known
from floatlens.registry import Registry
from floatlens.specs import parse_spec, split_list

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from floatlens.interventions.attention_call import AttentionCall, DecodingState
    from floatlens.lens import Lens, PromptLike

Array = np.ndarray[Any, Any]
Shape = Mapping[str, int | None]
PLACES = ("positions", "region", "kind", "rule")
EXAMPLE = "mask-anchors(rule=sigma(3))"
NO_ATTENTION = "a state-space model has none (its implicit attention is observed, not computed with)"
HALVES = ("shallow", "deep")
_SLICE = re.compile(r"\d*:\d*(:[1-9]\d*)?")


def selection(given: Any, what: str, words: tuple[str, ...] = ()) -> str:
    """The text of a selection given as a number, a slice, several numbers, or text.

    >>> selection(slice(0, 4), "layer"), selection([2, 0], "head"), selection("[1, 2]", "head")
    ('0:4', '[0, 2]', '[1, 2]')
    """
    if isinstance(given, slice):
        parts = ["" if part is None else str(part) for part in (given.start, given.stop, given.step)]
        given = ":".join(parts if given.step is not None else parts[:2])
    several = isinstance(given, Iterable) and not isinstance(given, str)
    text = f"[{', '.join(map(str, given))}]" if several else str(given).strip()
    if text in words or _SLICE.fullmatch(text):
        return text
    parts = split_list(text)
    if not parts:
        raise FloatLensError(f"no {what} was selected; pass at least one, or leave it out for all")
    if not all(part.isdecimal() for part in parts):
        ways = ", ".join(["3", "0:4", "[0, 2, 5]", *words])
        raise FloatLensError(f"{what}s {given!r} are not understood; write them as one of {ways}")
    return setting_text(tuple(sorted({int(part) for part in parts})))


def select_numbers(choice: str | None, count: int, what: str) -> list[int]:
    """The numbers of a selection among `count`; all of them for None. Raises an error for numbers that do not exist.

    >>> select_numbers("0:4", 6, "layer"), select_numbers(None, 3, "head"), select_numbers("deep", 6, "layer")
    ([0, 1, 2, 3], [0, 1, 2], [3, 4, 5])
    >>> select_numbers("0:8", 6, "layer")
    Traceback (most recent call last):
    ...
    floatlens.errors.FloatLensError: layer 7 does not exist; there are 6, from 0 to 5
    """
    if choice is None:
        return list(range(count))
    if choice in HALVES:
        # The middle layer of an odd number belongs to neither half, as in the findings.
        half = [n for n in range(count) if (2 * n < count - 1 if choice == "shallow" else 2 * n > count - 1)]
        return half or list(range(count))
    if ":" in choice:
        start, stop, step = (int(part) if part else None for part in (choice + "::").split(":")[:3])
        numbers = list(range(start or 0, count if stop is None else stop, step or 1))
        if not numbers:
            raise FloatLensError(f"the slice {choice} of {what}s is empty (the end is exclusive)")
    else:
        numbers = [int(part) for part in split_list(choice)]
    for number in reversed(numbers):
        if not 0 <= number < count:
            raise FloatLensError(f"{what} {number} does not exist; there are {count}, from 0 to {count - 1}")
    return numbers


def real_number(value: Any, what: str) -> float:
    """A finite number, from a number or its text."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if isinstance(value, bool) or number != number or abs(number) == float("inf"):
        raise FloatLensError(f"{what} {value!r} is not a number")
    return number


def whole_number(value: Any, what: str, least: int = 0) -> int:
    """An integer of at least `least`, from a number or its text."""
    number = real_number(value, what)
    if number != int(number) or number < least:
        raise FloatLensError(f"{what} should be an integer of {least} or more, not {value!r}")
    return int(number)


def names(value: Any, what: str, known: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Names, from a text such as doc1 or [doc1, doc2], or from several; each one of `known`, if that is given.

    >>> names("[doc1, gold]", "region"), names("query", "region")
    (('doc1', 'gold'), ('query',))
    """
    parts = split_list(value) if isinstance(value, str) else list(value)
    given = tuple(dict.fromkeys(str(part).strip() for part in parts if str(part).strip()))
    if not given:
        raise FloatLensError(f"no {what} was given; pass at least one, or leave it out")
    for name in given:
        if known:
            check_known(what, name, known)
    return given


def rule_id(given: str | Rule | RuleFunction) -> str:
    """The canonical id of an anchor rule; raise an error if it would choose every position.

    >>> rule_id("sigma(3)")
    'sigma(k=3)'
    """
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


# Settings that mean the same in every intervention, by name; others are read by the type of their field.
READERS: Mapping[str, Callable[[Any], Any]] = {
    "layers": partial(selection, what="layer", words=HALVES),
    "heads": partial(selection, what="head"),
    "positions": partial(selection, what="position"),
    "region": partial(names, what="region"),
    "regions": partial(names, what="region"),
    "kind": partial(names, what="token kind", known=(*KINDS, "structural", "lexical")),
    "rule": rule_id,
    "random": partial(whole_number, what="random"),
}
TYPES: Mapping[str, Callable[[Any, str], Any]] = {"float": real_number, "int": whole_number}


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
