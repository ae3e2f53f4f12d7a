"""The plan of a study: models, data and options, as one value that can be sent to a worker process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from floatlens.errors import FloatLensError, check_known
from floatlens.evaluation.sources import CLOSED, OPEN, SHORT, DataSource, open_sources
from floatlens.findings.finding import FINDINGS, traced_conditions
from floatlens.models.checkpoint import find
from floatlens.options import Data, Load, Recording, Run, Sampling, Scope
from floatlens.store.manifest import describe

# The findings of the paper, and `sink`; the others are run by name, or with --beyond.
PAPER = ("drift", "absorption", "geometry", "sink", "tokens", "heads", "flow", "knowledge", "stress", "links")
# In the order of work: later ones can use earlier results, and `replays` loads other weights.
PARTS = ("traces", "texts", "knowledge", "stress", "causes", "replays")
# Number of questions per data set: traced with passages (`traces`), traced without (`short`), and of each part; `texts` is
# the number of texts of the finding sink. None means all.
Sizes = Mapping[str, int | None]
SIZES: Sizes = {"traces": 24, "knowledge": 100, "stress": 50, "causes": 50, "short": 24, "texts": 20}
FULL: Sizes = {"traces": 100, "knowledge": None, "stress": 500, "causes": 500, "short": 100, "texts": None}
FEWEST_TEXTS = 4  # fewer say nothing about a sink


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
        """Number of questions of each part, at most `limit`."""
        own, limit = self.scope.sizes, self.reading.limit
        for name in own or ():
            check_known("part in sizes", name, SIZES)
        sizes = {**SIZES, **own} if own is not None else FULL if self.scope.full else SIZES
        if limit is None:
            return dict(sizes)
        if limit < 1:
            raise FloatLensError(f"limit {limit} is not a positive number; omit it for the default sizes")
        limited = {name: limit if size is None else min(size, limit) for name, size in sizes.items()}
        return limited | {"texts": max(FEWEST_TEXTS, limited["texts"])}

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
        every = [FINDINGS[name] for name in self.findings]
        readers = [each for each in every if condition in traced_conditions([each], self.scope.setting)]
        names = dict.fromkeys(name for each in readers for name in each.records)
        return Recording(record=("default", *names), detail=self.scope.detail)

    def sources(self) -> list[DataSource]:
        """Open the data sets, each with the number of questions that the largest part needs."""
        sizes = {name: self.sizes[name] for name in self.parts if name in self.sizes and name != "texts"}
        sizes |= {"short": self.sizes["short"]} if SHORT in self.traced else {}
        most = [size for size in sizes.values() if size is not None] or [1]
        limit = None if None in sizes.values() else self.scope.offset + max(most)
        return open_sources(self.data, replace(self.reading, limit=limit), (CLOSED, OPEN))

    def asked(self) -> dict[str, Any]:
        """Return the settings, for the manifest."""
        return {
            "models": list(self.models),
            "data": list(self.data),
            "findings": list(self.findings),
            "sizes": self.sizes,
            "scope": self.scope,
            "read": self.reading,
            "sampling": self.sampling,
            "load": self.load,
            "run": self.run,
        }

    def manifest(self, asked: Mapping[str, Any], models: Sequence[str]) -> dict[str, Any]:
        """Return the manifest of the study, or of one model's run in it."""
        data = [*self.data, *([self.reading.corpus] if self.reading.corpus else [])]
        data += [self.scope.texts] if "texts" in self.parts else []
        return describe("study", asked, checkpoints=[find(model, self.load) for model in models], data=data)


def manifest_of(plans: Sequence[StudyPlan]) -> dict[str, Any]:
    """Return the manifest of a study with one or several plans."""
    several = [plan.manifest(plan.asked(), plan.models) for plan in plans]
    if len(plans) == 1:
        return several[0]
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
