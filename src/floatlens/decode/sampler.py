"""The base class of samplers: its fields are the settings, checked on creation, and it yields the steps. Samplers by name.

A setting is declared once, with type, default, help and limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence, Set
from dataclasses import Field, dataclass, field, fields
from numbers import Integral, Real
from typing import Any, ClassVar, TypeAlias, TypeVar

import torch

from floatlens.decode.network import Passes
from floatlens.decode.step import Step, write_step
from floatlens.errors import FloatLensError, check_known
from floatlens.registry import Registry

TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((Integral,), "an integer"),
    "float": ((Real,), "a number"),
    "bool": ((bool,), "true or false"),
    "str": ((str,), "a text"),
}
# The values that a setting takes, as a test and in words. NaN passes none of the tests on numbers.
Limit = tuple[Callable[[Any], bool], str]
ANY: Limit = (lambda value: True, "")
AT_LEAST_0: Limit = (lambda value: 0 <= value < math.inf, " of 0 or more")
AT_LEAST_1: Limit = (lambda value: value >= 1, " of 1 or more")
ABOVE_0: Limit = (lambda value: value > 0, " above 0")
SHARE: Limit = (lambda value: 0 < value <= 1, " above 0 and at most 1")


def setting(default: Any, help: str, limit: Limit = ANY, options: Sequence[str] = ()) -> Any:
    """Declare a setting of a sampler, with the values that it takes. None is allowed where it is the default."""
    return field(default=default, metadata={"help": help, "limit": limit, "options": options})


# Settings of several samplers.
TOP_P = setting(None, "Draw from the most probable tokens whose probabilities sum to this; all by default.", SHARE)
TOP_K = setting(None, "Draw from this number of most probable tokens; all by default.", AT_LEAST_1)
CACHE = setting(True, "Keep the keys and values of finished blocks in a cache.")
CFG_SCALE = setting(0.0, "Strength of guidance, by a second row with the prompt masked; 0 for none.", AT_LEAST_0)
REMASKING = setting(
    "low_confidence",
    "Order of writing: low_confidence (masks of low confidence stay, so the most confident come first) or random.",
    options=("low_confidence", "random"),
)
THINKING = setting(
    None, "Number of new tokens after which end_think_token_id is written, if it is not there yet.", AT_LEAST_0
)
END_THINK = setting(None, "The token that ends thinking.", AT_LEAST_0)


def check_whole(value: Any, name: str) -> None:
    """Raise an error if a value is not an integer of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise FloatLensError(f"{name} should be an integer of 1 or more, not {value!r}")


@dataclass(frozen=True)
class Sampler:
    """A sampler with its settings. A subclass is a frozen dataclass whose fields are declared with `setting`.

    Given texts are replayed and scored with `run`; a sampler that does not define it cannot do so.

    batched   whether it writes several prompts at once; if not, the prompts of a batch are written one after another
    aligned   whether its blocks, of `block_length`, are counted from the start of each prompt. The rows of a batch are
              then padded by whole blocks, and `passes.ends` are the columns at which the prompts end
    revises   whether it may replace a token that it has written; an answer is then known only after the last step
    fills     whether it can fill masks inside a text: `passes.tail_BN`
    """

    batched: ClassVar[bool] = True
    aligned: ClassVar[bool] = False
    revises: ClassVar[bool] = False
    fills: ClassVar[bool] = False

    max_new_tokens: int = setting(32, "Number of tokens to write.", AT_LEAST_1)
    temperature: float = setting(0.0, "Sampling temperature; 0 is greedy decoding.", AT_LEAST_0)
    seed: int = setting(0, "Seed of the random numbers.")

    def __post_init__(self) -> None:
        for each in fields(self):
            value: Any = getattr(self, each.name)
            if not each.metadata or (value is None and each.default is None):
                continue
            (types, words), (fits, limit) = TYPES[str(each.type).removesuffix(" | None")], each.metadata["limit"]
            if not isinstance(value, types) or (isinstance(value, bool) and bool not in types) or not fits(value):
                raise FloatLensError(f"{each.name} should be {words}{limit}, not {value!r}")
            if each.metadata["options"]:
                check_known(each.name, str(value), each.metadata["options"])

    def sample(self, passes: Passes) -> Iterator[Step]:
        """Write after the prompts of `passes`, one `Step` per denoising or decoding pass."""
        raise NotImplementedError

    def run(self, passes: Passes, x_BT: torch.Tensor) -> tuple[int, torch.Tensor]:
        """Run a sequence; return the first column that the pass writes, and the logits (B, N, V) from there on."""
        raise FloatLensError(f"a {type(self).__name__} sampler cannot run given sequences; define its `run`")

    def end(self, passes: Passes, column: int) -> int:
        """Length of the sequence whose pass writes this column."""
        return passes.P + self.max_new_tokens

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
            way, room = "use a smaller block_length", self.room(prompt_length, context)
            if room > 0:
                way = f"use --max-new-tokens {room}"
            elif prompt_length >= context:
                way = f"shorten the prompt by {prompt_length - context + 1} tokens or more"
            raise FloatLensError(
                f"a prompt of {prompt_length} tokens and {new} new ones exceed the model's context of {context}; {way}"
            )


