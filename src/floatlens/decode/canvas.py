"""The canvas sampler: the prompt is read once by the unchanged model, then a canvas of masks is denoised with the adapter.

The canvas is the last prompt token and the masks after it. Each of its rows sees the whole prompt and the whole canvas;
row j - 1 writes position j.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from floatlens.data.script import Script
from floatlens.decode.draws import Draws
from floatlens.decode.most_certain import MostCertainSettings, denoise
from floatlens.decode.network import ForwardPass, Network
from floatlens.decode.registry import register_sampler
from floatlens.decode.replay import ReplaySettings, reveal
from floatlens.decode.special_tokens import SpecialTokens
from floatlens.decode.step import Step


@dataclass(frozen=True)
class CanvasSettings(MostCertainSettings):
    """Settings of the canvas sampler."""


class CanvasPasses:
    """The passes of a canvas: the first also reads the prompt; each returns the logits that write the new positions."""

    def __init__(self, network: Network, ids_BP: torch.Tensor, real_BP: torch.Tensor | None, new_tokens: int) -> None:
        from transformers import DynamicCache

        B, P = ids_BP.shape
        self.network, self.first, self.cache = network, P - 1, DynamicCache()
        self.active: range | None = range(P - 1, P + new_tokens)
        self.real_BT = torch.ones((B, P + new_tokens), dtype=torch.bool, device=ids_BP.device)
        if real_BP is not None:
            self.real_BT[:, :P] = real_BP
        self.positions_BT = (self.real_BT.long().cumsum(-1) - 1).clamp_min(0)
        self.visible_BQT = self.real_BT[:, None].expand(-1, new_tokens + 1, -1)

    def __call__(self, x_BT: torch.Tensor) -> torch.Tensor:
        """Logits (B, N, V) of the new positions."""
        assert self.active is not None
        if self.first and not self.cache.get_seq_length():
            prompt = slice(0, self.first)
            with self.network.without_adapter():
                forward = ForwardPass(x_BT[:, prompt], 0, range(0), range(self.first))
                visible_BQQ, rows_BQ = causal(self.real_BT[:, prompt]), self.positions_BT[:, prompt]
                self.network.run(forward, visible_BQQ, keep=1, position_ids_BQ=rows_BQ, cache=self.cache)
        return self.network.run(
            ForwardPass(x_BT, self.first, self.active, range(0)),
            self.visible_BQT,
            keep=len(self.active),
            position_ids_BQ=self.positions_BT[:, self.first :],
            cache=self.cache,
            store=False,
        )[:, :-1]


def replay(
    network: Network,
    ids_BP: torch.Tensor,
    real_BP: torch.Tensor | None,
    scripts: Sequence[Script],
    settings: ReplaySettings,
    special: SpecialTokens,
) -> Iterator[Step]:
    """Reveal given texts after the prompts."""
    return reveal(CanvasPasses(network, ids_BP, real_BP, settings.max_new_tokens), ids_BP, scripts, special.mask)


@register_sampler("canvas", CanvasSettings, replay=replay)
def sample(
    network: Network,
    ids_BP: torch.Tensor,
    real_BP: torch.Tensor | None,
    settings: CanvasSettings,
    *,
    special: SpecialTokens,
    draws: Draws | None = None,
    tail_BN: torch.Tensor | None = None,
) -> Iterator[Step]:
    """Denoise `max_new_tokens` masks after each prompt, or those of a tail, one Step per pass over the canvas."""
    passes = CanvasPasses(network, ids_BP, real_BP, settings.max_new_tokens)
    return denoise(passes, ids_BP, settings, special, draws, tail_BN)


def causal(real_BQ: torch.Tensor) -> torch.Tensor:
    """True where a prompt row may see a key: itself, and the real tokens before it (B, Q, Q).

    >>> causal(torch.tensor([[False, True, True]])).int().tolist()
    [[[1, 0, 0], [0, 1, 0], [0, 1, 1]]]
    """
    Q = real_BQ.shape[1]
    before_QQ = torch.ones(Q, Q, dtype=torch.bool, device=real_BQ.device).tril()
    itself_QQ = torch.eye(Q, dtype=torch.bool, device=real_BQ.device)  # padding sees itself, so that no row is empty
    return (before_QQ & real_BQ[:, None]) | itself_QQ
