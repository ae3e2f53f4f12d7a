"""Ablations: the same questions with and without interventions, each with its matched random control.

A worker answers a batch without interventions first, and keeps that for the next conditions on the same questions. A
trajectory is the list of sequences that went into each forward pass. Replaying the trajectory of the run without
interventions compares distributions at matching steps. Replaying the gold answer, revealed from left to right, gives its
probability by the chain rule, for causal and masked models alike.

Each answer has, besides its scores:

agreement    1 if the answer is the one without interventions, after normalisation
kl           mean KL(without interventions ‖ this) over the tokens of the answer without interventions, in nats, each at
             the step that committed it, along the trajectory without interventions
gold_nll     mean negative log probability of the gold answer's tokens, revealed from left to right, in nats
ended        1 if an end token was written
well_formed  1 if the answer ended, is not empty, has no special token, and repeats no word three times in a row
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from floatlens import stats
from floatlens.attention.prompt_batch import PromptBatch
from floatlens.data.prompt import Prompt
from floatlens.data.sample import Sample, normalise
from floatlens.decode.replay import left_to_right
from floatlens.decode.sampler import Sampler
from floatlens.errors import FloatLensError
from floatlens.evaluation.answers import MEASURES, AnswerRecord
from floatlens.evaluation.conditions import CHANGED, CONTROL, PLAIN, SEEDS, Condition, conditions, standard
from floatlens.evaluation.loop import Case, Checksums, Experiment, ModelWorker, answer_all
from floatlens.evaluation.sources import Key
from floatlens.evaluation.summary import difference, values_and_intervals
from floatlens.interventions.intervention import Intervention
from floatlens.interventions.run import holding, in_force, prepare
from floatlens.lens import Generation, Lens
from floatlens.options import Data, Run, Sampling
from floatlens.store.engine import Engine, ProgressCallback
from floatlens.store.folder import RunFolder


def well_formed(answer: Generation, special: Sequence[int] = ()) -> bool:
    """Return whether an answer ended, is not empty, has no special token, and repeats no word three times in a row."""
    words = normalise(answer.text).split()
    stutters = any(words[i] == words[i + 1] == words[i + 2] for i in range(len(words) - 2))
    return answer.ended and bool(words) and not stutters and not set(answer.ids) & set(special)


@dataclass(frozen=True)
class Ablation(Experiment):
    """Questions for one model under several conditions."""

    conditions: tuple[Condition, ...] = ()

    @property
    def count(self) -> int | None:
        return None if (questions := super().count) is None else questions * len(self.conditions)

    @property
    def key(self) -> Key:
        return self.model, self.data

    def records(self, lens: Lens, sample: Sample, prompt: Prompt | None, error: str | None) -> list[AnswerRecord]:
        found = []
        for each in self.conditions:
            names: dict[str, Any] = {"model": self.model, "data": self.data, "condition": each.name}
            names |= {"kind": lens.family.kind, "intervention": each.intervention, "of": each.of}
            numbers = {"role": each.role, "group": each.group, "dose": each.dose, "control_seed": each.seed}
            numbers |= dict.fromkeys(("agreement", "kl", "gold_nll", "ended", "well_formed"))
            found.append(AnswerRecord.before(sample, prompt, error, **names, numbers=numbers))
        return found

    def divide(self, cases: list[Case]) -> list[list[Case]]:
        """Divide a batch by its conditions: the result of one does not depend on the others."""
        return [[case for case in cases if case.record.condition == condition.name] for condition in self.conditions]

    def decode(self, worker: ModelWorker, cases: list[Case]) -> list[tuple[Generation, dict[str, Any]]]:
        about = (self.key, [(case.record.id, case.prompt and case.prompt.ids) for case in cases], self.sampling)
        if worker.notes.get("baseline of") != about:
            worker.notes.clear()
            worker.notes |= {"baseline": Baseline(worker.lens(self.model), cases, self.sampling), "baseline of": about}
        baseline: Baseline = worker.notes["baseline"]
        try:
            return baseline.under(cases[0].record.intervention)
        except FloatLensError as error:  # the intervention fails on one of these questions, which are then run alone
            raise RuntimeError(str(error)) from error

    def finish(self, lens: Lens, record: Any, made: Any, folder: RunFolder | None) -> tuple[AnswerRecord, Checksums]:
        answer, measures = made
        form = {"ended": float(answer.ended), "well_formed": float(well_formed(answer, lens.special_ids))}
        return replace(record.with_answer(answer), numbers=record.numbers | measures | form), {}


class Baseline:
    """A batch as it runs without interventions: its answers, its trajectory, and the logits of its answers' tokens."""

    def __init__(self, lens: Lens, cases: Sequence[Case], sampling: Sampling) -> None:
        if not lens.has_mask and lens.family.kind == "mdm":
            raise FloatLensError(
                f"{lens.name} (family {lens.family.name}) has no masks, so a gold answer cannot be revealed step by step; "
                f"use lens.intervene(...) with lens.generate or lens.trace"
            )
        self.lens, self.settings = lens, lens.settings_of((), sampling)
        self.batch = lens._batch([case.prompt for case in cases if case.prompt is not None], self.settings)
        tokenizer, most = lens.tokenizer, self.settings.max_new_tokens
        assert tokenizer is not None  # it made the prompts
        golds = [case.record.gold[0] if case.record.gold else "" for case in cases]
        self.gold = [tokenizer(gold, add_special_tokens=False)["input_ids"][:most] for gold in golds]
        with holding(lens):
            self.steps = list(lens.steps(self.batch, self.settings))
            self.answers = lens.finish(self.batch, self.settings, self.steps)
            self.logits = self._answer_logits()

    def under(self, intervention: str) -> list[tuple[Generation, dict[str, Any]]]:
        """Run the batch again under an intervention; without one, return the baseline itself.

        Returns each question's answer, and its agreement, kl and gold_nll.
        """
        lens, answers, logits = self.lens, self.answers, self.logits
        with lens.intervene(intervention) if intervention else nullcontext():
            if intervention:
                answers = lens.finish(self.batch, self.settings, lens.steps(self.batch, self.settings))
                logits = self._answer_logits()
            surprise = gold_surprise(lens, self.batch, self.settings, self.gold)
        found = []
        for row, answer in enumerate(answers):
            positions = sorted(position for at, position in self.logits if at == row)
            plain, other = ([part[row, position] for position in positions] for part in (self.logits, logits))
            kl = float(divergence(torch.stack(plain), torch.stack(other)).mean()) if positions else None
            agreement = float(normalise(answer.text) == normalise(self.answers[row].text))
            found.append((answer, {"agreement": agreement, "kl": kl, "gold_nll": surprise[row]}))
        return found

    def _answer_logits(self) -> dict[tuple[int, int], torch.Tensor]:
        """Return the logits (V) of the answer's tokens and its end token by row and new position, under the current
        interventions, each at the step that committed it."""
        found = {}
        replayed = replay(self.lens, self.batch, self.settings, [step.tokens_BT for step in self.steps])
        for step, (first, logits_BNV) in zip(self.steps, replayed, strict=True):
            for row, column in step.committed_BT.nonzero().tolist():
                position = column - self.batch.ends[row]
                if position < len(self.answers[row].ids) + int(self.answers[row].ended):
                    found[row, position] = logits_BNV[row, column - first].float().clone()
        return found


