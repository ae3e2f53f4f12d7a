"""What a study runs: models, data, parts, sizes and settings, as one value that can be sent to a worker process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from floatlens.errors import FloatLensError
from floatlens.evaluation.planning import CLOSED, OPEN, Asking
from floatlens.evaluation.sources import EvaluationPlan
from floatlens.findings.finding import FINDINGS
from floatlens.models.checkpoint import find
from floatlens.runs.manifest import describe
from floatlens.studies.parts.registry import PARTS
from floatlens.studies.sizes import Sizes


@dataclass(frozen=True)
class StudyPlan:
    """The plan of a study. With `wide`, every suitable data set is used for stress tests, not only the first."""

    models: tuple[str, ...]
    data: tuple[str, ...]
    findings: tuple[str, ...] = field(default_factory=lambda: tuple(FINDINGS.names()))
    sizes: Sizes = field(default_factory=Sizes)
    limit: int | None = None  # questions to read per data set; every part uses the first of them
    asking: Asking = field(default_factory=Asking)
    split: str | None = None
    seed: int | None = None
    passages: int | None = None
    max_passages: int | None = None
    corpus: str | None = None
    interventions: tuple[str, ...] | None = None
    wide: bool = False
    adapter: str | None = None
    device: str | None = None
    dtype: str = "auto"
    allow_pickle: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that the findings need; later parts can use results of earlier ones."""
        needed = {FINDINGS[name].part for name in self.findings}
        return tuple(name for name in PARTS if name in needed)

    def reading(self) -> StudyPlan:
        """Return the plan with the number of questions to read for its largest part."""
        most = [getattr(self.sizes, name) for name in self.parts]
        return replace(self, limit=None if None in most else max(most))

    def comparison(self) -> EvaluationPlan:
        """Return the questions as an evaluation plan."""
        return EvaluationPlan(
            models=self.models,
            data=self.data,
            conditions=(CLOSED, OPEN),
            asking=self.asking,
            split=self.split,
            limit=self.limit,
            seed=self.seed,
            passages=self.passages,
            max_passages=self.max_passages,
            corpus=self.corpus,
        )

    def recorded(self) -> dict[str, Any]:
        """Return the plan for the manifest; sizes are recorded separately, because a time budget may reduce them."""
        ours = {name: value for name, value in asdict(self).items() if name not in ("sizes", "allow_pickle", "adapter")}
        adapter = {} if self.adapter is None else {"adapter": self.adapter}
        return {**ours, **adapter, "asking": self.asking.recorded()}

    def manifest(self, asked: dict[str, Any], models: Sequence[str]) -> dict[str, Any]:
        """Return the manifest of the study, or of one model's run in it."""
        return describe(
            "study",
            asked,
            checkpoints=[find(model, adapter=self.adapter) for model in models],
            data=self.data,
            template=self.asking.template.text,
            seeds={"questions": self.seed, "sampler": self.asking.seed},
        )


def chosen(only: Sequence[str] = (), skip: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the selected findings in the paper's order.

    >>> chosen(only=["stress", "drift"]), chosen(skip=["stress"])[-1] != "stress"
    (('drift', 'stress'), True)
    """
    known = FINDINGS.names()
    for name in (*only, *skip):
        _ = FINDINGS[name]
    found = tuple(name for name in known if name in (only or known) and name not in skip)
    if not found:
        raise FloatLensError(f"--skip removes all of {', '.join(only or known)}; skip fewer findings")
    return found
