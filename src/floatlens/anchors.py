"""Anchor rules: which positions are anchors. The id of the rule is stored with every result.

With a_j the received attention (mean over queries, so it sums to 1 over the T positions that exist):

| id | anchors | source |
|---|---|---|
| sigma(k=3) | a_j > mean(a) + k·std(a), population std | arXiv 2601.07894, drift and QK figures |
| excess(eps=3) | T·a_j > mean over the others of T·a + eps (column sums) | arXiv 2510.15731 |
| top(n=1) | the n largest | the published absorption curve of masked diffusion models (MDMs) |
| first | position 0 | the published absorption curve of autoregressive models (ARMs) |
| share(eps=0.3) | a_j over the share of queries that may see j > eps | Gu et al. 2024, attention sink |

A rule may find no anchors. `minimum=n` adds the largest positions up to n; it is off by default and part of the rule's id.
A custom rule is a function of received attention, registered by `@fl.register_rule` or passed directly.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from floatlens.errors import FloatLensError
from floatlens.registry import Registry
from floatlens.specs import NAME, parse_spec

Array = np.ndarray[Any, Any]
UNEVEN = ("causal", "two-way")  # attention types in which row-uniform weights give keys different amounts
COMMON_RULES = ("sigma(3)", "excess(3)", "top(1)", "first", "share(0.3)")  # compared by findings, kept in summaries
ROUNDING = 0.01  # as a fraction of 1/T: an excess below this is rounding
RuleFunction: TypeAlias = Callable[..., Array]

RULES: Registry[RuleFunction] = Registry("anchor rule")


def register_rule(function: RuleFunction) -> RuleFunction:
    """Register an anchor rule under the name of its function; usable as a decorator.

    Parameters
    ----------
    function
        Takes received attention (..., T), with NaN for positions that do not exist yet, and, if it has a second parameter,
        the share of queries that may see each key (..., T). Returns a bool array (..., T). Its keyword-only parameters are
        the rule's settings: numbers with defaults; a setting with an int default takes integers of 1 or more.

    >>> @register_rule
    ... def above(a, visible, *, level=0.5):
    ...     return a > level
    >>> parse_rule("above(0.3)")(np.array([0.2, 0.4, 0.4]))
    array([False,  True,  True])
    """
    name = getattr(function, "__name__", "")
    if not NAME.fullmatch(name):
        raise FloatLensError(f"the anchor rule {function!r} has no name; write it as a function with a name")
    for parameter, default in settings_of(function).items():
        if parameter == "minimum" or isinstance(default, bool) or not isinstance(default, int | float):
            raise FloatLensError(
                f"anchor rule {name!r}: its setting {parameter!r} has the default {default!r}; settings are numbers with "
                f"defaults, and none is called minimum"
            )
    return RULES.add(name, function)


def settings_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The keyword-only parameters of a function, with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


@register_rule
def sigma(a: Array, visible: Array, *, k: float = 3.0) -> Array:
    """Positions more than k standard deviations above the mean.

    >>> a = np.array([0.91] + [0.01] * 9 + [0.0] * 10)
    >>> np.flatnonzero(sigma(a, np.ones(20)))
    array([0])
    """
    mean = np.nanmean(a, axis=-1, keepdims=True)
    std = np.nanstd(a, axis=-1, keepdims=True)
    return a > mean + k * std


@register_rule
def excess(a: Array, visible: Array, *, eps: float = 3.0) -> Array:
    """Positions whose column sum is more than eps above the mean column sum of the others.

    >>> excess(np.array([0.7, 0.1, 0.1, 0.1]), np.ones(4), eps=2)
    array([ True, False, False, False])
    """
    present = np.isfinite(a)
    count = present.sum(axis=-1, keepdims=True)
    sums = np.where(present, a, 0.0) * count
    others = (sums.sum(axis=-1, keepdims=True) - sums) / np.maximum(count - 1, 1)
    return present & (sums > others + eps)


@register_rule
def top(a: Array, visible: Array, *, n: int = 1) -> Array:
    """The n largest positions; ties go to the earlier position.

    >>> top(np.array([0.2, 0.5, 0.3]), np.ones(3), n=2)
    array([False,  True,  True])
    """
    order = np.argsort(-np.where(np.isfinite(a), a, -np.inf), axis=-1, kind="stable")
    chosen = np.zeros(a.shape, bool)
    np.put_along_axis(chosen, order[..., : int(n)], True, axis=-1)
    return chosen & np.isfinite(a)


@register_rule
def first(a: Array, visible: Array) -> Array:
    """Position 0, regardless of what it receives.

    >>> first(np.array([0.1, 0.9]), np.ones(2))
    array([ True, False])
    """
    chosen = np.zeros(a.shape, bool)
    chosen[..., 0] = True
    return chosen


@register_rule
def share(a: Array, visible: Array, *, eps: float = 0.3) -> Array:
    """Positions that receive more than eps on average from the queries that may see them.

    >>> share(np.array([0.2, 0.2]), np.array([1.0, 0.5]))
    array([False,  True])
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return a / visible > eps


