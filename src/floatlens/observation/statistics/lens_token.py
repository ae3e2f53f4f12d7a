"""Logit lens: the token that a layer predicts, from its state through the model's final norm and output embeddings.

Recorded for the rows that may write the answer. At the last layer it is the model's own most likely token.
"""

from __future__ import annotations

import torch

from floatlens.observation.hidden import Hidden, HiddenStatistic
from floatlens.observation.registry import register_statistic

ROWS = 64  # rows whose logits are held at once


@register_statistic
class LensToken(HiddenStatistic):
    """Id of the most likely token, at the row that would write it; NaN at rows that write nothing at this step."""

    name = "lens_token"
    dims = ("position",)
    whole = True

    def of(self, hidden: Hidden) -> torch.Tensor:
        found = torch.full((hidden.h_BQE.shape[0], hidden.length), torch.nan, device=hidden.h_BQE.device)
        first, end = hidden.layout.writing_span
        first, end = max(first, hidden.active.start), min(end, hidden.active.stop)
        for start in range(first, end, ROWS):
            stop = min(end, start + ROWS)
            logits = hidden.unembed(hidden.h_BQE[:, start - hidden.first : stop - hidden.first])
            found[:, start:stop] = logits.argmax(-1).float().to(found.device)
        writes = hidden.layout.writes_BN[:, : hidden.length]
        return found.masked_fill(~writes, torch.nan)
