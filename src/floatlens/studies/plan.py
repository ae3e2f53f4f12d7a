"""What a study asks: models, data, parts, sizes and settings, as one value that a worker process can be handed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from floatlens.errors import FloatLensError
from floatlens.evaluation.planning import CLOSED, OPEN, Asking
from floatlens.evaluation.sources import EvaluationPlan
from floatlens.findings.registry import NAMES
from floatlens.models.checkpoint import find
from floatlens.runs.manifest import describe
from floatlens.studies.parts.registry import PARTS
from floatlens.studies.sizes import Sizes


@dataclass(frozen=True)
class StudyPlan:
    """A study before it is run. `wide` puts every data set under stress that suits it, not only the first."""

    models: tuple[str, ...]
    data: tuple[str, ...]
    findings: tuple[str, ...] = NAMES
    sizes: Sizes = field(default_factory=Sizes)
    limit: int | None = None  # questions read of a data set; parts ask the first of them, however far they are cut
    asking: Asking = field(default_factory=Asking)
    split: str | None = None
    seed: int | None = None
    passages: int | None = None
    max_passages: int | None = None
    corpus: str | None = None
    interventions: tuple[str, ...] | None = None
    wide: bool = False
    device: str | None = None
    dtype: str = "auto"
    allow_pickle: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """The work that the findings need, in the order in which later parts can use what earlier ones made."""
        return tuple(name for name, part in PARTS.items() if set(part.findings) & set(self.findings))

    def reading(self) -> StudyPlan:
        """The same plan, knowing how many questions it must read for its largest part."""
        most = [getattr(self.sizes, name) for name in self.parts]
        return replace(self, limit=None if None in most else max(most))

    def comparison(self) -> EvaluationPlan:
        """The questions, as the evaluation reads them."""
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
        """For the manifest: everything asked; sizes may yet be cut to fit a time, and are recorded when they are known."""
        ours = {name: value for name, value in asdict(self).items() if name not in ("sizes", "allow_pickle")}
        return {**ours, "asking": self.asking.recorded()}

    def manifest(self, asked: dict[str, Any], models: Sequence[str]) -> dict[str, Any]:
        """The manifest of the study, or of the work on one model in it."""
        return describe(
            "study",
            asked,
            checkpoints=[find(model) for model in models],
            data=self.data,
            template=self.asking.template.text,
            seeds={"questions": self.seed, "sampler": self.asking.seed},
        )


def chosen(only: Sequence[str] = (), skip: Sequence[str] = ()) -> tuple[str, ...]:
    """The findings that are wanted, in the paper's order.

    >>> chosen(only=["stress", "drift"]), chosen(skip=["stress"])[-1] != "stress"
    (('drift', 'stress'), True)
    """
    for name in (*only, *skip):
        if name not in NAMES:
            raise FloatLensError(f"there is no finding {name!r}; there are {', '.join(NAMES)}")
    found = tuple(name for name in NAMES if name in (only or NAMES) and name not in skip)
    if not found:
        raise FloatLensError(f"--skip leaves none of {', '.join(only or NAMES)}; name fewer")
    return found
