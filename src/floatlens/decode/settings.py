"""The settings that all samplers share, and their validation."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from floatlens.errors import FloatLensError


@dataclass(frozen=True)
class Settings:
    """Settings of a sampler, checked on creation; subclasses add their own.

    max_new_tokens   number of tokens to write
    temperature      0 is greedy decoding
    seed             seed of the random numbers

    `revises` is whether the sampler may replace a token that it has written.
    """

    revises: ClassVar[bool] = False

    max_new_tokens: int = 32
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole(self.max_new_tokens, "max_new_tokens")
        if not 0 <= self.temperature < math.inf:  # NaN is neither
            raise FloatLensError(
                f"temperature should be a number of 0 or more, not {self.temperature}; 0 is greedy decoding"
            )

    @property
    def step_count(self) -> int:
        """The largest number of forward passes."""
        return self.max_new_tokens

    @property
    def shifted(self) -> bool:
        """Whether these settings make row j - 1 write position j; usually this is a property of the family."""
        return False

    def canvas(self, prompt_length: int) -> int:
        """Number of positions written after a prompt; a sampler of whole blocks may need more than `max_new_tokens`."""
        return self.max_new_tokens

    def room(self, prompt_length: int, context: int) -> int:
        """The largest `max_new_tokens` that fits a model's context after a prompt."""
        return context - prompt_length

    def fits(self, prompt_length: int, context: int | None) -> None:
        """Raise an error if the prompt and the new tokens do not fit in the model's context."""
        new = self.canvas(prompt_length)
        if context is not None and prompt_length + new > context:
            room = self.room(prompt_length, context)
            way = (
                f"use --max-new-tokens {room}"
                if room > 0
                else f"shorten the prompt by {prompt_length - context + 1} tokens or more"
            )
            raise FloatLensError(
                f"a prompt of {prompt_length} tokens and {new} new ones exceed the model's context of {context}; {way}"
            )

    def asdict(self) -> dict[str, Any]:
        return asdict(self)


def check_whole(value: Any, name: str, least: int = 1) -> None:
    """Raise an error if a value is not an integer of at least `least`.

    >>> check_whole(0, "steps")
    Traceback (most recent call last):
    ...
    floatlens.errors.FloatLensError: steps should be an integer of 1 or more, not 0
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise FloatLensError(f"{name} should be an integer of {least} or more, not {value!r}")


def check_one_of(value: str, name: str, options: tuple[str, ...]) -> None:
    """Raise an error if a value is not among the options."""
    if value not in options:
        raise FloatLensError(f"{name} {value!r} is not known; use one of {', '.join(options)}")


def check_nucleus(top_p: float | None, top_k: int | None) -> None:
    """Raise an error for a top-p outside (0, 1] and a top-k below 1."""
    if top_p is not None and not 0 < top_p <= 1:
        raise FloatLensError(f"top_p {top_p} should be above 0 and at most 1")
    if top_k is not None:
        check_whole(top_k, "top_k")


def nearest(value: int, works: list[int]) -> str:
    """The numbers below and above `value` that would work.

    >>> nearest(7, [1, 2, 4, 8])
    '4 or 8'
    """
    below = [n for n in works if n <= value][-1:]
    above = [n for n in works if n > value][:1]
    return " or ".join(str(n) for n in [*below, *above])
