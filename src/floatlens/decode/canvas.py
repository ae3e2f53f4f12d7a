"""The canvas sampler: the prompt is read once by the unchanged model, then a canvas of masks is denoised with the adapter.

The canvas is the last prompt token and the masks after it. Each of its rows sees the whole prompt and the whole canvas;
row j - 1 writes position j. At each step the positions of which the model is most certain are committed, as in Dream's
sampler.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from floatlens.data.script import Script
from floatlens.decode.draws import Draws
from floatlens.decode.dream import propose
from floatlens.decode.llada import transfers
from floatlens.decode.most_confident import most_confident
from floatlens.decode.network import ForwardPass, Network
from floatlens.decode.registry import register_sampler
from floatlens.decode.replay import ReplaySettings, reveal
from floatlens.decode.settings import Settings, check_nucleus, check_one_of, check_whole
from floatlens.decode.special_tokens import SpecialTokens
from floatlens.decode.step import Step

MEASURES = ("entropy", "maskgit_plus", "topk_margin")


@dataclass(frozen=True)
class CanvasSettings(Settings):
    """Settings of the canvas sampler; `steps` defaults to `max_new_tokens`. `alg` is the measure of certainty."""

    steps: int | None = None
    alg: str = "entropy"
    top_p: float | None = None
    top_k: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "steps", self.max_new_tokens if self.steps is None else self.steps)
        check_whole(self.steps, "steps")
        check_one_of(self.alg, "alg", MEASURES)
        check_nucleus(self.top_p, self.top_k)

    @property
    def step_count(self) -> int:
        return self.steps or self.max_new_tokens


class CanvasPasses:
    """The passes of a canvas: the first reads the prompt as well; each returns the logits that write the new positions."""

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
    B, P = ids_BP.shape
    N = settings.max_new_tokens
    draws = draws or Draws([settings.seed] * B)
    x_BT = torch.cat([ids_BP, ids_BP.new_full((B, N), special.mask) if tail_BN is None else tail_BN], 1)
    hidden_BN = x_BT[:, P:] == special.mask  # kept apart: a model may write the mask token itself
    counts = [transfers(int(n), settings.step_count) for n in hidden_BN.sum(1)]

    passes = CanvasPasses(network, ids_BP, real_BP, N)
    for index in range(settings.step_count):
        logits_BNV = passes(x_BT)
        after_BT = x_BT.clone()
        committed_BT = torch.zeros_like(x_BT, dtype=torch.bool)
        confidence_BT = torch.full(x_BT.shape, torch.nan, dtype=torch.float32, device=x_BT.device)
        for row in range(B):
            masked_M = P + hidden_BN[row].nonzero()[:, 0]
            if not len(masked_M):
                continue
            rank_M, token_M, confidence_BT[row, masked_M] = propose(
                logits_BNV[row, masked_M - P].float(), settings, draws, row
            )
            order = most_confident(rank_M, counts[row][index])
            after_BT[row, masked_M[order]] = token_M[order]
            committed_BT[row, masked_M[order]] = True
        hidden_BN &= ~committed_BT[:, P:]
        yield Step(index, x_BT, after_BT, committed_BT, confidence_BT, passes.active)
        x_BT = after_BT


def causal(real_BQ: torch.Tensor) -> torch.Tensor:
    """True where a prompt row may see a key: itself, and the real tokens before it (B, Q, Q).

    >>> causal(torch.tensor([[False, True, True]])).int().tolist()
    [[[1, 0, 0], [0, 1, 0], [0, 1, 1]]]
    """
    Q = real_BQ.shape[1]
    before_QQ = torch.ones(Q, Q, dtype=torch.bool, device=real_BQ.device).tril()
    itself_QQ = torch.eye(Q, dtype=torch.bool, device=real_BQ.device)  # padding sees itself, so that no row is empty
    return (before_QQ & real_BQ[:, None]) | itself_QQ
