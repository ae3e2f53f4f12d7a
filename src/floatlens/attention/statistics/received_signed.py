"""The signed column means of implicit attention, before the convention that turns it into weights."""

from __future__ import annotations

import torch

from floatlens.attention.call import Call
from floatlens.attention.registry import register_statistic
from floatlens.attention.statistic import Statistic
from floatlens.errors import FloatLensError


@register_statistic
class ReceivedSigned(Statistic):
    """Mean over queries of the signed α_ij, not normalised; mean over the channels of a head.

    Computed by a reverse scan, without a matrix. State-space layers only.
    """

    name = "received_signed"
    dims = ("head", "position")
    tiled = False

    def result(self, call: Call) -> torch.Tensor:
        if call.implicit is None:
            raise FloatLensError(
                "statistic 'received_signed' is for state-space layers, but this model has attention; record 'received'"
            )
        return call.implicit.signed_sums() / call.queries_B.view(-1, 1, 1)

    @staticmethod
    def exact(matrices: object, call: Call) -> torch.Tensor:
        assert call.implicit is not None
        return call.implicit.exact_signed_sums() / call.queries_B.view(-1, 1, 1)
