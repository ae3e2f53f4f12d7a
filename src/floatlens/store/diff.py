"""The differences between two runs, in settings, machine and results: what `floatlens diff` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from floatlens.store.folder import MATCHED, Key, Result, RunFolder, differences
from floatlens.store.runs import all_runs

SHOWN = 20
MISSING = "missing"


def compare(first: RunFolder, second: RunFolder) -> dict[str, Any]:
    """Compare two runs or studies, result by result; traces are compared by their checksums.

    Returns the fields of the manifests that differ (`settings`, `machine`), the keys of results that only one run has
    (`only_first`, `only_second`), those that differ with their fields (`changed`), and the number of equal ones (`same`).
    """
    before, after = first.manifest, second.manifest
    ours, theirs = (_results(run) for run in (first, second))
    both = sorted(ours.keys() & theirs.keys())
    differing = {key: fields for key in both if (fields := fields_that_differ(ours[key], theirs[key]))}
    return {
        "settings": [each for part in MATCHED for each in differences(before.get(part), after.get(part), (part,))],
        "machine": differences(before.get("machine"), after.get("machine"), ("machine",)),
        "only_first": [list(key) for key in sorted(ours.keys() - theirs.keys())],
        "only_second": [list(key) for key in sorted(theirs.keys() - ours.keys())],
        "changed": [{"key": list(key), "fields": fields} for key, fields in differing.items()],
        "same": len(both) - len(differing),
    }


def results_differ(found: Mapping[str, Any]) -> bool:
    """Whether a comparison found results that differ, or that only one run has."""
    return bool(found["only_first"] or found["only_second"] or found["changed"])


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a summary of a comparison: counts, and the first few of each kind."""
    for name in ("settings", "machine"):
        if differing := found[name]:
            yield f"{name}: {len(differing)} differ"
            yield from (f"  {each}" for each in differing[:SHOWN])
        else:
            yield f"{name}: the same"
    changed = found["changed"]
    total = found["same"] + len(changed)
    if not results_differ(found):
        yield f"results: all {total} the same"
        return
    yield f"results: {found['same']} of {total} in both are the same"
    for name in ("first", "second"):
        if keys := found[f"only_{name}"]:
            yield f"  only in the {name}: {len(keys)}, such as {', '.join(keys[0])}"
    yield from (f"  {', '.join(each['key'])}: {'; '.join(each['fields'][:4])}" for each in changed[:SHOWN])
    if len(changed) > SHOWN:
        yield f"  and {len(changed) - SHOWN} more"


def fields_that_differ(one: Result, other: Result) -> list[str]:
    """The fields of two results that differ, each with both values; NaN equals NaN.

    >>> fields_that_differ(Result(("q",), {"f1": 0.5}), Result(("q",), {"f1": 1.0}))
    ['f1: 0.5, now 1.0']
    """
    fields = differences(one.value, other.value)
    lost = [name for name, result in (("first", one), ("second", other)) if MISSING in result.trees.values()]
    if lost:
        fields.append(f"trace: missing in the {' and the '.join(lost)} run")
    elif one.trees != other.trees:
        fields.append("trace: different numbers")
    return fields


def _results(run: RunFolder) -> dict[Key, Result]:
    """All results of a run by key, with `MISSING` as the checksum of a trace that was deleted."""
    found = {}
    for part in all_runs(run):
        for result in part.results():
            there = {tree: part.storage.exists(f"{tree}/zarr.json") for tree in result.trees}
            trees = {tree: digest if there[tree] else MISSING for tree, digest in result.trees.items()}
            found[result.key] = replace(result, trees=trees)
    return found