def replay(
    lens: Lens, batch: PromptBatch, settings: Sampler, trajectory: Sequence[torch.Tensor]
) -> Iterator[tuple[int, torch.Tensor]]:
    """Run each sequence under the current interventions; yield the logits (B, N, V) and the column of their first token."""
    passes = lens.passes(batch, settings)
    acting = prepare(lens, in_force(lens), batch, lens._new_positions(batch, settings))
    for step, tokens_BT in enumerate(trajectory):
        with acting(step, tokens_BT):
            logits = passes(tokens_BT)
        yield logits


def divergence(plain_NV: torch.Tensor, changed_NV: torch.Tensor) -> torch.Tensor:
    """Return KL(plain ‖ changed) of each row of logits, in nats.

    >>> divergence(torch.zeros(1, 2), torch.tensor([[0.0, 0.0]]))
    tensor([0.])
    """
    p, q = plain_NV.double().log_softmax(-1), changed_NV.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1).clamp_min(0.0).float()


def gold_surprise(
    lens: Lens, batch: PromptBatch, settings: Sampler, gold: Sequence[Sequence[int]]
) -> list[float | None]:
    """Return the mean negative log probability of each gold answer's tokens, in nats; None without an answer.

    The next token of each replayed sequence is one of the answer: revealed up to it, masked after it. An answer shorter than
    the longest continues with its end token; those steps are not counted.
    """
    totals, P = torch.zeros(len(gold), dtype=torch.double), batch.ids_BP.shape[1]
    longest = max(len(ids) for ids in gold)
    filler = lens.end_ids[0] if lens.end_ids else lens.pad_id
    whole_BN = torch.tensor([[*ids, *[filler] * (longest - len(ids))] for ids in gold], device=batch.ids_BP.device)
    trajectory = left_to_right(lens.passes(batch, settings), whole_BN) if longest else []
    for count, (first, logits_BNV) in enumerate(replay(lens, batch, settings, trajectory)):
        logp_BV = logits_BNV[:, P + count - first].double().log_softmax(-1)
        for row, ids in enumerate(gold):
            if count < len(ids):
                totals[row] -= logp_BV[row, ids[count]].cpu()
    return [float(total) / len(ids) if ids else None for total, ids in zip(totals, gold, strict=True)]


