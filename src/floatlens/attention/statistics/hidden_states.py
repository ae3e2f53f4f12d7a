"""Hidden states: massive activations, and the token that each layer predicts.

Few channels of few positions can be thousands of times as large as the rest (arXiv 2402.17762). The median is that of the
position's own state, so that the number depends neither on the batch nor on a cache. The logit lens reads the token of a
layer from its state through the model's final norm and output embeddings, at the rows that may write the answer; at the
last layer it is the model's own most likely token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from floatlens.attention.hidden import Hidden, HiddenStatistic
from floatlens.attention.statistic import register_statistic

ROWS = 128  # rows whose logits are held at once


@register_statistic
class HiddenNorm(HiddenStatistic):
    """Norm of the state after the layer."""

    name = "hidden_norm"

    def of(self, hidden: Hidden) -> torch.Tensor:
        return self.kept(hidden, hidden.h.norm(dim=-1))


@register_statistic
class MassiveRatio(HiddenStatistic):
    """Largest absolute activation of the state over the median of its absolute activations."""

    name = "massive_ratio"

    def of(self, hidden: Hidden) -> torch.Tensor:
        size = hidden.h.abs()
        return self.kept(hidden, size.amax(-1) / size.median(-1).values)


@register_statistic
class MassiveChannel(HiddenStatistic):
    """Number of the channel with the largest absolute activation."""

    name = "massive_channel"
    whole = True

    def of(self, hidden: Hidden) -> torch.Tensor:
        return self.kept(hidden, hidden.h.abs().argmax(-1).float())


@register_statistic
class LensToken(HiddenStatistic):
    """Id of the most likely token, at the row that would write it; NaN at rows that write nothing at this step.

    All layers of a step go through the output embeddings together: these are by far the largest matrix of a small model,
    and reading it once per layer took two thirds of the time of a trace of SmolLM2.
    """

    name = "lens_token"
    whole = True
    together = True

    def of(self, hidden: Hidden) -> torch.Tensor:
        return self.of_layers([hidden.only_writing()])[0]

    def of_layers(self, layers: Sequence[Hidden]) -> list[torch.Tensor]:
        last = layers[-1]
        device, span, (B, Q, E) = last.h_BQE.device, last.writing, last.h_BQE.shape
        found = torch.full((len(layers), B, last.length), torch.nan, device=device)
        writes_BQ = last.layout.writes_BN[:, span.start : span.start + Q].to(device)
        if writes_BQ.any():
            states = torch.stack([hidden.h_BQE.to(device) for hidden in layers])[:, writes_BQ].reshape(1, -1, E)
            tokens = torch.cat([last.unembed(rows).argmax(-1) for rows in states.split(ROWS, dim=1)], dim=1)
            found[:, :, span.start : span.start + Q][:, writes_BQ] = tokens.view(len(layers), -1).float().to(device)
        return list(found)
