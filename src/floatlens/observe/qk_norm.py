"""QK geometry, the norms: the column mean of |q||k|."""

from __future__ import annotations

import torch

from floatlens.observe.call import Call
from floatlens.observe.columns import ColumnMean


class QKNorm(ColumnMean):
    """Mean over queries of |q||k_j|."""

    name = "qk_norm"

    def parts(self, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
        return call.q.norm(dim=-1, keepdim=True), call.k_BKTD.float().norm(dim=-1, keepdim=True)
