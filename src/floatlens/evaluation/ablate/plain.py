"""A batch as it runs without interventions, and again under them: every condition is compared on the same questions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from floatlens.data.metrics import normalise
from floatlens.data.prompt import Prompt
from floatlens.data.sample import Sample
from floatlens.decode.step import Step
from floatlens.evaluation.ablate.outcome import Measured
from floatlens.evaluation.ablate.replay import divergence, gold_surprise, replayed
from floatlens.evaluation.evaluate import Asking
from floatlens.interventions.intervention import Intervention
from floatlens.lens import Generation
from floatlens.observation.prompt_batch import PromptBatch

Pair = tuple[Sample, Prompt]


@dataclass
class Plain:
    """A batch as it runs without interventions: its answers, its trajectory, and the logits of its answers' tokens."""

    lens: Any
    pairs: Sequence[Pair]
    asking: Asking
    batch: PromptBatch
    answers: list[Generation]
    steps: list[Step]
    logits: dict[tuple[int, int], torch.Tensor]  # (row, new position): (V,)
    gold: list[list[int]]

    @classmethod
    def of(cls, lens: Any, pairs: Sequence[Pair], asking: Asking) -> Plain:
        settings = lens.settings(**asking.generation())
        batch = lens._batch([prompt for _, prompt in pairs])
        steps: list[Step] = []

        def watched() -> Iterator[Step]:
            for step in lens.steps(batch, settings):
                steps.append(step)
                yield step

        answers = lens.finish(batch, settings, watched())
        gold = [gold_ids(lens, sample, settings.max_new_tokens) for sample, _ in pairs]
        made = cls(lens, pairs, asking, batch, answers, steps, {}, gold)
        made.logits = made._answer_logits()
        return made

    def under(self, interventions: Sequence[Intervention]) -> list[Measured]:
        """The batch again under interventions; under none, as it is."""
        lens, settings = self.lens, self.lens.settings(**self.asking.generation())
        if not interventions:
            answers, kl = self.answers, [0.0 if self._counted(row) else math.nan for row in range(len(self.pairs))]
            surprise = self._surprise()
        else:
            with lens.intervene(*interventions):
                answers = lens.finish(self.batch, settings, lens.steps(self.batch, settings))
                kl = self._divergence()
                surprise = self._surprise()
        return [
            Measured(
                answer,
                float(normalise(answer.text) == normalise(self.answers[row].text)),
                None if math.isnan(kl[row]) else kl[row],
                surprise[row],
            )
            for row, answer in enumerate(answers)
        ]

    def _counted(self, row: int) -> list[int]:
        """New positions of the un-intervened answer, up to and with its end."""
        answer = self.answers[row]
        return list(range(len(answer.ids) + int(answer.ended)))

    def _answer_logits(self) -> dict[tuple[int, int], torch.Tensor]:
        """Logits of the answer's tokens, each at the step that committed it, under what is in force."""
        P, found = self.batch.ids_BP.shape[1], {}
        trajectory = [step.tokens_BT for step in self.steps]
        new = self.asking.max_new_tokens
        for step, logits_BNV in zip(self.steps, replayed(self.lens, self.batch, new, trajectory), strict=True):
            for row, place in step.committed_BT[:, P:].nonzero().tolist():
                if place < len(self.answers[row].ids) + int(self.answers[row].ended):
                    at = place if self.lens.family.kind == "mdm" else 0
                    found[row, place] = logits_BNV[row, at].float().clone()
        return found

    def _divergence(self) -> list[float]:
        changed = self._answer_logits()
        means = []
        for row in range(len(self.pairs)):
            places = [place for place in self._counted(row) if (row, place) in self.logits]
            if not places:
                means.append(math.nan)
                continue
            plain, other = (torch.stack([part[row, p] for p in places]) for part in (self.logits, changed))
            means.append(float(divergence(plain, other).mean()))
        return means

    def _surprise(self) -> list[float | None]:
        rows = [row for row, ids in enumerate(self.gold) if ids]
        if not rows:
            return [None] * len(self.pairs)
        gold = [ids or [self.lens.pad_id] for ids in self.gold]
        found = gold_surprise(self.lens, self.batch, self.asking.max_new_tokens, gold)
        return [found[row] if row in rows else None for row in range(len(self.pairs))]


def gold_ids(lens: Any, sample: Sample, most: int) -> list[int]:
    """Tokens of the first gold answer, as many as an answer may have."""
    if not sample.answers:
        return []
    return [int(i) for i in lens.tokenizer(sample.answers[0], add_special_tokens=False)["input_ids"]][:most]
