"""QK geometry, the whole: the column mean of the score q·k, before scaling."""

from __future__ import annotations

import torch

from floatlens.observe.call import Call
from floatlens.observe.columns import ColumnMean


class QK(ColumnMean):
    """Mean over queries of q·k_j, post-RoPE and unscaled."""

    name = "qk"

    def parts(self, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
        return call.q, call.k_BKTD.float()
