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
from floatlens.attention.statistic import register_statistic, variant

ROWS = 128  # rows whose logits are held at once


def massive_ratio(h_BQE: torch.Tensor) -> torch.Tensor:
    """Largest absolute activation of a state over the median of its absolute activations."""
    size = h_BQE.abs()
    return size.amax(-1) / size.median(-1).values


variant(HiddenStatistic, "hidden_norm", of_state=lambda h_BQE: h_BQE.norm(dim=-1))
variant(HiddenStatistic, "massive_ratio", of_state=massive_ratio)
variant(HiddenStatistic, "massive_channel", whole=True, of_state=lambda h_BQE: h_BQE.abs().argmax(-1).float())


@register_statistic
class LensToken(HiddenStatistic):
    """Id of the most likely token, at the row that would write it; NaN at rows that write nothing at this step.

    All layers of a step go through the output embeddings together: these are by far the largest matrix of a small model,
    and reading it once per layer took two thirds of the time of a trace of SmolLM2.
    """

    name = "lens_token"
    whole = True
    together = True

    def of_layers(self, layers: Sequence[Hidden]) -> list[torch.Tensor]:
        last = layers[-1]
        device, span, (B, Q, E) = last.h_BQE.device, last.writing, last.h_BQE.shape
        token_LBT = torch.full((len(layers), B, last.length), torch.nan, device=device)
        writes_BQ = last.layout.writes_BN[:, span.start : span.start + Q].to(device)
        if writes_BQ.any():
            states = torch.stack([hidden.h_BQE.to(device) for hidden in layers])[:, writes_BQ].reshape(1, -1, E)
            tokens = torch.cat([last.unembed(rows).argmax(-1) for rows in states.split(ROWS, dim=1)], dim=1)
            token_LBT[:, :, span.start : span.start + Q][:, writes_BQ] = tokens.view(len(layers), -1).float().to(device)
        return list(token_LBT)
