"""SDAR's sampler: block by block, most certain positions first, with finished blocks in a cache.

After generate.py of JetAstra/SDAR (arXiv 2510.06303); step histories equal its own (tests/golden-blocks). Two differences:
a step never commits more positions than there are masks (the published code then overwrites known positions), and
`entropy_bounded` is the rule of the group's engine, since the published one raises an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from floatlens.decode.blocks import BlockPasses, RowCanvas, WholeBlockSettings, Writer, write_rows
from floatlens.decode.draws import Draws, filter_top_k_first, most_confident, transfers
from floatlens.decode.network import Network
from floatlens.decode.registry import register_sampler
from floatlens.decode.settings import at_least, between, one_of, setting, top_k, top_p
from floatlens.decode.step import SpecialTokens, Step

STRATEGIES = ("low_confidence_dynamic", "low_confidence_static", "sequential", "entropy_bounded")


@dataclass(frozen=True)
class SDARSettings(WholeBlockSettings):
    """Settings of SDAR's sampler."""

    block_length: int = setting(4, "Tokens per block; the model's own by default.", at_least(1))
    remasking_strategy: str = setting(
        "low_confidence_dynamic",
        "Which masks a step commits: those above confidence_threshold, and at least the planned number "
        "(low_confidence_dynamic); the planned number, by confidence (low_confidence_static) or from left to right "
        "(sequential); those of lowest entropy, while its sum stays below eb_threshold (entropy_bounded).",
        one_of(*STRATEGIES),
    )
    confidence_threshold: float = setting(0.85, "Confidence above which low_confidence_dynamic commits a mask.")
    eb_threshold: float = setting(0.35, "Bound on the summed entropy, for entropy_bounded.", between(0))
    top_p: float | None = top_p()
    top_k: int | None = top_k()

    @property
    def passes_per_block(self) -> int:
        if self.steps_per_block is not None:
            return self.steps_per_block
        return min(super().passes_per_block, self.block_length)


@register_sampler("sdar", SDARSettings, passes=BlockPasses, aligned=True)
def sample(
    network: Network,
    ids_BP: torch.Tensor,
    real_BP: torch.Tensor | None,
    settings: SDARSettings,
    *,
    special: SpecialTokens,
    draws: Draws | None = None,
    ends: Sequence[int] | None = None,
) -> Iterator[Step]:
    """Write whole blocks after each prompt, one Step per denoising pass; a row stops after a block that has an end token."""
    drawn = draws or Draws([settings.seed] * len(ids_BP))

    def write(canvas: RowCanvas) -> Writer:
        for first in canvas.starts:
            for count in transfers(settings.block_length, settings.passes_per_block):
                masked_L = canvas.tokens(first) == special.mask
                if not bool(masked_L.any()):
                    break
                logits_LV = yield first
                top = (settings.top_p, settings.top_k)
                token_L, probability_L = propose(logits_LV, settings.temperature, *top, drawn, canvas.row)
                chosen_L = choose(logits_LV, probability_L, masked_L, count, settings)
                canvas.write(first, token_L, chosen_L, probability_L.masked_fill(~masked_L, torch.nan))
            if canvas.has_end():
                return

    return write_rows(network, ids_BP, real_BP, settings, special, ends, write)


def propose(
    logits_LV: torch.Tensor, temperature: float, top_p: float | None, top_k: int | None, draws: Draws, row: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """A token for every position of the block, including known ones, and its probability after filtering."""
    probs_LV = filter_top_k_first(logits_LV, temperature, top_p, top_k).softmax(-1)
    token_L = draws.choose(row, probs_LV)[:, 0].to(probs_LV.device) if temperature > 0 else logits_LV.argmax(-1)
    return token_L, probs_LV.gather(-1, token_L[:, None])[:, 0]


def choose(
    logits_LV: torch.Tensor,
    probability_L: torch.Tensor,
    masked_L: torch.Tensor,
    count: int,
    settings: SDARSettings,
) -> torch.Tensor:
    """True for the masks that the step commits; `count` is the planned number."""
    places_M = masked_L.nonzero()[:, 0]
    if settings.remasking_strategy == "sequential":
        order = places_M[:count]
    elif settings.remasking_strategy == "entropy_bounded":
        scale = settings.temperature or 1.0
        entropy_M = torch.distributions.Categorical(logits=logits_LV[places_M] / scale).entropy()
        ascending, by_entropy = entropy_M.sort(stable=True)
        order = places_M[by_entropy[: max(1, int((ascending.cumsum(0) < settings.eb_threshold).sum()))]]
    else:
        dynamic = settings.remasking_strategy == "low_confidence_dynamic"
        threshold = settings.confidence_threshold if dynamic else None
        return above_or_best(probability_L, masked_L, count, threshold)
    chosen_L = torch.zeros_like(masked_L)
    chosen_L[order] = True
    return chosen_L


def above_or_best(
    probability_L: torch.Tensor, masked_L: torch.Tensor, count: int, threshold: float | None
) -> torch.Tensor:
    """True for all masks above the threshold if there are at least `count`, otherwise for the `count` most confident ones.

    >>> p, masked = torch.tensor([0.9, 0.2, 0.95, 0.5]), torch.tensor([False, True, True, True])
    >>> above_or_best(p, masked, 1, 0.4).tolist(), above_or_best(p, masked, 3, 0.4).tolist()
    ([False, False, True, True], [False, True, True, True])
    """
    if threshold is not None:
        above_L = masked_L & (probability_L > threshold)
        if int(above_L.sum()) >= count:
            return above_L
    rank_L = probability_L.masked_fill(~masked_L, -torch.inf)
    chosen_L = torch.zeros_like(masked_L)
    chosen_L[most_confident(rank_L, min(count, int(masked_L.sum())))] = True
    return chosen_L
