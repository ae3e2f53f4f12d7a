"""A batch without interventions, and the same batch again under them.

A trajectory is the list of sequences that went into each forward pass. Replaying the trajectory of the run without
interventions compares distributions at matching steps. Replaying the gold answer, revealed from left to right, gives its
probability by the chain rule, for causal and masked models alike. Steps work as in generation: a causal model keeps its
cache, and a model that writes in blocks computes its current block with a cache of the finished ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from floatlens.attention.prompt_batch import PromptBatch
from floatlens.data.sample import normalise
from floatlens.decode.replay import left_to_right
from floatlens.decode.sampler import Sampler
from floatlens.decode.step import Step
from floatlens.errors import FloatLensError
from floatlens.evaluation.loop import Case
from floatlens.interventions.intervention import Intervention
from floatlens.interventions.run import Change, in_force
from floatlens.lens import Generation, Lens
from floatlens.options import Sampling


@dataclass
class Baseline:
    """A batch as it runs without interventions: its answers, its trajectory, and the logits of its answers' tokens."""

    lens: Lens
    cases: Sequence[Case]
    settings: Sampler
    batch: PromptBatch
    answers: list[Generation]
    steps: list[Step]
    logits: dict[tuple[int, int], torch.Tensor]  # (row, new position): (V,)
    gold: list[list[int]]

    @classmethod
    def run(cls, lens: Lens, cases: Sequence[Case], sampling: Sampling) -> Baseline:
        """Run the batch."""
        if not lens.has_mask and lens.family.kind == "mdm":
            raise FloatLensError(
                f"{lens.name} (family {lens.family.name}) has no masks, so a gold answer cannot be revealed step by step; "
                f"use lens.intervene(...) with lens.generate or lens.trace"
            )
        settings = lens.settings_of((), sampling)
        batch = lens._batch([case.prompt for case in cases if case.prompt is not None], settings)
        steps: list[Step] = []

        def keep_steps() -> Iterator[Step]:
            for step in lens.steps(batch, settings):
                steps.append(step)
                yield step

        answers = lens.finish(batch, settings, keep_steps())
        gold = [gold_ids(lens, case.record.gold, settings.max_new_tokens) for case in cases]
        made = cls(lens, cases, settings, batch, answers, steps, {}, gold)
        made.logits = made._answer_logits()
        return made

    def under(self, interventions: Sequence[Intervention]) -> list[tuple[Generation, dict[str, float | None]]]:
        """Run the batch again under interventions; without any, return the baseline itself.

        Returns each question's answer, and its agreement, kl and gold_nll (see `AblationRecord`).
        """
        lens, settings = self.lens, self.settings
        if not interventions:
            answers, kl = self.answers, [0.0 if self._counted(row) else math.nan for row in range(len(self.cases))]
            surprise = self._surprise()
        else:
            with lens.intervene(*interventions):
                answers = lens.finish(self.batch, settings, lens.steps(self.batch, settings))
                kl = self._divergence()
                surprise = self._surprise()
        found = []
        for row, answer in enumerate(answers):
            agreement = float(normalise(answer.text) == normalise(self.answers[row].text))
            divergence = None if math.isnan(kl[row]) else kl[row]
            found.append((answer, {"agreement": agreement, "kl": divergence, "gold_nll": surprise[row]}))
        return found

    def _counted(self, row: int) -> list[int]:
        """Return the new positions of the answer, up to and including its end token."""
        answer = self.answers[row]
        return list(range(len(answer.ids) + int(answer.ended)))

    def _answer_logits(self) -> dict[tuple[int, int], torch.Tensor]:
        """Return the logits of the answer's tokens, each at the step that committed it, under the current interventions."""
        ends, found = self.batch.ends, {}
        trajectory = [step.tokens_BT for step in self.steps]
        replayed = replay(self.lens, self.batch, self.settings, trajectory)
        for step, (first, logits_BNV) in zip(self.steps, replayed, strict=True):
            for row, column in step.committed_BT.nonzero().tolist():
                position = column - ends[row]
                if position < len(self.answers[row].ids) + int(self.answers[row].ended):
                    found[row, position] = logits_BNV[row, column - first].float().clone()
        return found

    def _divergence(self) -> list[float]:
        changed = self._answer_logits()
        means = []
        for row in range(len(self.cases)):
            positions = [position for position in self._counted(row) if (row, position) in self.logits]
            if not positions:
                means.append(math.nan)
                continue
            plain, other = (torch.stack([part[row, p] for p in positions]) for part in (self.logits, changed))
            means.append(float(divergence(plain, other).mean()))
        return means

    def _surprise(self) -> list[float | None]:
        rows = [row for row, ids in enumerate(self.gold) if ids]
        if not rows:
            return [None] * len(self.cases)
        gold = [ids or [self.lens.pad_id] for ids in self.gold]
        found = gold_surprise(self.lens, self.batch, self.settings, gold)
        return [found[row] if row in rows else None for row in range(len(self.cases))]


