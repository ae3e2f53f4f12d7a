"""Replay: reveal a given text in a given order, one forward pass per step, without sampling.

The passes are the same as in generation: over the whole sequence, with a cache, block by block, or as registered by the
sampler. So replaying a greedy generation in its own order gives the same steps. `confidence` is the probability of the given
token at positions that a step reveals, and of the most likely token at the other masks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from floatlens.data.script import GIVEN, Script
from floatlens.decode.blocks import (
    BlockPasses,
    BlockSettings,
    WholeBlockSettings,
    block_step,
    check_alone,
    count_blocks,
)
from floatlens.decode.network import Network
from floatlens.decode.registry import SAMPLERS, settings_for
from floatlens.decode.settings import Settings
from floatlens.decode.special_tokens import SpecialTokens
from floatlens.decode.step import Step
from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    from floatlens.models.family import Family

NAME = "replay"  # the name of the sampler in the trace of a replay


@dataclass(frozen=True)
class ReplaySettings(Settings):
    """Settings of a replay, read from its scripts: `steps` passes, `order` by name; `block_length` for block models."""

    steps: int = 0
    order: str = ""
    block_length: int | None = None

    @property
    def step_count(self) -> int:
        return self.steps


def writes_blocks(sampler: str) -> bool:
    """Whether a sampler writes whole blocks one after another, counted from the start of the prompt."""
    return issubclass(SAMPLERS[sampler].settings, WholeBlockSettings)


def can_replay(family: Family, sampler: str) -> bool:
    """Whether the passes of a sampler are known, so that a given text can be replayed."""
    whole = not family.cached and family.attention in ("bidirectional", "two-way")
    return family.kind == "arm" or whole or SAMPLERS[sampler].replay is not None or writes_blocks(sampler)


def settings_of(
    scripts: Sequence[Script], family: Family, sampler: str, block_length: int | None = None, seed: int = 0
) -> ReplaySettings:
    """Return the settings of a batch of scripts; raise an error if they cannot be replayed together.

    `seed` is for samplers without a mask token, which use random tokens instead.
    """
    first = scripts[0]
    if not can_replay(family, sampler):
        raise FloatLensError(f"the {sampler} sampler cannot replay a given text; register it with replay=...")
    if family.kind == "arm":
        for script in scripts:
            if not script.in_sequence:
                raise FloatLensError(
                    f"an autoregressive model reveals tokens from left to right; the order {script.order!r} needs a masked "
                    f"diffusion model, use left-to-right"
                )
    elif any((len(script.ids), script.steps) != (len(first.ids), first.steps) for script in scripts):
        raise FloatLensError(
            "texts that are replayed together by a masked diffusion model must have equal numbers of tokens and steps; "
            "replay them one by one"
        )
    longest, steps = max(len(script.ids) for script in scripts), max(script.steps for script in scripts)
    own = settings_for(sampler, block_length=block_length)
    block = own.block_length if isinstance(own, BlockSettings) else None
    return ReplaySettings(longest, seed=seed, steps=steps, order=first.order, block_length=block)


def replay(
    network: Network,
    ids_BP: torch.Tensor,
    real_BP: torch.Tensor | None,
    scripts: Sequence[Script],
    settings: ReplaySettings,
    *,
    family: Family,
    sampler: str,
    special: SpecialTokens,
) -> Iterator[Step]:
    """Reveal the text of each row's script, one Step per forward pass."""
    if family.kind == "arm":
        return append(network, ids_BP, real_BP, scripts)
    own = SAMPLERS[sampler].replay
    if own is not None:
        return own(network, ids_BP, real_BP, scripts, settings, special)
    if settings.block_length is not None:
        check_alone(ids_BP, sampler)
        real_BT = torch.ones((1, ids_BP.shape[1] + settings.max_new_tokens), dtype=torch.bool, device=ids_BP.device)
        layout_BT = count_blocks(real_BT, settings.block_length)

        def place(x_BT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return layout_BT[0][:, : x_BT.shape[1]], layout_BT[1][:, : x_BT.shape[1]]

        return reveal_blocks(network, ids_BP, scripts, settings.block_length, special.mask, place)
    passes = WholePasses(network, ids_BP, real_BP, settings.max_new_tokens, family.shifted)
    return reveal(passes, ids_BP, scripts, special.mask)


class Passes(Protocol):
    """The forward passes of a decoding, one after another. `active` is that of `Step`."""

    @property
    def active(self) -> range | None: ...

    def __call__(self, x_BT: torch.Tensor) -> torch.Tensor:
        """Logits (B, N, V) that write the N positions after the prompt, from the sequence so far."""
        ...


class WholePasses:
    """Passes over the whole sequence, without a cache."""

    active: range | None = None

    def __init__(
        self,
        network: Network,
        ids_BP: torch.Tensor,
        real_BP: torch.Tensor | None,
        new_tokens: int,
        shifted: bool,
    ) -> None:
        self.network, self.N, self.shifted = network, new_tokens, int(shifted)
        new = ids_BP.new_ones((len(ids_BP), new_tokens), dtype=torch.bool)
        self.real_BT = None if real_BP is None else torch.cat([real_BP, new], 1)

    def __call__(self, x_BT: torch.Tensor) -> torch.Tensor:
        return self.network.logits(x_BT, self.real_BT, self.N + self.shifted)[:, : self.N]


def reveal(passes: Passes, ids_BP: torch.Tensor, scripts: Sequence[Script], mask_id: int) -> Iterator[Step]:
    """Replace masks after the prompt by the tokens of the scripts, each at its step."""
    device = ids_BP.device
    text_BN = torch.tensor([script.ids for script in scripts], device=device)
    at_BN = torch.tensor([script.at for script in scripts], device=device)
    prompt_BP = torch.zeros_like(ids_BP, dtype=torch.bool)
    unknown_BP = torch.full(ids_BP.shape, torch.nan, device=device)
    for index in range(scripts[0].steps):
        hidden_BN, now_BN = at_BN >= index, at_BN == index
        x_BT = torch.cat([ids_BP, text_BN.masked_fill(hidden_BN, mask_id)], 1)
        probs_BNV = passes(x_BT).float().softmax(-1)
        given_BN = probs_BNV.gather(-1, text_BN[..., None])[..., 0]
        confidence_BN = torch.where(now_BN, given_BN, probs_BNV.max(-1).values).masked_fill(~hidden_BN, torch.nan)
        yield Step(
            index,
            x_BT,
            torch.cat([ids_BP, text_BN.masked_fill(hidden_BN & ~now_BN, mask_id)], 1),
            torch.cat([prompt_BP, now_BN], 1),
            torch.cat([unknown_BP, confidence_BN], 1),
            passes.active,
        )


def check_order(script: Script, prompt_length: int, block: int) -> None:
    """Raise an error for an order that reveals a token of a later block before a block is finished.

    >>> check_order(Script((7, 8, 9), (1, 0, 2), 3), prompt_length=3, block=2)
    Traceback (most recent call last):
    ...
    floatlens.errors.FloatLensError: token 1 is revealed before the block of token 0 is finished, but blocks of 2 ...
    """
    numbers = [(prompt_length + index) // block for index in range(len(script.ids))]
    for index, (number, step) in enumerate(zip(numbers, script.at, strict=True)):
        late = next((i for i in range(index) if numbers[i] < number and script.at[i] >= step), None)
        if late is not None:
            raise FloatLensError(
                f"token {index} is revealed before the block of token {late} is finished, but blocks of {block} are written "
                f"one after another; use left-to-right"
            )


# The block and the position of each token of a sequence (B, T).
Place = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def reveal_blocks(
    network: Network,
    ids_BP: torch.Tensor,
    scripts: Sequence[Script],
    block: int,
    mask_id: int,
    place: Place,
    origin: int = 0,
) -> Iterator[Step]:
    """Reveal texts block by block, with finished blocks in a cache; a pass does not see later blocks.

    `origin` is a column at which a block begins. The rows of a batch must reveal tokens of the same block at each step.
    """
    P, N = ids_BP.shape[1], len(scripts[0].ids)
    for script in scripts:
        check_order(script, P - origin, block)
    text_BN = torch.tensor([script.ids for script in scripts], device=ids_BP.device)
    at_BN = torch.tensor([script.at for script in scripts], device=ids_BP.device)
    # The first block may begin inside the prompt, which is visible from the start.
    all_BT = torch.cat([ids_BP, text_BN], 1)
    at_BT = torch.cat([torch.full_like(ids_BP, GIVEN), at_BN], 1)
    passes = BlockPasses(network, cache=True)
    for index in range(scripts[0].steps):
        hidden_BT = at_BT >= index
        next_one = int(hidden_BT.any(0).nonzero()[0, 0]) if bool(hidden_BT.any()) else P + N - 1
        first = origin + (next_one - origin) // block * block
        last = min(first + block, P + N)
        if bool((at_BT[:, last:] == index).any()):
            raise FloatLensError(
                f"at step {index} the texts of a batch are revealed in different blocks of {block}; replay them one by one"
            )
        x_BT = all_BT.masked_fill(hidden_BT, mask_id)[:, :last]
        probs_BLV = passes.logits(x_BT, first, *place(x_BT)).float().softmax(-1)
        token_BL, step_BL = all_BT[:, first:last], at_BT[:, first:last]
        given_BL = probs_BLV.gather(-1, token_BL[..., None])[..., 0]
        confidence_BL = torch.where(step_BL == index, given_BL, probs_BLV.max(-1).values)
        yield block_step(
            index, x_BT, first, token_BL, step_BL == index, confidence_BL.masked_fill(step_BL < index, torch.nan)
        )


def append(
    network: Network, ids_BP: torch.Tensor, real_BP: torch.Tensor | None, scripts: Sequence[Script]
) -> Iterator[Step]:
    """Append the tokens of the scripts one by one, with a cache. A row whose text has ended repeats its last token."""
    B = len(scripts)
    x_BT, real_BT, cache = ids_BP, real_BP, None
    lengths_B = torch.tensor([len(script.ids) for script in scripts], device=ids_BP.device)
    for index in range(int(lengths_B.max())):
        logits_B1V, cache = network.extend(x_BT if cache is None else x_BT[:, -1:], real_BT, cache)
        over_B = lengths_B <= index
        next_B = ids_BP.new_tensor([script.ids[min(index, len(script.ids) - 1)] for script in scripts])
        probability_B = logits_B1V[:, 0].float().softmax(-1).gather(-1, next_B[:, None])[:, 0]
        after_BT = torch.cat([x_BT, next_B[:, None]], 1)
        committed_BT = torch.zeros_like(after_BT, dtype=torch.bool)
        committed_BT[:, -1] = ~over_B
        confidence_BT = torch.full(after_BT.shape, torch.nan, device=x_BT.device)
        confidence_BT[:, -1] = probability_B.masked_fill(over_B, torch.nan)
        yield Step(index, x_BT, after_BT, committed_BT, confidence_BT, running_B=~over_B)
        x_BT = after_BT
        real_BT = None if real_BT is None else torch.cat([real_BT, real_BT.new_ones((B, 1))], 1)
