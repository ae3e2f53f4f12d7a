"""Inputs for the fuzz tests: valid examples, changed in the ways in which files and messages go wrong."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

NASTY: list[Any] = [
    None, True, -1, 0, 2**63, 1e308, float("nan"), "", "\x00", "../../etc/passwd", "é" * 300, "<script>", "=1+1",
    [], {}, [[]], [None], {"": ""}, "NaN", "\ud800", "{", "3(", ")))", "0:0:0",
]  # fmt: skip
SCALARS = st.one_of(st.sampled_from(NASTY).map(copy.deepcopy), st.integers(), st.floats(), st.text(max_size=20))
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def mutate_json(draw: st.DrawFn, example: Any) -> Any:
    """Return a copy of a JSON value in which one to three places are replaced, removed or added."""
    value = copy.deepcopy(example)
    for _ in range(draw(st.integers(1, 3))):
        paths = list(_paths(value))
        if not paths:
            return draw(JSON)
        *parents, last = draw(st.sampled_from(paths))
        holder = value
        for key in parents:
            holder = holder[key]
        action = draw(st.sampled_from(["replace", "replace", "remove", "rename"]))
        if action == "replace":
            holder[last] = draw(JSON)
        elif action == "remove":
            del holder[last]
        elif isinstance(holder, dict):
            holder[draw(st.text(max_size=8))] = holder.pop(last)
    return value


def _paths(value: Any, prefix: tuple[Any, ...] = ()) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield (*prefix, key)
        yield from _paths(inner, (*prefix, key))


@st.composite
def mutate_bytes(draw: st.DrawFn, example: bytes) -> bytes:
    """Return bytes that are cut, overwritten, repeated or extended at one to four places."""
    data = bytearray(example)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.integers(0, 4)):
            case 0:
                del data[at:]
            case 1 if data:
                data[at] = draw(st.integers(0, 255))
            case 2:
                data[at:at] = draw(st.binary(min_size=1, max_size=12))
            case 3:
                data[at:at] = data[at : at + draw(st.integers(1, 40))]
            case _:
                del data[at : at + draw(st.integers(1, 40))]
    return bytes(data)


def dumps(value: Any) -> bytes:
    """Encode JSON as a careless writer would: NaN and lone surrogates included."""
    return json.dumps(value, ensure_ascii=True).encode()
