"""The same tokens again, under an intervention: what the model would have said at each step of a given trajectory.

A trajectory is the sequences that went into each forward pass. Replaying the un-intervened one compares distributions at
matching steps; replaying the gold answer, revealed from left to right, gives its probability by the chain rule, for a
causal model as for a masked one. A causal model keeps its cache, so that a step is what it is in generation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from floatlens.decode.network import Network
from floatlens.interventions.run import Change, in_force
from floatlens.observation.attention import changing
from floatlens.observation.prompt_batch import PromptBatch


def replayed(
    lens: Any, batch: PromptBatch, new_tokens: int, trajectory: Sequence[torch.Tensor]
) -> Iterator[torch.Tensor]:
    """Logits (B, N, V) of the new positions at each step; a causal model's (B, 1, V) are of the next one alone."""
    network = Network(lens.model, lens.family.positions)
    change = Change(lens, in_force(lens), batch, new_tokens) if in_force(lens) else None
    cache: Any = None
    for step, tokens_BT in enumerate(trajectory):
        if change is not None:
            change.begin(step, tokens_BT)
        with changing(lens.model, change) if change is not None else nullcontext():
            real_BT = _real(batch, tokens_BT)
            if lens.family.kind == "mdm":
                shifted = int(lens.family.shifted)
                logits = network.logits(tokens_BT, real_BT, new_tokens + shifted)
                yield logits[:, :-1] if shifted else logits
            else:
                logits, cache = network.extend(tokens_BT if cache is None else tokens_BT[:, -1:], real_BT, cache)
                yield logits


def _real(batch: PromptBatch, tokens_BT: torch.Tensor) -> torch.Tensor | None:
    if batch.real_BP is None:
        return None
    more = batch.real_BP.new_ones((len(tokens_BT), tokens_BT.shape[1] - batch.real_BP.shape[1]))
    return torch.cat([batch.real_BP, more], 1)


def divergence(plain_NV: torch.Tensor, changed_NV: torch.Tensor) -> torch.Tensor:
    """KL(plain ‖ changed) of each row of logits, in nats.

    >>> divergence(torch.zeros(1, 2), torch.tensor([[0.0, 0.0]]))
    tensor([0.])
    """
    p, q = plain_NV.double().log_softmax(-1), changed_NV.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1).clamp_min(0.0).float()


def gold_trajectory(
    lens: Any, batch: PromptBatch, new_tokens: int, gold: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    """The sequences whose next token is each token of the gold answers: they stand there up to it, masked after it.

    A shorter answer than the longest goes on with its end; those steps are not counted.
    """
    device, P = batch.ids_BP.device, batch.ids_BP.shape[1]
    longest = max(len(ids) for ids in gold)
    filler = lens.end_ids[0] if lens.end_ids else lens.pad_id
    whole_BN = torch.tensor([[*ids, *[filler] * (longest - len(ids))] for ids in gold], device=device)
    steps = []
    for count in range(longest):
        if lens.family.kind == "mdm":
            x = torch.cat([batch.ids_BP, batch.ids_BP.new_full((len(gold), new_tokens), lens.mask_id)], 1)
            x[:, P : P + count] = whole_BN[:, :count]
        else:
            x = torch.cat([batch.ids_BP, whole_BN[:, :count]], 1)
        steps.append(x)
    return steps


def gold_surprise(lens: Any, batch: PromptBatch, new_tokens: int, gold: Sequence[Sequence[int]]) -> list[float]:
    """Mean negative log probability of each gold answer's tokens, in nats; its exponential is the perplexity."""
    totals = torch.zeros(len(gold), dtype=torch.double)
    for step, logits in enumerate(replayed(lens, batch, new_tokens, gold_trajectory(lens, batch, new_tokens, gold))):
        logp_BV = logits[:, step if lens.family.kind == "mdm" else 0].double().log_softmax(-1)
        for row, ids in enumerate(gold):
            if step < len(ids):
                totals[row] -= logp_BV[row, ids[step]].cpu()
    return [float(total) / len(ids) for total, ids in zip(totals, gold, strict=True)]
