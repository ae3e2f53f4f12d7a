"""The messages that a page may send, checked before anything else sees them, and the limits of its requests: enough for
any prompt that a person types, too little to exhaust the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floatlens.errors import FloatLensError
from floatlens.trace.attributes import LONE_SURROGATE
from floatlens.untrusted import parse_json

QUESTION = 4_000  # characters
PASSAGES = 64
PASSAGE = 8_000  # characters of one passage
CHARACTERS = 64_000  # of question and passages together
NEW_TOKENS = 512
STEPS = 512
INTERVENTIONS = 8
SPEC = 300  # characters of one intervention


@dataclass(frozen=True)
class Limits:
    """Limits on the work of the server."""

    message_bytes: int = 256 * 1024  # longest message that is parsed; a four times longer one closes the connection
    waiting: int = 32  # queued runs, over all pages
    waiting_each: int = 8  # queued or running runs per page
    connections: int = 32  # connected pages
    unsent: int = 4_096  # messages queued for a page that does not read them, before it is disconnected
    idle_seconds: float = 1_800.0  # without requests or runs before a page is disconnected; it reconnects when needed
    kept_bytes: int = 512 << 20  # of the attention and the traces of recent runs


def shown_limits() -> dict[str, int]:
    """Return the limits that the page checks before it sends a request."""
    return {
        "question": QUESTION,
        "passages": PASSAGES,
        "passage": PASSAGE,
        "characters": CHARACTERS,
        "max_new_tokens": NEW_TOKENS,
        "steps": STEPS,
        "interventions": INTERVENTIONS,
    }


# What a field holds: a type, the smallest and the largest number or length, and a default if it may be left out.
ID = (int, 0, 2**53)  # what a number of JavaScript holds exactly
MESSAGES: dict[str, dict[str, Any]] = {
    "run": {
        "id": ID,
        "model": (str, 0, 500),
        "question": (str, 0, QUESTION),
        "passages": (list, 0, PASSAGES, ()),
        "max_new_tokens": (int, 1, NEW_TOKENS, 32),
        "steps": (int, 1, STEPS, None),
        "block_length": (int, 1, NEW_TOKENS, None),
        "seed": (int, 0, 2**32 - 1, 0),
        "interventions": (list, 0, INTERVENTIONS, ()),
    },
    "stop": {"id": ID},
    "attention": {
        "id": ID,
        "step": (int, 0, STEPS),
        "layer": (int, 0, 10_000, None),
        "position": (int, 0, 10_000_000),
        "direction": (str, 0, 4, "from"),
    },
}
ITEMS: dict[str, Any] = {  # of the lists
    "passages": {"title": (str, 0, PASSAGE, ""), "text": (str, 0, PASSAGE), "gold": (bool, 0, 1, False)},
    "interventions": (str, 1, SPEC),
}
NAMES = {int: "a whole number", str: "text", bool: "true or false", list: "a list"}


def read(text: str, longest: int) -> dict[str, Any]:
    """Return the fields of a message, which are not yet checked."""
    content = text.encode("utf-8", "surrogatepass")
    if len(content) > longest:
        raise FloatLensError(f"a message of {len(text):,} characters is too long; the maximum is {longest:,} bytes")
    return parse_json(content, "the message")


def check(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a message with their defaults; raise an error with the reason if it is invalid.

    >>> check({"type": "stop", "id": 3})
    {'type': 'stop', 'id': 3}
    >>> check({"type": "stop"})
    Traceback (most recent call last):
    ...
    floatlens.errors.FloatLensError: the message is invalid: id is missing
    """
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in MESSAGES:
        raise FloatLensError(f"the message is invalid: its type is not one of {', '.join(MESSAGES)}")
    try:
        message = _checked(given, {"type": (str, 0, 99)} | MESSAGES[kind], "")
    except ValueError as error:
        raise FloatLensError(f"the message is invalid: {error}") from None
    if kind == "attention" and message["direction"] not in ("from", "to"):
        raise FloatLensError("the message is invalid: direction is neither from nor to")
    if kind == "run":
        if not message["question"].strip():
            raise FloatLensError("the question is empty; type one")
        length = len(message["question"]) + sum(len(p["title"]) + len(p["text"]) for p in message["passages"])
        if length > CHARACTERS:
            raise FloatLensError(f"question and passages have {length:,} characters together; at most {CHARACTERS:,}")
    return message


def _checked(value: Any, field: Any, place: str) -> Any:
    """A value with the defaults of its fields; ValueError if it is not what `field` describes."""
    if isinstance(field, Mapping):
        before = f"{place}." if place else ""
        if not isinstance(value, dict):
            raise ValueError(f"{place} is not an object")
        if unknown := sorted(value.keys() - field.keys()):
            raise ValueError(f"{before}{ascii(unknown[0])[1:-1][:80]} is unknown")
        if missing := [name for name, rule in field.items() if len(rule) < 4 and name not in value]:
            raise ValueError(f"{before}{missing[0]} is missing")
        return {n: _checked(value[n], r, before + n) if n in value else r[3] for n, r in field.items()}
    kind, least, most, *default = field
    if value is None and default == [None]:
        return None
    if type(value) is not kind or (kind is str and LONE_SURROGATE.search(value)):
        raise ValueError(f"{place} is not {NAMES[kind]}")
    size = value if isinstance(value, int) else len(value)
    if not least <= size <= most:
        said = f"is {str(value)[:20]}" if kind is int else f"has {size:,} {'items' if kind is list else 'characters'}"
        raise ValueError(f"{place} {said}; expected {least:,} to {most:,}")
    if kind is list:
        return [_checked(one, ITEMS[place], f"{place}.{n}") for n, one in enumerate(value)]
    return value
