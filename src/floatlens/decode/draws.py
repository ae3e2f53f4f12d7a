"""What samplers share: random numbers, filters of logits, and the choice of positions.

There is one random generator per row, so that a row draws the same numbers in any batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

CHUNK = 1 << 22


class Draws:
    """Seeded draws on the CPU, then moved to the device: the same numbers on every device.

    >>> a, b = Draws([7]).uniform(0, (2,)), Draws([1, 7]).uniform(1, (2,))
    >>> bool((a == b).all())
    True
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self.generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]

    def uniform(self, row: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Uniform numbers in [0, 1) for one row."""
        return torch.rand(shape, dtype=dtype, generator=self.generators[row])

    def skip(self, row: int, count: int, dtype: torch.dtype = torch.float32) -> None:
        """Draw and discard `count` numbers: the published samplers also draw for the prompt."""
        while count > 0:
            torch.rand(min(count, CHUNK), dtype=dtype, generator=self.generators[row])
            count -= CHUNK

    def choose(self, row: int, weights_NV: torch.Tensor, count: int = 1, replacement: bool = True) -> torch.Tensor:
        """Indices (N, count) drawn by weight; weights (V,) give (count,)."""
        return torch.multinomial(weights_NV.cpu(), count, replacement, generator=self.generators[row])


def filter_logits(logits_NV: torch.Tensor, temperature: float, top_p: float | None, top_k: int | None) -> torch.Tensor:
    """Logits after temperature, then top-p, then top-k; filtered logits become the lowest number of the dtype.

    >>> filter_logits(torch.tensor([[2.0, 1.0, 0.0]]), 0.0, None, 1).softmax(-1)
    tensor([[1., 0., 0.]])
    """
    lowest = torch.finfo(logits_NV.dtype).min
    if temperature > 0:
        logits_NV = logits_NV / temperature
    if top_p is not None and top_p < 1:
        ordered, order = logits_NV.sort(descending=True)
        beyond = ordered.softmax(-1).cumsum(-1) > top_p
        beyond[..., 1:] = beyond[..., :-1].clone()  # the token that crosses the threshold stays
        beyond[..., 0] = False
        logits_NV = logits_NV.masked_fill(torch.zeros_like(beyond).scatter_(-1, order, beyond), lowest)
    if top_k is not None:
        kept = logits_NV.topk(min(top_k, logits_NV.shape[-1])).values[..., -1:]
        logits_NV = logits_NV.masked_fill(logits_NV < kept, lowest)
    return logits_NV


def filter_top_k_first(
    logits_NV: torch.Tensor, temperature: float, top_p: float | None, top_k: int | None
) -> torch.Tensor:
    """Logits after temperature, then top-k, then top-p, as in SDAR and LLaDA2; top-p applies to what top-k keeps."""
    scale = temperature if temperature > 0 else 1.0
    kept_NV = filter_logits(logits_NV / scale, 0.0, None, top_k)
    return filter_logits(kept_NV, 0.0, top_p, None)


def add_noise(logits_NV: torch.Tensor, temperature: float, draws: Draws, row: int, skipped: int = 0) -> torch.Tensor:
    """Scores of one row whose largest ones are draws at a temperature, after the draws for skipped positions.

    As in LLaDA: exp(logits) / (−ln u)^T, in float64.
    """
    if not temperature > 0:
        return logits_NV
    draws.skip(row, skipped * logits_NV.shape[1], torch.float64)
    uniform_NV = draws.uniform(row, tuple(logits_NV.shape), torch.float64)
    return logits_NV.double().exp() / ((-uniform_NV.log()) ** temperature).to(logits_NV.device)


def most_confident(rank_N: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the `count` largest values; ties go to the earlier index."""
    # Probabilities that round to 1 are often equal. torch.topk, as in the published samplers, leaves their order open: it
    # depends on the length of the row, so a padded batch would differ from its rows.
    return rank_N.sort(descending=True, stable=True).indices[:count]


def transfers(masked: int, steps: int) -> list[int]:
    """Number of positions that each step commits: as even as possible, the larger numbers first."""
    return [masked // steps + (i < masked % steps) for i in range(steps)]


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
