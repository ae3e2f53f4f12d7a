"""QK geometry, the angle: the column mean of the cosine between query and key."""

from __future__ import annotations

import torch

from floatlens.observe.call import Call
from floatlens.observe.columns import ColumnMean


class QKCos(ColumnMean):
    """Mean over queries of cos(q, k_j); the cosine with a zero vector counts as 0."""

    name = "qk_cos"

    def parts(self, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
        return unit(call.q), unit(call.k_BKTD.float())


def unit(x: torch.Tensor) -> torch.Tensor:
    """Vectors of length 1; a zero vector stays zero.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return x / x.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
