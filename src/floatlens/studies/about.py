"""Summarise the runs: models, data, numbers of traces and answers, settings, failures and omissions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from floatlens import untrusted
from floatlens.errors import FloatLensError
from floatlens.findings.spelling import count, listed
from floatlens.findings.style import short
from floatlens.store.folder import RunFolder
from floatlens.studies.analyse import answers_in
from floatlens.trace.attributes import read_attributes
from floatlens.version import __version__

SHOWN_ERRORS = 20


@dataclass
class About:
    """The header and footer of the report."""

    title: str
    models: list[dict[str, str]] = field(default_factory=list)
    data: list[str] = field(default_factory=list)
    traces: int = 0
    answers: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    manifests: list[tuple[str, str]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    cut: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    errors: list[dict[str, str]] = field(default_factory=list)
    errors_left_out: int = 0
    version: str = __version__

    @property
    def line(self) -> str:
        """Return the line under the title."""
        parts = [f"{count(len(self.models), 'model')}", f"{count(self.traces, 'trace')}", count(self.answers, "answer")]
        return ", ".join(parts) + (f" on {listed(self.data)}" if self.data else "")


def about(runs: Sequence[Path], homes: Sequence[Path]) -> About:
    """Collect the summary from the run folders."""
    folders = [RunFolder.open(home) for home in homes]
    answers = answers_in(folders)
    models: dict[str, dict[str, str]] = {}
    found = About("")
    settings: dict[str, str] = {}
    data: dict[str, None] = dict.fromkeys(str(d) for d in answers["data"]) if "data" in answers else {}
    for folder in folders:
        for _, path in folder.samples():
            found.traces += 1
            attributes = read_attributes(path, path)
            models.setdefault(str(attributes.get("model", "")), _of_trace(attributes))
            settings |= _sampler(attributes)
    if "kind" in answers:
        for model, part in answers.groupby("model", sort=False):
            kind = str(part["kind"].iloc[0]).upper()
            models.setdefault(str(model), {"name": str(model), "kind": kind, "family": "", "layers": ""})
    errors = [error for folder in folders for error in folder.errors()]
    found.models = sorted(models.values(), key=lambda model: model["kind"] != "MDM")
    found.data, found.answers, found.settings = list(data), len(answers), settings
    found.errors, found.errors_left_out = errors[:SHOWN_ERRORS], max(0, len(errors) - SHOWN_ERRORS)
    names = [short(model["name"]) for model in found.models]
    found.title = f"Where attention floats in {listed(names)}" if names else "FloatLens report"
    for run in runs:
        manifest = RunFolder.open(run).manifest
        found.manifests.append((Path(run).name, json.dumps(manifest, indent=2, ensure_ascii=False)))
        results = _results(Path(run))
        found.failed |= results.get("failed", {})
        found.cut += results.get("cut", [])
        found.notes += results.get("notes", [])
    return found


def _of_trace(attributes: dict[str, Any]) -> dict[str, str]:
    return {
        "name": str(attributes.get("model", "")),
        "kind": str(attributes.get("kind", "")).upper(),
        "family": str(attributes.get("family", "")),
        "layers": str(attributes.get("n_layers", "")),
        "revision": str(attributes.get("revision", "")),
    }


def _sampler(attributes: dict[str, Any]) -> dict[str, str]:
    """Return the sampler's settings by model."""
    given = json.loads(str(attributes.get("settings", "{}")))
    text = ", ".join(f"{key} {value}" for key, value in given.items() if value is not None)
    return {f"{short(str(attributes.get('model', '')))} ({attributes.get('sampler', '')})": text}


def _results(run: Path) -> dict[str, Any]:
    """Return what a study says of itself: failed parts, questions left out, notes."""
    path = run / "results.json"
    found = untrusted.read_json(path, run) if path.exists() else {}
    failed, cut, notes = found.get("failed", {}), found.get("cut", []), found.get("notes", [])
    texts = isinstance(failed, dict) and isinstance(cut, list) and isinstance(notes, list)
    if not texts or not all(isinstance(text, str) for text in (*failed.values(), *cut, *notes)):
        raise FloatLensError(f"{path}: failed, cut and notes must be texts; finish the run again with --resume")
    return {"failed": failed, "cut": cut, "notes": notes}
