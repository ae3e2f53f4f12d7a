"""The settings of interventions in canonical form, so that they can be printed, compared and parsed again.

Layers, heads and positions are selected as 3, 0:4 or [0, 2, 5], layers also as shallow or deep. A selection stays text
until the model is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from floatlens.data.token_kinds import KINDS
from floatlens.errors import FloatLensError, check_known
from floatlens.specs import split_list

if TYPE_CHECKING:
    from floatlens.anchors import Rule, RuleFunction

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
