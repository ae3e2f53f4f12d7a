"""Replay: reveal a given text in a given order, one forward pass per step, without sampling.

The passes are those of the sampler, so replaying a greedy generation in its own order gives the same steps. `confidence` is
the probability of the given token at positions that a step reveals, and of the most likely token at the other masks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from floatlens.data.sequences import GIVEN, Script
from floatlens.decode.blocks import Blocks
from floatlens.decode.network import Passes
from floatlens.decode.sampler import SAMPLERS, Sampler, settings_for
from floatlens.decode.step import Step, write_step
from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    from floatlens.models.family import Family

NAME = "replay"  # the name of the sampler in the trace of a replay


@dataclass(frozen=True)
class Replay(Sampler):
    """A replay of scripts: `steps` passes, `order` by name; `block_length` for block models."""

    steps: int = 0
    order: str = ""
    block_length: int | None = None

    @property
    def step_count(self) -> int:
        return self.steps

    def own(self, sampler: str) -> Sampler:
        """The sampler whose passes are used."""
        given = {"max_new_tokens": self.max_new_tokens, "block_length": self.block_length, "seed": self.seed}
        return settings_for(sampler, **given)

    def sample(self, passes: Passes) -> Iterator[Step]:
        return reveal(passes)


def can_replay(sampler: str) -> bool:
    """Whether a sampler can run a given text."""
    return SAMPLERS[sampler].run is not Sampler.run


def settings_of(
    scripts: Sequence[Script], family: Family, sampler: str, block_length: int | None = None, seed: int = 0
) -> Replay:
    """Return the settings of a batch of scripts; raise an error if they cannot be replayed together."""
    first = scripts[0]
    if not can_replay(sampler):
        raise FloatLensError(f"the {sampler} sampler cannot replay a given text")
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
    block = own.block_length if isinstance(own, Blocks) else None
    return Replay(longest, seed=seed, steps=steps, order=first.order, block_length=block)


def reveal(passes: Passes) -> Iterator[Step]:
    """Reveal the tokens of the scripts, each at its step; what is not yet revealed is masked, or not there.

    The texts of an autoregressive model may differ in length: a row whose text has ended repeats its last token.
    """
    ids_BP, scripts, P = passes.ids_BP, passes.scripts, passes.P
    N = max(len(script.ids) for script in scripts)
    for script in scripts:
        check_order(script, [passes.end(P + index) for index in range(len(script.ids))])
    text = [[*script.ids, *script.ids[-1:] * (N - len(script.ids))] for script in scripts]
    at = [[*script.at, *[GIVEN] * (N - len(script.at))] for script in scripts]
    all_BT = torch.cat([ids_BP, torch.tensor(text, device=ids_BP.device)], 1)
    at_BT = torch.cat([torch.full_like(ids_BP, GIVEN), torch.tensor(at, device=ids_BP.device)], 1)
    lengths_B = torch.tensor([len(script.ids) for script in scripts], device=ids_BP.device)
    for index in range(max(script.steps for script in scripts)):
        hidden_BT = at_BT >= index
        following = int(hidden_BT.any(0).nonzero()[0, 0]) if bool(hidden_BT.any()) else P + N - 1
        x_BT = all_BT.masked_fill(hidden_BT, passes.special.mask_id or 0)[:, : min(passes.end(following), P + N)]
        first, logits_BLV = passes(x_BT)
        last = first + logits_BLV.shape[1]
        if bool((at_BT[:, last:] == index).any()):
            raise FloatLensError(
                f"at step {index} the texts of a batch are revealed in different blocks; replay them one by one"
            )
        token_BL, at_BL = all_BT[:, first:last], at_BT[:, first:last]
        probs_BLV = logits_BLV.float().softmax(-1)
        given_BL = probs_BLV.gather(-1, token_BL[..., None])[..., 0]
        confidence_BL = torch.where(at_BL == index, given_BL, probs_BLV.max(-1).values).masked_fill(
            at_BL < index, torch.nan
        )
        running_B = lengths_B > index if bool((lengths_B < N).any()) else None
        written_BL = (token_BL, at_BL == index, confidence_BL)
        yield write_step(index, x_BT, first, *written_BL, active=passes.active, running_B=running_B)


def left_to_right(passes: Passes, text_BN: torch.Tensor) -> list[torch.Tensor]:
    """The sequences whose next token is each token of a text (B, N): revealed up to it, masked after it."""
    ids_BP, P, sequences = passes.ids_BP, passes.P, []
    for count in range(text_BN.shape[1]):
        x_BT = ids_BP.new_full((passes.B, passes.end(P + count)), passes.special.mask_id or 0)
        x_BT[:, : P + count] = torch.cat([ids_BP, text_BN[:, :count]], 1)
        sequences.append(x_BT)
    return sequences


def check_order(script: Script, blocks: Sequence[int]) -> None:
    """Raise an error for an order that reveals a token of a later block before a block is finished.

    >>> check_order(Script((7, 8, 9), (1, 0, 2), 3), blocks=[1, 2, 2])
    Traceback (most recent call last):
    ...
    floatlens.errors.FloatLensError: token 1 is revealed before the block of token 0 is finished, but blocks are ...
    """
    for index, (block, step) in enumerate(zip(blocks, script.at, strict=True)):
        late = next((i for i in range(index) if blocks[i] < block and script.at[i] >= step), None)
        if late is not None:
            raise FloatLensError(
                f"token {index} is revealed before the block of token {late} is finished, but blocks are written one after "
                f"another; use left-to-right"
            )
