"""The samplers by name. Each file of this folder that defines one registers it with one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, fields
from typing import Any, TypeVar

from floatlens.decode.passes import Passes
from floatlens.decode.settings import Settings
from floatlens.decode.step import Step
from floatlens.errors import FloatLensError
from floatlens.registry import Registry


@dataclass(frozen=True)
class Sampler:
    """A sampler; see `register_sampler`."""

    settings: type[Settings]
    sample: Callable[..., Iterator[Step]]
    passes: type[Passes] | None = None
    replay: Callable[..., Iterator[Step]] | None = None
    batched: bool = True
    aligned: bool = False
    revises: bool = False


MODULES = (
    "autoregressive", "bd3lm", "diffusion_gemma", "dream", "llada", "llada2", "llada21", "most_certain", "nemotron",
    "nemotron_spec", "sdar"
)  # fmt: skip
SAMPLERS: Registry[Sampler] = Registry("sampler", "floatlens.decode", MODULES)

# Settings that travel by their own names. A comparison passes the last two to all its models; some samplers ignore them.
COMMON = ("max_new_tokens", "temperature", "seed", "steps", "block_length")
SHARED = COMMON[-2:]

Sample = TypeVar("Sample", bound=Callable[..., Iterator[Step]])


def register_sampler(
    name: str,
    settings: type[Settings],
    *,
    passes: type[Passes] | None = None,
    replay: Callable[..., Iterator[Step]] | None = None,
    batched: bool = True,
    aligned: bool = False,
    revises: bool = False,
) -> Callable[[Sample], Sample]:
    """Register the decorated generator function as a sampler.

    Parameters
    ----------
    name
        The name that families use in their field `sampler`.
    settings
        A dataclass derived from `floatlens.decode.settings.Settings`, whose fields are declared with `setting`.
    passes
        How it runs a sequence, so that given texts can be replayed and scored: a class derived from
        `floatlens.decode.passes.Passes`. Samplers that run the whole sequence at every step, and autoregressive ones, do
        not need it.
    replay
        Function that reveals given texts, `replay(network, ids_BP, real_BP, scripts, settings, special)`, for a sampler
        that has no masks.
    batched
        Whether it writes several prompts at once; if not, the prompts of a batch are written one after another.
    aligned
        Whether its blocks, of `settings.block_length`, are counted from the start of each prompt. The rows of a batch are
        then padded by whole blocks, and it takes `ends`, the column at which each prompt ends.
    revises
        Whether it may replace a token that it has written; an answer is then known only after the last step.

    The function is called as `sample(network, ids_BP, real_BP, settings, *, special, draws)` and yields a
    `floatlens.decode.step.Step` per forward pass: see src/floatlens/decode/README.md. A sampler that can fill masks inside a
    text also takes `tail_BN`, the tokens after the prompt, of which only the masks are written.
    """

    def register(sample: Sample) -> Sample:
        SAMPLERS.add(name, Sampler(settings, sample, passes, replay, batched, aligned, revises), source=sample)
        return sample

    return register


def own_settings(sampler: str) -> list[Field[Any]]:
    """The settings of one sampler alone: name, type and default, with the help in `metadata["help"]`.

    >>> [(each.name, each.type, each.default) for each in own_settings("autoregressive")][-2:]
    [('top_p', 'float | None', None), ('top_k', 'int | None', None)]
    """
    return [each for each in fields(SAMPLERS[sampler].settings) if each.name not in COMMON]


def settings_for(sampler: str, **given: Any) -> Settings:
    """Settings of a sampler from names and values; None means the default, an unknown name is an error.

    >>> settings_for("llada", max_new_tokens=16, steps=8).block_length
    16
    >>> settings_for("autoregressive", max_new_tokens=16, steps=8).max_new_tokens
    16
    """
    kind = SAMPLERS[sampler].settings
    known = [field.name for field in fields(kind)]
    asked = {name: value for name, value in given.items() if value is not None}
    unknown = [name for name in asked if name not in known and name not in SHARED]
    if unknown:
        raise FloatLensError(f"the {sampler} sampler has no setting {unknown[0]!r}; it takes {', '.join(known)}")
    return kind(**{name: value for name, value in asked.items() if name in known})