# Writes one row: yields None to ask for a pass, receives the logits of the positions to write (L, V), writes into the row,
# and yields which positions it wrote and the confidence of all of them (L).
RowWriter: TypeAlias = Generator[Any, Any, None]
DONE = object()


def write_rows(
    passes: Passes,
    x_BT: torch.Tensor,
    first: int,
    writers: dict[int, RowWriter],
    index: int = 0,
    ended: Set[int] = frozenset(),
) -> Generator[Step, None, int]:
    """Have rows of `x_BT` written in place from column `first` on, with the same passes; return the index of the next step.

    A row without a writer is not running, nor one whose writer has finished, nor one that has `ended`.
    """
    while writers := {row: one for row, one in writers.items() if next(one, DONE) is not DONE}:
        before_BT, after_BL = x_BT.clone(), x_BT[:, first:]
        _, logits_BLV = passes(before_BT)
        chosen_BL = torch.zeros_like(after_BL, dtype=torch.bool)
        confidence_BL = torch.full(after_BL.shape, torch.nan, device=x_BT.device)
        for row, writer in writers.items():
            chosen_BL[row], confidence_BL[row] = writer.send(logits_BLV[row])
        running = [row in writers and row not in ended for row in range(passes.B)]
        running_B = None if all(running) else torch.tensor(running, device=x_BT.device)
        written_BL = (after_BL, chosen_BL, confidence_BL)
        yield write_step(index, before_BT, first, *written_BL, active=passes.active, running_B=running_B)
        index += 1
    return index


# The candidates of a step in one row: their indices among the new positions, their tokens, the probabilities of these,
# and which of the candidates are committed.
Candidates = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Denoising(Sampler):
    """Denoises `max_new_tokens` masks after each prompt, or those of a tail. A subclass defines `choose`."""

    fills: ClassVar[bool] = True
    # Whether a mask token that the model commits is still a mask, as in the published samplers.
    masks_again: ClassVar[bool] = True

    steps: int | None = setting(None, "Number of denoising steps; one per token by default.", AT_LEAST_1)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "steps", self.step_count)

    @property
    def step_count(self) -> int:
        return self.steps or self.max_new_tokens

    def choose(
        self, passes: Passes, row: int, index: int, logits_NV: torch.Tensor, masked_M: torch.Tensor
    ) -> Candidates:
        """The candidates of a step in one row, which has masks at these new positions."""
        raise NotImplementedError

    def run(self, passes: Passes, x_BT: torch.Tensor) -> tuple[int, torch.Tensor]:
        return passes.P, passes.run_whole(x_BT, getattr(self, "cfg_scale", 0.0))

    def sample(self, passes: Passes) -> Iterator[Step]:
        x_BT, P = passes.with_masks(), passes.P
        yield from write_rows(passes, x_BT, P, {row: self.write(passes, row, x_BT[row, P:]) for row in range(passes.B)})

    def write(self, passes: Passes, row: int, x_N: torch.Tensor) -> RowWriter:
        masked_N = x_N == passes.special.mask
        for index in range(self.step_count):
            logits_NV = yield None
            committed_N = torch.zeros_like(masked_N)
            confidence_N = torch.full(x_N.shape, torch.nan, device=x_N.device)
            if bool(masked_N.any()):
                masked_M = masked_N.nonzero()[:, 0]
                at_C, token_C, probability_C, chosen = self.choose(passes, row, index, logits_NV, masked_M)
                confidence_N[at_C] = probability_C.float()
                committed_N[at_C[chosen]] = True
                x_N[at_C[chosen]] = token_C[chosen]
            yield committed_N, confidence_N
            masked_N = x_N == passes.special.mask if self.masks_again else masked_N & ~committed_N


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
