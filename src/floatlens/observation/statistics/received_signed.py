"""The signed column means of implicit attention: what a state-space layer adds and subtracts, without a convention."""

from __future__ import annotations

import torch

from floatlens.errors import FloatLensError
from floatlens.observation.call import Call
from floatlens.observation.registry import register_statistic
from floatlens.observation.statistic import Statistic


@register_statistic
class ReceivedSigned(Statistic):
    """Mean over queries of α_ij as it is: neither absolute nor normalised; mean over the channels of a head.

    Computed by a scan against the reading order, without a matrix. State-space layers only.
    """

    name = "received_signed"
    dims = ("head", "position")
    tiled = False

    def result(self, call: Call) -> torch.Tensor:
        if call.implicit is None:
            raise FloatLensError(
                "statistic 'received_signed' is about state-space layers, and this model has attention; record 'received'"
            )
        return call.implicit.signed_sums() / call.queries_B.view(-1, 1, 1)

    @staticmethod
    def exact(matrices: object, call: Call) -> torch.Tensor:
        assert call.implicit is not None
        return call.implicit.exact_signed_sums() / call.queries_B.view(-1, 1, 1)
