"""Temperature, top-p and top-k applied to logits, in the order that each sampler uses."""

from __future__ import annotations

import torch


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
