"""A batch of questions under some conditions: what one worker does at a time.

The un-intervened answers come first, and stay with the worker for the next conditions on the same questions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from floatlens.data.sample import Sample
from floatlens.errors import FloatLensError
from floatlens.evaluation.ablate.condition import PLAIN, Condition
from floatlens.evaluation.ablate.outcome import Outcome, filled
from floatlens.evaluation.ablate.plain import Pair, Plain
from floatlens.evaluation.evaluate import Asking
from floatlens.evaluation.worker import Worker
from floatlens.interventions.run import without
from floatlens.runs.folder import RunFolder
from floatlens.runs.oom_retry import SAMPLE_ERRORS, error_reason


@dataclass(frozen=True)
class Job:
    """`missing` are the rows that are wanted, as (condition, question); other questions only keep the company.

    `place` is the run folder that the rows go to, if there is one.
    """

    model: str
    data: str
    pairs: list[Pair]
    conditions: list[Condition]
    missing: frozenset[tuple[str, str]]
    asking: Asking
    place: str | None = None

    def split(self) -> list[Job]:
        """A question each; of one question, a condition each."""
        if len(self.pairs) > 1:
            wanted = [pair for pair in self.pairs if any((c.name, pair[0].id) in self.missing for c in self.conditions)]
            return [replace(self, pairs=[pair]) for pair in wanted]
        return [replace(self, conditions=[condition]) for condition in self.conditions]

    def done_by(self, worker: Worker) -> list[Outcome]:
        """The wanted rows."""
        lens = worker.lens(self.model)
        folder = RunFolder.open(self.place) if self.place is not None else None
        made = []
        for part in self._plain(worker, lens):
            for condition in self.conditions:
                for row in self._condition(lens, part, condition):
                    if (row.condition, row.id) in self.missing:
                        if folder is not None:
                            folder.put((row.model, row.data, row.condition, row.id), asdict(row))
                        made.append(row)
        return made

    def lost(self, why: str, diffusion: bool) -> list[Outcome]:
        """The wanted rows when no worker survives them."""
        rows = [(sample, condition) for condition in self.conditions for sample, _ in self.pairs]
        wanted = [(s, c) for s, c in rows if (c.name, s.id) in self.missing]
        return [replace(blank(self.model, self.data, s, c, diffusion), error=why) for s, c in wanted]

    def _plain(self, worker: Worker, lens: Any) -> list[Plain | Failed]:
        about = (self.data, [(sample.id, prompt.ids) for sample, prompt in self.pairs], self.asking)
        if worker.notes.get("plain about") != about:
            worker.notes.clear()
            worker.notes["plain"] = list(parts(lens, self.pairs, self.asking))
            worker.notes["plain about"] = about
        found: list[Plain | Failed] = worker.notes["plain"]
        return found

    def _condition(self, lens: Any, part: Plain | Failed, condition: Condition) -> Iterator[Outcome]:
        """Rows of all questions; where the condition fails they are halved until the one that fails is alone."""
        if isinstance(part, Failed):
            yield replace(self._blank(lens, part.pair[0], condition), error=part.reason)
            return
        try:
            found = part.under(condition.interventions)
        except (*SAMPLE_ERRORS, FloatLensError) as error:
            if len(part.pairs) == 1:
                yield replace(self._blank(lens, part.pairs[0][0], condition), error=error_reason(error))
                return
            for half in halves(part.pairs):
                for smaller in parts(lens, half, self.asking):
                    yield from self._condition(lens, smaller, condition)
            return
        for (sample, prompt), measured in zip(part.pairs, found, strict=True):
            yield filled(self._blank(lens, sample, condition), prompt, measured, special=lens.special_ids)

    def _blank(self, lens: Any, sample: Sample, condition: Condition) -> Outcome:
        return blank(self.model, self.data, sample, condition, lens.family.diffusion)


@dataclass(frozen=True)
class Failed:
    """A question that cannot be answered even without interventions."""

    pair: Pair
    reason: str


def parts(lens: Any, pairs: Sequence[Pair], asking: Asking) -> Iterator[Plain | Failed]:
    """The un-intervened answers of a batch; one that fails is halved until the question that fails is alone."""
    try:
        with without(lens):
            whole = Plain.of(lens, pairs, asking)
    except SAMPLE_ERRORS as error:
        if len(pairs) == 1:
            yield Failed(pairs[0], error_reason(error))
            return
        for half in halves(pairs):
            yield from parts(lens, half, asking)
    else:
        yield whole


def halves(pairs: Sequence[Pair]) -> tuple[Sequence[Pair], Sequence[Pair]]:
    return pairs[: len(pairs) // 2], pairs[len(pairs) // 2 :]


def blank(model: str, data: str, sample: Sample, condition: Condition, diffusion: bool) -> Outcome:
    """The row of a question before it is asked."""
    return Outcome(
        sample.id,
        sample.question,
        sample.answers,
        model=model,
        data=data,
        condition=condition.name,
        diffusion=diffusion,
        intervention="" if condition.role == PLAIN else condition.name,
        role=condition.role,
        group=condition.group,
        dose=condition.dose,
        of=condition.of,
        control_seed=condition.seed,
    )
