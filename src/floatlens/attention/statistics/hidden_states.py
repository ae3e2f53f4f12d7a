"""Hidden states: massive activations, and the token that each layer predicts.

Few channels of few positions can be thousands of times as large as the rest (arXiv 2402.17762). The median is that of the
position's own state, so that the number depends neither on the batch nor on a cache. The logit lens reads the token of a
layer from its state through the model's final norm and output embeddings, at the rows that may write the answer; at the
last layer it is the model's own most likely token.
"""

from __future__ import annotations

import torch

from floatlens.attention.call import Call
from floatlens.attention.hidden import HiddenStatistic
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
    of_step = True

    def see(self, call: Call) -> None:
        start, end = call.writing_queries
        self.last, self.found[call.layer] = call, call.q_BHQD[:, 0, start:end].clone()

    def finish(self) -> dict[int, torch.Tensor]:
        found, layers = {}, super().finish()
        if layers:
            call, (start, end) = self.last, self.last.writing_queries
            token_LBT = torch.full((len(layers), call.B, call.length), torch.nan, device=call.device)
            rows = slice(call.first_query + start, call.first_query + end)
            writes_BQ = call.layout.writes_BN[:, rows].to(call.device)
            if writes_BQ.any():
                states = torch.stack([h_BQE.to(call.device)[writes_BQ] for h_BQE in layers.values()]).flatten(0, 1)
                parts = [call.memory["unembed"](part).argmax(-1) for part in states[None].split(ROWS, dim=1)]
                token_LBT[:, :, rows][:, writes_BQ] = torch.cat(parts, 1).view(len(layers), -1).float().to(call.device)
            found = dict(zip(layers, token_LBT, strict=True))
        return found
