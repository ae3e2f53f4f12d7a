"""Run the questions with and without interventions, and measure what changes.

Batch by batch: the un-intervened answers come first, and every condition is compared with them on the same questions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pandas as pd
import torch

from floatlens.batch import Batch
from floatlens.decode.step import Step
from floatlens.errors import FloatLensError
from floatlens.interventions.intervention import Intervention
from floatlens.interventions.run import without
from floatlens.lens import Generation
from floatlens.runs.careful import FAILURES, reason
from floatlens.runs.folder import RunFolder
from floatlens.tasks.ablate.condition import PLAIN, SEEDS, Condition, conditions, standard
from floatlens.tasks.ablate.replay import divergence, gold_surprise, replayed
from floatlens.tasks.answering import Watch, ignore
from floatlens.tasks.evaluate import Asking, Row, asked
from floatlens.tasks.journal import Journal
from floatlens.tasks.metrics import normalise, score
from floatlens.tasks.prompt import Prompt
from floatlens.tasks.sample import Sample

MEASURES = (
    "em",
    "accuracy",
    "accuracy_words",
    "f1",
    "agreement",
    "confidence",
    "kl",
    "gold_nll",
    "ended",
    "well_formed",
)


@dataclass
class Outcome(Row):
    """One question under one condition.

    agreement    1 if the answer is the un-intervened one, after normalisation
    kl           mean over the tokens of the un-intervened answer of KL(un-intervened ‖ this), in nats, each at the step
                 that committed it, along the un-intervened trajectory
    gold_nll     mean negative log probability of the gold answer's tokens, revealed from left to right, in nats
    ended        1 if an end token was written
    well_formed  1 if it ended, says something, holds no special token, and repeats no word three times in a row
    """

    intervention: str = ""
    role: str = PLAIN
    group: str = ""
    dose: float | None = None
    of: str = ""
    control_seed: int | None = None
    agreement: float | None = None
    kl: float | None = None
    gold_nll: float | None = None
    ended: float | None = None
    well_formed: float | None = None


def ablate(
    lenses: Iterable[Any],
    samples: Sequence[Sample] | Mapping[str, Sequence[Sample]],
    interventions: Sequence[str | Intervention] | None = None,
    *,
    doses: Sequence[float] | None = None,
    seeds: Sequence[int] = SEEDS,
    asking: Asking | None = None,
    folder: RunFolder | None = None,
    watch: Watch | None = None,
) -> pd.DataFrame:
    """Answers of each lens to each question under each intervention, dose and control: what the finding `causes` reads.

    `samples` may be several data sets by name. Without interventions the standard ones are run, on which the claims
    rest. `lenses` may be an iterator that loads one after another; each is used once.
    """
    named = samples if isinstance(samples, Mapping) else {"data": samples}
    asking = asking or Asking()
    journal = Journal(folder, kind=Outcome)
    rows: list[Row] = []
    for lens in lenses:
        chosen = conditions(interventions or standard(lens.shape["layers"] or 1), doses, seeds)
        for data, questions in named.items():
            done = watch(f"{lens.name}, {data}", len(questions) * len(chosen)) if watch else ignore
            study = Study(lens, data, asking, chosen, journal, done)
            rows += study.run(questions)
    answers = table(rows)
    if folder is not None:
        folder.write_table("answers", answers)
    return answers


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """The rows as `answers.parquet` has them."""
    made = pd.DataFrame([asdict(row) for row in rows], columns=list(Outcome.__dataclass_fields__))
    for name in (*MEASURES, "dose", "recall", "answer_recall", "x"):
        made[name] = pd.to_numeric(made[name], errors="coerce").astype("float64")
    for name in ("steps", "control_seed"):
        made[name] = made[name].astype("Int64")
    made["error"] = made["error"].astype(object).where(made["error"].notna(), None)
    return made


@dataclass
class Study:
    """One lens on one data set."""

    lens: Any
    data: str
    asking: Asking
    conditions: Sequence[Condition]
    journal: Journal
    done: Callable[[], None] = ignore

    def run(self, samples: Sequence[Sample]) -> list[Row]:
        """Rows of all conditions and samples, in that order."""
        prompts: list[tuple[Sample, Prompt]] = []
        for sample in samples:
            blank, prompt = asked(self.lens, sample, self.asking, self._blank(sample, self.conditions[0]))
            if prompt is None:
                for condition in self.conditions:
                    if not self._has(condition, sample):
                        self._keep(replace(self._blank(sample, condition), error=blank.error))
            else:
                prompts.append((sample, prompt))
        prompts.sort(key=lambda pair: len(pair[1].ids), reverse=True)  # memory fails early, if at all
        for start in range(0, len(prompts), self.asking.batch_size):
            self._batch(prompts[start : start + self.asking.batch_size])
        ids = [sample.id for sample in samples]
        return [row for c in self.conditions for row in self.journal.rows((self.lens.name, self.data, c.name), ids)]

    def _batch(self, pairs: Sequence[tuple[Sample, Prompt]]) -> None:
        """All conditions on a batch; one that fails is halved until the question that fails is alone."""
        todo = [c for c in self.conditions if not all(self._has(c, sample) for sample, _ in pairs)]
        for condition in self.conditions:
            if condition not in todo:
                for _ in pairs:
                    self.done()
        if not todo:
            return
        try:
            with without(self.lens):
                plain = Plain.of(self.lens, pairs, self.asking)
        except FAILURES as error:
            self._failed(pairs, todo, error)
            return
        for condition in todo:
            self._condition(plain, condition)

    def _failed(self, pairs: Sequence[tuple[Sample, Prompt]], todo: Sequence[Condition], error: BaseException) -> None:
        if len(pairs) > 1:
            half = len(pairs) // 2
            self._batch(pairs[:half])
            self._batch(pairs[half:])
            return
        for condition in todo:
            self._keep(replace(self._blank(pairs[0][0], condition), error=reason(error)))

    def _condition(self, plain: Plain, condition: Condition) -> None:
        try:
            found = plain.under(condition.interventions)
        except (*FAILURES, FloatLensError) as error:
            if len(plain.pairs) == 1:
                self._keep(replace(self._blank(plain.pairs[0][0], condition), error=reason(error)))
                return
            half = len(plain.pairs) // 2
            for part in (plain.pairs[:half], plain.pairs[half:]):
                with without(self.lens):
                    smaller = Plain.of(self.lens, part, self.asking)
                self._condition(smaller, condition)
            return
        for (sample, prompt), measured in zip(plain.pairs, found, strict=True):
            if not self._has(condition, sample):
                row = self._blank(sample, condition)
                self._keep(filled(row, prompt, measured, special=self.lens.special_ids))

    def _has(self, condition: Condition, sample: Sample) -> bool:
        return sample.id in self.journal.found.get((self.lens.name, self.data, condition.name), {})

    def _keep(self, row: Outcome) -> None:
        self.journal.add(row)
        self.done()

    def _blank(self, sample: Sample, condition: Condition) -> Outcome:
        return Outcome(
            sample.id,
            sample.question,
            sample.answers,
            model=self.lens.name,
            data=self.data,
            condition=condition.name,
            diffusion=self.lens.family.diffusion,
            intervention="" if condition.role == PLAIN else condition.name,
            role=condition.role,
            group=condition.group,
            dose=condition.dose,
            of=condition.of,
            control_seed=condition.seed,
        )


@dataclass(frozen=True)
class Measured:
    """What one question came to under one condition."""

    answer: Generation
    agreement: float
    kl: float | None
    gold_nll: float | None


@dataclass
class Plain:
    """A batch as it runs without interventions: its answers, its trajectory, and the logits of its answers' tokens."""

    lens: Any
    pairs: Sequence[tuple[Sample, Prompt]]
    asking: Asking
    batch: Batch
    answers: list[Generation]
    steps: list[Step]
    logits: dict[tuple[int, int], torch.Tensor]  # (row, new position): (V,)
    gold: list[list[int]]

    @classmethod
    def of(cls, lens: Any, pairs: Sequence[tuple[Sample, Prompt]], asking: Asking) -> Plain:
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
                    at = place if self.lens.family.diffusion else 0
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