def gold_ids(lens: Lens, answers: Sequence[str], most: int) -> list[int]:
    """Return the tokens of the first gold answer, at most `most`."""
    if not answers or lens.tokenizer is None:
        return []
    return [int(i) for i in lens.tokenizer(answers[0], add_special_tokens=False)["input_ids"]][:most]


def replay(
    lens: Lens, batch: PromptBatch, settings: Sampler, trajectory: Sequence[torch.Tensor]
) -> Iterator[tuple[int, torch.Tensor]]:
    """Run each sequence under the current interventions; yield the logits (B, N, V) and the column of their first token."""
    passes, new_tokens = lens.passes(batch, settings), lens._new_positions(batch, settings)
    change = Change(lens, in_force(lens), batch, new_tokens) if in_force(lens) else None
    for step, tokens_BT in enumerate(trajectory):
        with change.acting(step, tokens_BT) if change is not None else nullcontext():
            logits = passes(tokens_BT)
        yield logits


def divergence(plain_NV: torch.Tensor, changed_NV: torch.Tensor) -> torch.Tensor:
    """Return KL(plain ‖ changed) of each row of logits, in nats.

    >>> divergence(torch.zeros(1, 2), torch.tensor([[0.0, 0.0]]))
    tensor([0.])
    """
    p, q = plain_NV.double().log_softmax(-1), changed_NV.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1).clamp_min(0.0).float()


def gold_trajectory(
    lens: Lens, batch: PromptBatch, settings: Sampler, gold: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    """Return the sequences whose next token is each token of the gold answers: revealed up to it, masked after it.

    An answer shorter than the longest continues with its end token; those steps are not counted.
    """
    longest = max(len(ids) for ids in gold)
    filler = lens.end_ids[0] if lens.end_ids else lens.pad_id
    whole_BN = torch.tensor([[*ids, *[filler] * (longest - len(ids))] for ids in gold], device=batch.ids_BP.device)
    return left_to_right(lens.passes(batch, settings), whole_BN)


def gold_surprise(lens: Lens, batch: PromptBatch, settings: Sampler, gold: Sequence[Sequence[int]]) -> list[float]:
    """Return the mean negative log probability of each gold answer's tokens, in nats; its exponential is the perplexity."""
    totals, P = torch.zeros(len(gold), dtype=torch.double), batch.ids_BP.shape[1]
    replayed = replay(lens, batch, settings, gold_trajectory(lens, batch, settings, gold))
    for count, (first, logits_BNV) in enumerate(replayed):
        logp_BV = logits_BNV[:, P + count - first].double().log_softmax(-1)
        for row, ids in enumerate(gold):
            if count < len(ids):
                totals[row] -= logp_BV[row, ids[count]].cpu()
    return [float(total) / len(ids) for total, ids in zip(totals, gold, strict=True)]
