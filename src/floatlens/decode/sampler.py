"""The base class of samplers: its fields are the settings, checked on creation, and it yields the steps. Samplers by name.

A setting is declared once, with type, default, help and limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import Field, asdict, dataclass, field, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from floatlens.decode.network import Passes
from floatlens.errors import FloatLensError, check_known
from floatlens.registry import Registry

if TYPE_CHECKING:
    from floatlens.decode.step import Step

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
    return lambda value, name: check_known(name, value, options)


def check_whole(value: Any, name: str, least: int = 1) -> None:
    """Raise an error if a value is not an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise FloatLensError(f"{name} should be an integer of {least} or more, not {value!r}")


@dataclass(frozen=True)
class Sampler:
    """A sampler with its settings. A subclass is a frozen dataclass whose fields are declared with `setting`.

    passes    how it runs a sequence: `WholePasses`, `CausalPasses`, `BlockPasses` or another subclass of `Passes`. Given
              texts are replayed and scored with it; with `Passes` itself they cannot be
    batched   whether it writes several prompts at once; if not, the prompts of a batch are written one after another
    aligned   whether its blocks, of `block_length`, are counted from the start of each prompt. The rows of a batch are
              then padded by whole blocks, and `passes.ends` are the columns at which the prompts end
    revises   whether it may replace a token that it has written; an answer is then known only after the last step
    fills     whether it can fill masks inside a text: `passes.tail_BN`
    """

    passes: ClassVar[type[Passes]] = Passes
    batched: ClassVar[bool] = True
    aligned: ClassVar[bool] = False
    revises: ClassVar[bool] = False
    fills: ClassVar[bool] = False

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

    def sample(self, passes: Passes) -> Iterator[Step]:
        """Write after the prompts of `passes`, one `Step` per denoising or decoding pass."""
        raise NotImplementedError

    def replay(self, passes: Passes) -> Iterator[Step]:
        """Reveal the given texts of `passes`, one `Step` per pass."""
        from floatlens.decode.replay import reveal

        return reveal(passes)

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


def max_thinking_tokens() -> Any:
    about = "Number of new tokens after which end_think_token_id is written, if it is not there yet."
    return setting(None, about, at_least(0))


def end_think_token_id() -> Any:
    return setting(None, "The token that ends thinking.", at_least(0))


MODULES = (
    "autoregressive", "bd3lm", "diffusion_gemma", "dream", "llada", "llada2", "most_certain", "nemotron",
    "nemotron_spec", "sdar"
)  # fmt: skip
SAMPLERS: Registry[type[Sampler]] = Registry("sampler", "floatlens.decode", MODULES)

# Settings that travel by their own names. A comparison passes the last two to all its models; some samplers ignore them.
COMMON = ("max_new_tokens", "temperature", "seed", "steps", "block_length")
SHARED = COMMON[-2:]

Class = TypeVar("Class", bound=type[Sampler])


def register_sampler(name: str) -> Callable[[Class], Class]:
    """Register a subclass of `floatlens.decode.sampler.Sampler`, as a class decorator above `@dataclass(frozen=True)`.

    `name` is the one that families use in their field `sampler`; see src/floatlens/decode/README.md.
    """

    def register(kind: Class) -> Class:
        SAMPLERS.add(name, kind)
        return kind

    return register


def own_settings(sampler: str) -> list[Field[Any]]:
    """The settings of one sampler alone: name, type and default, with the help in `metadata["help"]`."""
    return [each for each in fields(SAMPLERS[sampler]) if each.name not in COMMON]


def settings_for(sampler: str, **given: Any) -> Sampler:
    """A sampler with its settings, from names and values; None means the default, an unknown name is an error.

    >>> settings_for("llada", max_new_tokens=16, steps=8).block_length
    16
    >>> settings_for("autoregressive", max_new_tokens=16, steps=8).max_new_tokens
    16
    """
    kind = SAMPLERS[sampler]
    known = [field.name for field in fields(kind)]
    asked = {name: value for name, value in given.items() if value is not None}
    unknown = [name for name in asked if name not in known and name not in SHARED]
    if unknown:
        raise FloatLensError(f"the {sampler} sampler has no setting {unknown[0]!r}; it takes {', '.join(known)}")
    return kind(**{name: value for name, value in asked.items() if name in known})
