"""The settings of samplers: declared once, with type, default, help and limits, and checked on creation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from numbers import Integral, Real
from typing import Any, ClassVar

from floatlens.errors import FloatLensError, check_known

Check = Callable[[Any, str], None]
TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((Integral,), "an integer"),
    "float": ((Real,), "a number"),
    "bool": ((bool,), "true or false"),
    "str": ((str,), "a text"),
}


def setting(default: Any, help: str, check: Check | None = None) -> Any:
    """Declare a setting of a sampler, with the function that checks a value. None is allowed where it is the default."""
    return field(default=default, metadata={"help": help, "check": check})


def at_least(least: int) -> Check:
    """Check for an integer of at least this size."""
    return lambda value, name: check_whole(value, name, least)


def between(low: float, high: float = math.inf) -> Check:
    """Check for a number above `low`, and not above `high`."""

    def check(value: float, name: str) -> None:
        if not low < value <= high:
            limit = "" if high == math.inf else f" and at most {high}"
            raise FloatLensError(f"{name} {value} should be above {low}{limit}")

    return check


def not_below_0(meaning: str) -> Check:
    """Check for a finite number of at least 0; `meaning` says what 0 does."""

    def check(value: float, name: str) -> None:
        if not 0 <= value < math.inf:  # NaN is neither
            raise FloatLensError(f"{name} should be a number of 0 or more, not {value}; 0 {meaning}")

    return check


def one_of(*options: str) -> Check:
    """Check for one of these texts."""

    def check(value: str, name: str) -> None:
        check_known(name, value, options)

    return check


def check_whole(value: Any, name: str, least: int = 1) -> None:
    """Raise an error if a value is not an integer of at least `least`.

    >>> check_whole(0, "steps")
    Traceback (most recent call last):
    ...
    floatlens.errors.FloatLensError: steps should be an integer of 1 or more, not 0
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise FloatLensError(f"{name} should be an integer of {least} or more, not {value!r}")


@dataclass(frozen=True)
class Settings:
    """Settings that all samplers share, checked on creation; subclasses add their own with `setting`.

    `revises` is whether the sampler may replace a token that it has written.
    """

    revises: ClassVar[bool] = False

    max_new_tokens: int = setting(32, "Number of tokens to write.", at_least(1))
    temperature: float = setting(0.0, "Sampling temperature; 0 is greedy decoding.", not_below_0("is greedy decoding"))
    seed: int = setting(0, "Seed of the random numbers.")

    def __post_init__(self) -> None:
        for each in fields(self):
            value, check = getattr(self, each.name), each.metadata.get("check")
            if not each.metadata or (value is None and each.default is None):
                continue
            types, words = TYPES[str(each.type).removesuffix(" | None")]
            if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
                raise FloatLensError(f"{each.name} should be {words}, not {value!r}")
            if check is not None:
                check(value, each.name)

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


@dataclass(frozen=True)
class DenoisingSettings(Settings):
    """Settings of samplers that denoise all new positions together; `steps` defaults to `max_new_tokens`."""

    steps: int | None = setting(None, "Number of denoising steps; one per token by default.", at_least(1))

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "steps", self.step_count)

    @property
    def step_count(self) -> int:
        return self.steps or self.max_new_tokens


@dataclass(frozen=True)
class ThinkingSettings(Settings):
    """Settings of samplers that can limit the number of tokens in which a model thinks."""

    max_thinking_tokens: int | None = setting(
        None, "Number of new tokens after which end_think_token_id is written, if it is not there yet.", at_least(0)
    )
    end_think_token_id: int | None = setting(None, "The token that ends thinking.", at_least(0))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_thinking_tokens is not None and self.end_think_token_id is None:
            raise FloatLensError("max_thinking_tokens needs end_think_token_id, the token that ends thinking")


# Settings of several samplers.
def top_p() -> Any:
    about = "Draw from the most probable tokens whose probabilities sum to this; all by default."
    return setting(None, about, between(0, 1))


def top_k() -> Any:
    return setting(None, "Draw from this number of most probable tokens; all by default.", at_least(1))


def cfg_scale() -> Any:
    about = "Strength of guidance, by a second row with the prompt masked; 0 for none."
    return setting(0.0, about, not_below_0("is no guidance"))


def remasking() -> Any:
    about = (
        "Order of writing: low_confidence (masks of low confidence stay, so the most confident come first) or random."
    )
    return setting("low_confidence", about, one_of("low_confidence", "random"))
