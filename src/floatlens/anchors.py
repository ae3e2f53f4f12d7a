"""Which positions are anchors? The rules of the field, each with a name that every result carries.

With a_j the received attention (mean over queries, so it sums to 1 over the T positions that exist):

| id | anchors | source |
|---|---|---|
| sigma(k=3) | a_j > mean(a) + k·std(a), population std | arXiv 2601.07894, drift and QK figures |
| excess(eps=3) | T·a_j > mean over the others of T·a + eps (column sums) | arXiv 2510.15731 |
| top(n=1) | the n largest | what the published absorption curve of MDMs shows |
| first | position 0 | the published absorption curve of ARMs |
| share(eps=0.3) | a_j over the share of queries that may see j > eps | Gu et al. 2024, attention sink |

A rule may find none. `minimum=n` fills up with the largest; it is off by default and part of the rule's id.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from floatlens.errors import FloatLensError

Array = np.ndarray[Any, Any]


def sigma(a: Array, visible: Array, *, k: float = 3.0) -> Array:
    """Positions more than k standard deviations above the mean.

    >>> a = np.array([0.91] + [0.01] * 9 + [0.0] * 10)
    >>> np.flatnonzero(sigma(a, np.ones(20)))
    array([0])
    """
    mean = np.nanmean(a, axis=-1, keepdims=True)
    std = np.nanstd(a, axis=-1, keepdims=True)
    return a > mean + k * std


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


def top(a: Array, visible: Array, *, n: int = 1) -> Array:
    """The n largest; of equals, the earlier one.

    >>> top(np.array([0.2, 0.5, 0.3]), np.ones(3), n=2)
    array([False,  True,  True])
    """
    order = np.argsort(-np.where(np.isfinite(a), a, -np.inf), axis=-1, kind="stable")
    chosen = np.zeros(a.shape, bool)
    np.put_along_axis(chosen, order[..., : int(n)], True, axis=-1)
    return chosen & np.isfinite(a)


def first(a: Array, visible: Array) -> Array:
    """Position 0, whatever it receives.

    >>> first(np.array([0.1, 0.9]), np.ones(2))
    array([ True, False])
    """
    chosen = np.zeros(a.shape, bool)
    chosen[..., 0] = True
    return chosen


def share(a: Array, visible: Array, *, eps: float = 0.3) -> Array:
    """Positions that get more than eps from those queries that may see them.

    >>> share(np.array([0.2, 0.2]), np.array([1.0, 0.5]))
    array([False,  True])
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return a / visible > eps


RULES: dict[str, Callable[..., Array]] = {"sigma": sigma, "excess": excess, "top": top, "first": first, "share": share}


@dataclass(frozen=True)
class Rule:
    """A named anchor rule with its settings. Made by `parse_rule`; applied to received attention.

    >>> rule = parse_rule("top(2)")
    >>> rule.id
    'top(n=2)'
    >>> rule(np.array([0.2, 0.5, 0.3]))
    array([False,  True,  True])
    """

    name: str
    settings: dict[str, float] = field(default_factory=dict)
    minimum: int = 0

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
        with np.errstate(invalid="ignore"):
            chosen = RULES[self.name](a, seen, **self.settings)
        if self.minimum:
            few = chosen.sum(axis=-1, keepdims=True) < self.minimum
            chosen = np.where(few, top(a, seen, n=self.minimum), chosen)
        return chosen & np.isfinite(a)


def causal_visibility(present: Array) -> Array:
    """Share of queries that may see each key under a causal mask, when the present positions are all queries.

    >>> causal_visibility(np.array([True, True, True, True]))
    array([1.  , 0.75, 0.5 , 0.25])
    """
    count = present.sum(axis=-1, keepdims=True)
    before = np.cumsum(present, axis=-1) - 1
    return np.where(present, (count - before) / np.maximum(count, 1), np.nan)


_SPEC = re.compile(r"\s*([a-z]+)\s*(?:\((.*)\))?\s*", re.DOTALL)


def parse_rule(spec: str | Rule) -> Rule:
    """Read a rule from its text; settings by name or in order.

    >>> parse_rule("sigma(3)").id, parse_rule("excess(eps=2, minimum=1)").id, parse_rule("first").id
    ('sigma(k=3)', 'excess(eps=2, minimum=1)', 'first')
    """
    if isinstance(spec, Rule):
        return spec
    match = _SPEC.fullmatch(spec)
    if not match or match[1] not in RULES:
        raise FloatLensError(f"anchor rule {spec!r} is not known; use one of {', '.join(RULES)}, such as sigma(3)")
    name = match[1]
    known = {
        parameter.name: parameter.default
        for parameter in inspect.signature(RULES[name]).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    settings = dict(known)
    minimum = 0
    for place, part in enumerate(filter(None, (p.strip() for p in (match[2] or "").split(",")))):
        key, _, value = part.rpartition("=")
        key = key.strip() or (list(known)[place] if place < len(known) else "")
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if (key not in known and key != "minimum") or not np.isfinite(number):
            options = ", ".join([*known, "minimum"])
            raise FloatLensError(f"anchor rule {spec!r}: {part!r} is not understood; {name} takes {options} as numbers")
        if key in ("minimum", "n") and (number < (key == "n") or number != int(number)):
            raise FloatLensError(f"anchor rule {spec!r}: {key} must be a whole number, 1 or more, not {value.strip()}")
        if key == "minimum":
            minimum = int(number)
        else:
            settings[key] = number
    return Rule(name, settings, minimum)
