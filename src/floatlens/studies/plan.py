"""The plan of a study: models, data and options, as one value that can be sent to a worker process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

from floatlens.errors import FloatLensError
from floatlens.evaluation.sources import CLOSED, OPEN, SHORT, DataSource, open_sources
from floatlens.findings.finding import CONDITIONS, FINDINGS, traced_conditions
from floatlens.models.checkpoint import find
from floatlens.options import Data, Load, Recording, Run, Sampling, Scope
from floatlens.store.manifest import describe

# The findings of the paper, and `sink`; the others are run by name, or with --beyond.
PAPER = ("drift", "absorption", "geometry", "sink", "tokens", "heads", "flow", "knowledge", "stress", "links")
FEWEST_TEXTS = 4
PARTS = ("traces", "texts", "knowledge", "stress", "causes")  # in the order of work: later ones can use earlier results


@dataclass(frozen=True)
class Sizes:
    """Number of questions per data set and part; None means all.

    `traces` counts questions traced with passages, `short` questions traced without, `texts` the texts of the finding sink.
    """

    traces: int | None = 24
    knowledge: int | None = 100
    stress: int | None = 50
    causes: int | None = 50
    short: int | None = 24
    texts: int | None = 20

    def limited(self, limit: int | None) -> Sizes:
        """Return sizes with no part larger than `limit`, but at least four texts: fewer say nothing about a sink.

        >>> Sizes().limited(20)
        Sizes(traces=20, knowledge=20, stress=20, causes=20, short=20, texts=20)
        """
        if limit is None:
            return self
        if limit < 1:
            raise FloatLensError(f"limit {limit} is not a positive number; omit it for the default sizes")
        sizes = {name: min(size, limit) if size is not None else limit for name, size in asdict(self).items()}
        return Sizes(**sizes | {"texts": max(FEWEST_TEXTS, sizes["texts"])})


FULL = Sizes(traces=100, knowledge=None, stress=500, causes=500, short=100, texts=None)


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """The plan of a study: questions without and with passages, and the further data that the findings need."""

    models: tuple[str, ...]
    data: tuple[str, ...]
    scope: Scope = Scope()
    reading: Data = Data()
    sampling: Sampling = Sampling()
    load: Load = Load()
    run: Run = Run()

    @cached_property
    def findings(self) -> tuple[str, ...]:
        """The names of the findings."""
        return choose_findings(self.scope.only, self.scope.skip, self.scope.beyond)

    @cached_property
    def sizes(self) -> Sizes:
        """Number of questions of each part."""
        own = self.scope.sizes
        if own is not None and (unknown := set(own) - {each.name for each in fields(Sizes)}):
            raise FloatLensError(f"unknown part {min(unknown)!r} in sizes; use {', '.join(asdict(Sizes()))}")
        sizes = Sizes(**own) if own is not None else FULL if self.scope.full else Sizes()
        return sizes.limited(self.reading.limit)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that the findings need."""
        needed = {part for name in self.findings for part in FINDINGS[name].parts}
        return tuple(name for name in PARTS if name in needed)

    @property
    def traced(self) -> tuple[str, ...]:
        """The conditions under which questions are traced."""
        return traced_conditions([FINDINGS[name] for name in self.findings], self.scope.setting)

    def recording(self, condition: str) -> Recording:
        """Return what is recorded under a condition: the statistics that its findings need beyond the default ones."""
        setting, readers = self.scope.setting, [FINDINGS[name] for name in self.findings]
        names = {
            name: None
            for each in readers
            for name in each.records
            if CONDITIONS[each.setting if setting == "paper" else setting] == condition
        }
        return Recording(record=("default", *names), detail=self.scope.detail)

    def sources(self) -> list[DataSource]:
        """Open the data sets, each with the number of questions that the largest part needs."""
        most = [getattr(self.sizes, name) for name in self.parts if name != "texts"] or [1]
        most += [self.sizes.short] if SHORT in self.traced else []
        limit = None if None in most else self.scope.offset + max(most)
        return open_sources(self.data, replace(self.reading, limit=limit), (CLOSED, OPEN))

    def asked(self) -> dict[str, Any]:
        """Return the settings, for the manifest."""
        return {
            "models": list(self.models),
            "data": list(self.data),
            "findings": list(self.findings),
            "sizes": asdict(self.sizes),
            "scope": self.scope,
            "read": self.reading,
            "sampling": self.sampling,
            "load": self.load,
            "run": self.run,
        }

    def manifest(self, asked: Mapping[str, Any], models: Sequence[str]) -> dict[str, Any]:
        """Return the manifest of the study, or of one model's run in it."""
        more = [self.reading.corpus] if self.reading.corpus else []
        more += [self.scope.texts] if "texts" in self.parts else []
        return describe(
            "study",
            asked,
            checkpoints=[find(model, self.load) for model in models],
            data=[*self.data, *more],
        )


def manifest_of(plans: Sequence[StudyPlan]) -> dict[str, Any]:
    """Return the manifest of a study with one or several plans."""
    if len(plans) == 1:
        return plans[0].manifest(plans[0].asked(), plans[0].models)
    several = [plan.manifest(plan.asked(), plan.models) for plan in plans]
    joined = {key: {name: about for each in several for name, about in each[key].items()} for key in ("models", "data")}
    asked = {"models": [model for plan in plans for model in plan.models], "plans": [each["asked"] for each in several]}
    return {**several[0], **joined, "asked": asked}


def choose_findings(only: Sequence[str] = (), skip: Sequence[str] = (), beyond: bool = False) -> tuple[str, ...]:
    """Return the selected findings in the paper's order: those of the paper and `sink`, all with `beyond`, or `only` these.

    >>> choose_findings(only=["stress", "drift"]), choose_findings(skip=["links"])[-1]
    (('drift', 'stress'), 'stress')
    """
    for name in (*only, *skip):
        _ = FINDINGS[name]
    known = only or (FINDINGS.names() if beyond else PAPER)
    found = tuple(name for name in FINDINGS.names() if name in known and name not in skip)
    if not found:
        raise FloatLensError(f"--skip removes all of {', '.join(known)}; skip fewer findings")
    return found
