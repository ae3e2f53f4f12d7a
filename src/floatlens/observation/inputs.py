"""The inputs of one attention call, as every implementation understands them, and the part of the model it belongs to."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch

# The parts of a model, each observed on its own. SELF is the attention of the sequence that is written to itself.
SELF, ENCODER, CROSS = "self", "encoder", "cross"


@dataclass(frozen=True)
class Inputs:
    """One call as every implementation understands it: query (B, H, Q, D), key and value (B, K, T, D).

    `mask` is None, boolean (True = may see) or additive and broadcasts to (B, H, Q, T); `causal` says that none was passed
    because the kernel applies the causal one itself; `sinks` (H,) are learned scores that are no position. Layers of
    another `kind` differ in what they may see.
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
