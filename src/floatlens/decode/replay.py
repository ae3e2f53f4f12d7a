"""Replay: a given text is revealed in a given order, one forward pass per step, and nothing is sampled.

The passes are those by which the model generates: over the whole sequence, on a cache, or as its sampler registers them. So
replaying a greedy generation in its own order gives the same steps. `confidence` is the probability of the given token where
a step reveals it, and that of the most likely token at the other masks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from floatlens.data.script import Script
from floatlens.decode.network import Network
from floatlens.decode.registry import SAMPLERS, Passes
from floatlens.decode.settings import Settings
from floatlens.decode.special_tokens import SpecialTokens
from floatlens.decode.step import Step
from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    from floatlens.models.family import Family

NAME = "replay"  # what a trace has for its sampler


@dataclass(frozen=True)
class ReplaySettings(Settings):
    """Settings of a replay, read from its scripts: `steps` passes, `order` by name."""

    steps: int = 0
    order: str = ""

    @property
    def step_count(self) -> int:
        return self.steps


def settings_of(scripts: Sequence[Script], family: Family) -> ReplaySettings:
    """Return the settings of a batch of scripts; those that cannot be replayed together are refused."""
    first = scripts[0]
    if family.kind == "arm":
        for script in scripts:
            if not script.in_sequence:
                raise FloatLensError(
                    f"an autoregressive model reveals one token after another; the order {script.order!r} needs a masked "
                    f"diffusion model, use left-to-right"
                )
    elif any((len(script.ids), script.steps) != (len(first.ids), first.steps) for script in scripts):
        raise FloatLensError(
            "texts that are replayed together by a masked diffusion model should have equal numbers of tokens and steps; "
            "replay them one by one"
        )
    longest = max(len(script.ids) for script in scripts)
    return ReplaySettings(longest, steps=max(script.steps for script in scripts), order=first.order)


def replay(
    network: Network,
    ids_BP: torch.Tensor,
    real_BP: torch.Tensor | None,
    scripts: Sequence[Script],
    family: Family,
    special: SpecialTokens,
) -> Iterator[Step]:
    """Reveal the text of each row's script, one Step per forward pass."""
    if family.kind == "arm":
        return append(network, ids_BP, real_BP, scripts)
    N = len(scripts[0].ids)
    make = SAMPLERS[family.sampler].passes
    if make is not None:
        return reveal(make(network, ids_BP, real_BP, N), ids_BP, scripts, special.mask)
    if family.cached or family.attention != "bidirectional":
        raise FloatLensError(
            f"the {family.sampler} sampler cannot replay a given text; it needs `passes` in its register_sampler"
        )
    return reveal(WholePasses(network, ids_BP, real_BP, N, family.shifted), ids_BP, scripts, special.mask)


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


def append(
    network: Network, ids_BP: torch.Tensor, real_BP: torch.Tensor | None, scripts: Sequence[Script]
) -> Iterator[Step]:
    """Append the tokens of the scripts one by one, on a cache. A row whose text is over repeats its last token."""
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