@dataclass(frozen=True)
class Rule:
    """An anchor rule with its settings. Made by `parse_rule`; call it on received attention.

    `function` is set for a rule that was passed as a function and not registered.

    >>> rule = parse_rule("top(2)")
    >>> rule.id
    'top(n=2)'
    >>> rule(np.array([0.2, 0.5, 0.3]))
    array([False,  True,  True])
    """

    name: str
    settings: dict[str, float] = field(default_factory=dict)
    minimum: int = 0
    function: RuleFunction | None = None

    @property
    def id(self) -> str:
        parts = [f"{key}={value:g}" for key, value in self.settings.items()]
        if self.minimum:
            parts.append(f"minimum={self.minimum}")
        return f"{self.name}({', '.join(parts)})" if parts else self.name

    def __str__(self) -> str:
        return self.id

    def __call__(self, received: Array, visible: Array | None = None) -> Array:
        """Anchors among `received` (..., T); NaN marks a position that does not exist yet.

        `visible` (..., T) is the share of queries that may see each key: 1 without a causal mask (the default).
        """
        a = np.asarray(received, dtype=np.float64)
        seen = np.ones(a.shape[-1]) if visible is None else np.asarray(visible)
        function = self.function or RULES[self.name]
        inputs = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.KEYWORD_ONLY]
        with np.errstate(invalid="ignore"):
            chosen = np.asarray(function(*(a, seen)[: len(inputs)], **self.settings))
        if chosen.dtype != bool or chosen.shape != a.shape:
            raise FloatLensError(
                f"anchor rule {self.name!r} returned {chosen.dtype} of shape {chosen.shape}; "
                f"expected bool of the shape {a.shape} of its input"
            )
        if self.minimum:
            few = chosen.sum(axis=-1, keepdims=True) < self.minimum
            chosen = np.where(few, top(a, seen, n=self.minimum), chosen)
        return chosen & np.isfinite(a)


def parse_rule(spec: str | Rule | RuleFunction) -> Rule:
    """Parse an anchor rule, with settings by name or in order; a function is wrapped as a rule.

    >>> parse_rule("sigma(3)").id, parse_rule("excess(eps=2, minimum=1)").id, parse_rule("first").id
    ('sigma(k=3)', 'excess(eps=2, minimum=1)', 'first')
    >>> parse_rule(lambda a: a > 0.5)(np.array([0.4, 0.6]))
    array([False,  True])
    """
    if isinstance(spec, Rule):
        return spec
    if callable(spec):
        name = getattr(spec, "__name__", "")
        named = name if NAME.fullmatch(name) else "function"
        registered = named in RULES and RULES[named] is spec
        return Rule(named, dict(settings_of(spec)), function=None if registered else spec)
    if not isinstance(spec, str):
        raise FloatLensError(f"anchor rule {spec!r} is neither a string such as sigma(3) nor a function")
    parsed = parse_spec(spec, "anchor rule", "sigma(3)")
    defaults = settings_of(RULES[parsed.name])
    settings = {**defaults, "minimum": 0}
    for key, value in parsed.bind(list(defaults), by_name=["minimum"]).items():
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not np.isfinite(number):
            raise parsed.error(f"{key} should be a number, not {value!r}")
        if isinstance(settings[key], int) and (number < (key != "minimum") or number != int(number)):
            raise parsed.error(f"{key} must be an integer of 1 or more, not {value}")
        settings[key] = number
    minimum = int(settings.pop("minimum"))
    return Rule(parsed.name, settings, minimum)


