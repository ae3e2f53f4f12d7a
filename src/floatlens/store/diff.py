"""The differences between two runs: in settings, machine and results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from floatlens.store.folder import Key, Result, RunFolder, differences
from floatlens.store.runs import all_runs

SETTINGS = ("command", "asked", "models", "data", "versions")
SHOWN = 20
MISSING = "missing"


@dataclass
class RunDiff:
    """Fields of the manifests that differ, results that only one run has, and results that differ."""

    settings: list[str] = field(default_factory=list)
    machine: list[str] = field(default_factory=list)
    only_first: list[Key] = field(default_factory=list)
    only_second: list[Key] = field(default_factory=list)
    changed: dict[Key, list[str]] = field(default_factory=dict)
    same: int = 0

    @property
    def results_differ(self) -> bool:
        return bool(self.only_first or self.only_second or self.changed)

    def to_dict(self) -> dict[str, Any]:
        return {
            "settings": self.settings,
            "machine": self.machine,
            "only_first": [list(key) for key in self.only_first],
            "only_second": [list(key) for key in self.only_second],
            "changed": [{"key": list(key), "fields": fields} for key, fields in self.changed.items()],
            "same": self.same,
        }

    def lines(self) -> Iterator[str]:
        """A summary to print: counts, and the first few of each kind."""
        yield f"settings: {len(self.settings)} differ" if self.settings else "settings: the same"
        yield from (f"  {each}" for each in self.settings[:SHOWN])
        if self.machine:
            yield "machine: different"
            yield from (f"  {each}" for each in self.machine[:SHOWN])
        total = self.same + len(self.changed)
        if not self.results_differ:
            yield f"results: all {total} the same"
            return
        yield f"results: {self.same} of {total} in both are the same"
        for name, keys in (("first", self.only_first), ("second", self.only_second)):
            if keys:
                yield f"  only in the {name}: {len(keys)}, such as {', '.join(keys[0])}"
        for key, fields in list(self.changed.items())[:SHOWN]:
            yield f"  {', '.join(key)}: {'; '.join(fields[:4])}"
        if len(self.changed) > SHOWN:
            yield f"  and {len(self.changed) - SHOWN} more"


def compare(first: RunFolder, second: RunFolder) -> RunDiff:
    """Compare two runs or studies, result by result. Traces are compared by their checksums."""
    before, after = first.manifest, second.manifest
    found = RunDiff()
    for part in SETTINGS:
        found.settings += differences(before.get(part), after.get(part), part)
    found.machine = differences(before.get("machine"), after.get("machine"), "machine")
    ours, theirs = (_results(run) for run in (first, second))
    found.only_first = sorted(ours.keys() - theirs.keys())
    found.only_second = sorted(theirs.keys() - ours.keys())
    for key in sorted(ours.keys() & theirs.keys()):
        fields = fields_that_differ(ours[key], theirs[key])
        if fields:
            found.changed[key] = fields
        else:
            found.same += 1
    return found


def fields_that_differ(one: Result, other: Result) -> list[str]:
    """The fields of two results that differ, each with both values; NaN equals NaN.

    >>> fields_that_differ(Result(("q",), {"f1": 0.5}), Result(("q",), {"f1": 1.0}))
    ['f1: 0.5, now 1.0']
    """
    fields = differences(_with_nan_as_text(one.value), _with_nan_as_text(other.value))
    lost = [name for name, result in (("first", one), ("second", other)) if MISSING in result.trees.values()]
    if lost:
        fields.append(f"trace: missing in the {' and the '.join(lost)} run")
    elif one.trees != other.trees:
        fields.append("trace: different numbers")
    return fields


def _results(run: RunFolder) -> dict[Key, Result]:
    """All results of a run by key, with `MISSING` as the checksum of a trace that was deleted."""
    return {
        result.key: replace(
            result,
            trees={
                tree: digest if part.storage.exists(f"{tree}/zarr.json") else MISSING
                for tree, digest in result.trees.items()
            },
        )
        for part in all_runs(run)
        for result in part.results()
    }


def _with_nan_as_text(value: Mapping[str, Any]) -> dict[str, Any]:
    return {k: "NaN" if isinstance(v, float) and math.isnan(v) else v for k, v in value.items()}