def filled(row: Outcome, prompt: Prompt, measured: Measured, special: Sequence[int]) -> Outcome:
    """A row with its scores."""
    answer = measured.answer
    text = answer.text.strip()
    em, accuracy, accuracy_words, f1 = score(text, row.gold)
    return replace(
        row,
        answer=text,
        em=em,
        accuracy=accuracy,
        accuracy_words=accuracy_words,
        f1=f1,
        confidence=float(answer.confidence),
        steps=int(answer.steps),
        new_tokens=len(answer.ids),
        passages=len(prompt.passages),
        dropped=prompt.dropped,
        gold_at=list(prompt.gold),
        prompt_tokens=len(prompt.ids),
        agreement=measured.agreement,
        kl=measured.kl,
        gold_nll=measured.gold_nll,
        ended=float(answer.ended),
        well_formed=float(well_formed(answer, special)),
    )


def well_formed(answer: Generation, special: Sequence[int] = ()) -> bool:
    """Whether an answer ended, says something, holds no special token, and repeats no word three times in a row.

    >>> well_formed(Generation("in Paris", [5, 6], 2, 0.9, True)), well_formed(Generation("no no no", [7] * 3, 3, 0.9, True))
    (True, False)
    """
    words = normalise(answer.text).split()
    stutters = any(words[i] == words[i + 1] == words[i + 2] for i in range(len(words) - 2))
    return answer.ended and bool(words) and not stutters and not set(answer.ids) & set(special)
