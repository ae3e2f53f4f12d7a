"""Scripts: a given text to write after a prompt, and the step at which each of its tokens is revealed.

A prompt with a script is replayed: the model runs step by step as if it wrote the text, and nothing is sampled.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from floatlens.errors import FloatLensError

LEFT_TO_RIGHT, RANDOM = "left-to-right", "random"
GIVEN = -1  # step of a token that is visible from the start

Order: TypeAlias = str | Sequence[int | Sequence[int]]


@dataclass(frozen=True)
class Script:
    """Tokens that follow a prompt, and when they are revealed.

    ids     the tokens
    at      the step that reveals each of them; -1 for a token that is visible from the start
    steps   number of forward passes
    order   name of the order: left-to-right, random, or list
    """

    ids: tuple[int, ...]
    at: tuple[int, ...]
    steps: int
    order: str = LEFT_TO_RIGHT

    @property
    def in_sequence(self) -> bool:
        """Whether each step reveals the next token, as an autoregressive model writes."""
        return self.at == tuple(range(len(self.ids))) and self.steps == len(self.ids)


def write_script(
    ids: Sequence[int], order: Order = LEFT_TO_RIGHT, *, seed: int = 0, given: Sequence[bool] | None = None
) -> Script:
    """Return the script that reveals `ids` in an order.

    Parameters
    ----------
    ids: the tokens after the prompt.
    order: "left-to-right", "random" (by `seed`), or a list of indices into `ids`. An element of the list is one step; it may
        be a list itself, of tokens that are revealed together (none of them, if it is empty).
    given: True for tokens that are visible from the start; they are not part of the order.

    >>> write_script([7, 8, 9], [2, [0, 1]]).at
    (1, 1, 0)
    """
    hidden = [index for index in range(len(ids)) if given is None or not given[index]]
    if not hidden:
        raise FloatLensError("the text to replay has no tokens; it needs at least one")
    name = order if isinstance(order, str) else "list"
    steps = _steps(order, hidden, seed)
    at = [GIVEN] * len(ids)
    for step, together in enumerate(steps):
        for index in together:
            at[index] = step
    return Script(tuple(int(id_) for id_ in ids), tuple(at), len(steps), name)


def _steps(order: Order, hidden: list[int], seed: int) -> list[list[int]]:
    if isinstance(order, str):
        if order not in (LEFT_TO_RIGHT, RANDOM):
            raise FloatLensError(
                f"order {order!r} is not known; use {LEFT_TO_RIGHT}, {RANDOM}, or a list of indices such as [2, 0, 1]"
            )
        shuffled = hidden if order == LEFT_TO_RIGHT else random.Random(seed).sample(hidden, len(hidden))
        return [[index] for index in shuffled]
    steps = [[step] if isinstance(step, int) else [int(index) for index in step] for step in order]
    listed = sorted(index for step in steps for index in step)
    if listed != hidden:
        wrong = next((i for i in listed if i not in hidden or listed.count(i) > 1), None)
        what = f"names {wrong} wrongly or twice" if wrong is not None else f"lacks {min(set(hidden) - set(listed))}"
        raise FloatLensError(
            f"the order {what}; it must name each of the {len(hidden)} tokens to reveal exactly once, "
            f"by its index from {hidden[0]} to {hidden[-1]}"
        )
    return steps
