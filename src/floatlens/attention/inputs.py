"""The inputs of one attention call in the form that all implementations share, and the names of the parts of a model."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch

# The parts of a model, each observed separately. SELF is the self-attention of the sequence that is being written.
SELF, ENCODER, CROSS = "self", "encoder", "cross"


@dataclass(frozen=True)
class Inputs:
    """The inputs of one attention call: query (B, H, Q, D), key and value (B, K, T, D).

    `mask` is None, boolean (True = may see) or additive and broadcasts to (B, H, Q, T); `causal` means that none was passed
    because the kernel applies the causal one itself; `sinks` (H,) are learned scores without a position. Layers of
    different `kind` may have different masks.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scaling: float | None
    mask: torch.Tensor | None
    causal: bool
    softcap: float | None = None
    bias: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    kind: Hashable = None

    def shown(self) -> dict[str, Any]:
        """The arguments of `Session.see`."""
        return dict(vars(self))
