"""Some of many, in one pass: the first ones, or with a seed a fair draw that keeps the file's order."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def take(items: Iterable[T], limit: int | None, seed: int | None = None) -> Iterator[T]:
    """At most `limit` items. Without a seed reading stops there; with one, all is read once and `limit` items are held.

    The draw is Vitter's algorithm R: each item is as likely as any other.

    >>> list(take("abcdef", 2)), list(take("abcdef", 2, seed=1))
    (['a', 'b'], ['b', 'f'])
    """
    if limit is None or seed is None:
        yield from islice(items, limit)
        return
    draw = random.Random(seed)
    held: list[tuple[int, T]] = []
    for index, item in enumerate(items):
        if len(held) < limit:
            held.append((index, item))
        elif (place := draw.randrange(index + 1)) < limit:
            held[place] = (index, item)
    yield from (item for _, item in sorted(held, key=lambda pair: pair[0]))
