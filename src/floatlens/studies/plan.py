"""The plan of a study: models, data, parts, sizes and settings, as one value that can be sent to a worker process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from floatlens.errors import FloatLensError
from floatlens.evaluation.planning import CLOSED, OPEN, SHORT, Asking
from floatlens.evaluation.sources import EvaluationPlan
from floatlens.findings.finding import CONDITIONS, FINDINGS, traced_conditions
from floatlens.models.checkpoint import find
from floatlens.options import Load, Recording, recorded
from floatlens.store.manifest import describe
from floatlens.studies.parts.registry import PARTS
from floatlens.studies.sizes import Sizes
from floatlens.trace.summarise import Detail


@dataclass(frozen=True, kw_only=True)
class StudyPlan(EvaluationPlan):
    """The plan of a study: an evaluation without and with passages, and the further data that the findings need.

    Parameters
    ----------
    sizes: number of questions of each part; `limit`, the number to read per data set, follows from it.
    interventions: specs of the interventions; None for those that the claims need.
    wide: use every suitable data set for stress tests, not only the first.
    setting: which questions are traced, see `findings.finding`.
    traced_only: models that are only traced on short questions.
    traced_data, traced_tokens: data sets and new tokens of these models; by default those of the others.
    short_data: data sets that serve short questions only.
    answer_tokens: new tokens of questions with passages, if different from `asking`.
    stresses: names of the stress tests; None for all.
    stress_interventions: specs of interventions under which the stress tests are also run, each with its control.
    offset: first question of each data set, for questions that no earlier study has used.
    load: how models are loaded.
    detail: how much of a trace is stored, see `Trace.save`.
    """

    conditions: tuple[str, ...] = (CLOSED, OPEN)
    findings: tuple[str, ...] = field(default_factory=lambda: tuple(FINDINGS.names()))
    sizes: Sizes = field(default_factory=Sizes)
    interventions: tuple[str, ...] | None = None
    wide: bool = False
    setting: str = "paper"
    traced_only: tuple[str, ...] = ()
    traced_data: tuple[str, ...] = ()
    traced_tokens: int | None = None
    short_data: tuple[str, ...] = ()
    answer_tokens: int | None = None
    stresses: tuple[str, ...] | None = None
    stress_interventions: tuple[str, ...] = ()
    offset: int = 0
    load: Load = Load()
    detail: Detail = "full"

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that the findings need; later parts can use results of earlier ones."""
        needed = {FINDINGS[name].part for name in self.findings}
        if any(FINDINGS[name].reads == "both" for name in self.findings):
            needed |= {"traces", "knowledge"}
        return tuple(name for name in PARTS if name in needed)

    def parts_of(self, model: str) -> tuple[str, ...]:
        """The parts for one model."""
        return tuple(name for name in self.parts if name == "traces" or model not in self.traced_only)

    def of_model(self, model: str) -> StudyPlan:
        """Return the plan with the data sets and the answer length of one model."""
        if model not in self.traced_only:
            return self
        asking = replace(self.asking, max_new_tokens=self.traced_tokens or self.asking.max_new_tokens)
        own: dict[str, Any] = {"data": self.traced_data, "short_data": ()} if self.traced_data else {}
        return replace(self, asking=asking, **own)

    @property
    def answering(self) -> Asking:
        """How questions with passages are asked, and those without that they are compared with."""
        return replace(self.asking, max_new_tokens=self.answer_tokens or self.asking.max_new_tokens)

    @property
    def traced(self) -> tuple[str, ...]:
        """The conditions under which questions are traced."""
        return traced_conditions([FINDINGS[name] for name in self.findings], self.setting)

    def recording(self, condition: str) -> Recording:
        """Return what is recorded under a condition: the statistics that its findings need beyond the default ones."""
        readers = [FINDINGS[name] for name in self.findings]
        names = {
            name: None
            for each in readers
            for name in each.records
            if CONDITIONS[each.setting if self.setting == "paper" else self.setting] == condition
        }
        return Recording(record=("default", *names), detail=self.detail)

    def reading(self) -> StudyPlan:
        """Return the plan with the number of questions to read for its largest part."""
        most = [getattr(self.sizes, name) for name in self.parts]
        most += [self.sizes.short] if SHORT in self.traced else []
        return replace(self, limit=None if None in most else self.offset + max(most))

    def recorded(self) -> dict[str, Any]:
        """Return the plan for the manifest; sizes are recorded separately, because a time budget may reduce them."""
        known = {name: value for name, value in super().recorded().items() if name not in ("sizes", "load")}
        return {**known, "load": recorded(self.load)}

    def manifest(self, asked: dict[str, Any], models: Sequence[str]) -> dict[str, Any]:
        """Return the manifest of the study, or of one model's run in it."""
        return describe(
            "study",
            asked,
            checkpoints=[find(model, self.load) for model in models],
            data=[*self.data, *self.traced_data, *([self.corpus] if self.corpus else [])],
            template=self.asking.template.text,
            seeds={"questions": self.seed, "sampler": self.asking.seed},
        )


def choose_findings(only: Sequence[str] = (), skip: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the selected findings in the paper's order.

    >>> choose_findings(only=["stress", "drift"]), choose_findings(skip=["stress"])[-1] != "stress"
    (('drift', 'stress'), True)
    """
    known = FINDINGS.names()
    for name in (*only, *skip):
        _ = FINDINGS[name]
    found = tuple(name for name in known if name in (only or known) and name not in skip)
    if not found:
        raise FloatLensError(f"--skip removes all of {', '.join(only or known)}; skip fewer findings")
    return found