def ablate(
    models: Iterable[str | Lens],
    samples: Sequence[Sample] | Mapping[str, Sequence[Sample]],
    interventions: Sequence[str | Intervention] | None = None,
    *,
    doses: Sequence[float] | None = None,
    seeds: Sequence[int] = SEEDS,
    sampling: Sampling = Sampling(),
    reading: Data = Data(),
    run: Run = Run(),
    folder: RunFolder | None = None,
    watch: ProgressCallback | None = None,
    engine: Engine | None = None,
    worker: ModelWorker | None = None,
) -> pd.DataFrame:
    """Answer each question with each model under each intervention, dose and control; the finding `causes` reads the table.

    Parameters
    ----------
    models: names, or lenses.
    samples: questions, or several data sets by name.
    interventions: by default those that the claims need.
    doses, seeds: values of {n} in the interventions; seeds of the controls.
    sampling, reading, run: how questions are decoded and worded, and how many together.
    engine, worker: by default this process. Other processes need names, since a lens stays in its process.
    """
    named = samples if isinstance(samples, Mapping) else {"data": samples}
    given = list(models)
    lenses = {model.name: model for model in given if not isinstance(model, str)}
    if lenses and engine is not None:
        raise FloatLensError(
            f"pass the name of the model ({next(iter(lenses))}) instead of a lens to use several workers"
        )
    worker = ModelWorker(lenses.__getitem__) if lenses else worker or ModelWorker()

    def experiments() -> Iterator[Ablation]:
        for name in (model if isinstance(model, str) else model.name for model in given):
            lens = worker.planning_lens(name, engine is None)
            chosen = conditions(interventions or standard(lens.shape["layers"] or 1), doses, seeds)
            size = 1 if lens.rows_wait else run.batch_size  # conditions are compared step by step
            for data, questions in named.items():
                yield Ablation(name, data, "", questions, sampling, reading, size, conditions=tuple(chosen))

    return answer_all(experiments(), worker, folder, engine=engine, watch=watch)[0]


# --- effects ----------------------------------------------------------------------------------------------------------


def wide(part: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return one row per question, with a column for no intervention and for each (name, intervention), (name, control).

    A control is the mean over its seeds, so that every question counts once.
    """
    plain = part[part["role"] == PLAIN].set_index("id")[measure].rename(("", PLAIN))
    rest = part[part["role"] != PLAIN].pivot_table(index="id", columns=["of", "role"], values=measure, aggfunc="mean")
    return pd.concat([plain, rest.reindex(plain.index)], axis=1)


def effects(answers: pd.DataFrame) -> list[dict[str, Any]]:
    """Return one entry per model, data set and intervention: means with intervals, and paired differences with p-values.

    `change` is the intervention minus no intervention, `beyond` the intervention minus its matched control.
    """
    found = []
    for (model, data), part in answers.groupby(["model", "data"], sort=False):
        tables = {measure: wide(part, measure) for measure in MEASURES}
        about = part.drop_duplicates("condition").set_index("condition")
        names = [name for name, role in zip(about.index, about["role"], strict=True) if role != CONTROL]
        for name in names:
            one = about.loc[name]
            column = ("", PLAIN) if one["role"] == PLAIN else (name, CHANGED)
            entry: dict[str, Any] = {
                "model": model,
                "data": data,
                "condition": name,
                "intervention": one["intervention"],
                "group": one["group"],
                "dose": stats.finite_or_none(float(one["dose"])) if pd.notna(one["dose"]) else None,
                "n": int(part[(part["condition"] == name)]["error"].isna().sum()),
                "errors": int(part[(part["condition"] == name)]["error"].notna().sum()),
                "controls": sorted({int(s) for s in part[part["of"] == name]["control_seed"].dropna()}),
            }
            measured = {measure: table for measure, table in tables.items() if column in table}
            means = {measure: stats.percentile_mean(each[column].to_numpy(float)) for measure, each in measured.items()}
            entry |= values_and_intervals(means)
            for difference_to, other in (("change", ("", PLAIN)), ("beyond", (name, CONTROL))):
                entry[difference_to] = {
                    measure: difference(table[column], table[other])
                    for measure, table in measured.items()
                    if other in table and other != column
                }
            nll = entry.get("gold_nll")
            entry["gold_perplexity"] = float(np.exp(nll)) if nll is not None else None
            found.append(entry)
    return found