def find_anchors(received: Array, rule: str | Rule | RuleFunction, attention: str) -> Array:
    """Find anchors (bool, same shape) in received attention (..., T), by a rule applied to its excess over the baseline `u`.

    Every rule except `first` is applied to `a − u + 1/T`, which is `a` itself under bidirectional attention. An excess
    below 0.01/T is rounding and not an anchor. NaN marks a position that does not exist yet; `attention` is the family's.

    >>> u = baseline(np.zeros(52), "causal")  # uniform causal attention has no anchor
    >>> find_anchors(u, "sigma(3)", "causal").any(), find_anchors(u, "sigma(3)", "bidirectional").any()
    (np.False_, np.True_)
    """
    parsed = parse_rule(rule)
    present = np.isfinite(received)
    visible = key_visibility(present, attention)
    if parsed.name == "first" or attention not in UNEVEN:
        return parsed(received, visible)
    count = present.sum(axis=-1, keepdims=True)
    excess = np.asarray(received, np.float64) - baseline(received, attention)
    anchors = parsed(excess + 1 / np.maximum(count, 1), visible)
    if parsed.name == "top" or parsed.minimum:
        return anchors
    with np.errstate(invalid="ignore"):
        return np.asarray(anchors & (excess * count > ROUNDING))


def baseline(received: Array, attention: str) -> Array:
    """Received attention `u` of row-uniform attention under the run's mask (same shape); NaN where there is no position.

    Causal attention favours the first positions by construction. Under full attention, and for the queries of one
    block, which all see the same keys, `u` is constant. With equal numbers of forward and backward heads, it favours
    both ends.

    >>> baseline(np.array([[0.5, 0.5, np.nan]]), "causal"), baseline(np.array([0.7, 0.3]), "bidirectional")
    (array([[0.75, 0.25,  nan]]), array([0.5, 0.5]))
    """
    present = np.isfinite(received)
    count = present.sum(axis=-1, keepdims=True)
    if attention not in UNEVEN:
        return np.where(present, 1 / np.maximum(count, 1), np.nan)
    index = np.cumsum(present, axis=-1) - 1
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, int(count.max()) + 1))])
    sums = harmonic[count] - harmonic[np.maximum(index, 0)]
    if attention == "two-way":
        sums = (sums + harmonic[count] - harmonic[np.maximum(count - 1 - index, 0)]) / 2
    return np.where(present, sums / np.maximum(count, 1), np.nan)


def key_visibility(present: Array, attention: str) -> Array | None:
    """Share of the queries at `present` positions that may see each key (..., T), for the rules.

    None where all see every key, as in bidirectional attention and within one block.

    >>> key_visibility(np.array([True, True, True, True]), "causal")
    array([1.  , 0.75, 0.5 , 0.25])
    """
    if attention not in UNEVEN:
        return None
    count = present.sum(axis=-1, keepdims=True)
    if attention == "two-way":
        return np.where(present, (count + 1) / np.maximum(2 * count, 1), np.nan)
    before = np.cumsum(present, axis=-1) - 1
    return np.where(present, (count - before) / np.maximum(count, 1), np.nan)
