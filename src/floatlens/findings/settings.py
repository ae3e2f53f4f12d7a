"""The setting of each finding: a short question without passages, or one with them.

The paper studies anchors on short questions without passages (32 to 64 new tokens, one step per token, one block), and
retrieval heads, flow, knowledge and stress with passages. A study traces both sets, and each finding uses one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from floatlens.errors import FloatLensError
from floatlens.evaluation.planning import OPEN, SHORT
from floatlens.findings.finding import Finding

CONDITIONS = {"short": SHORT, "passages": OPEN}
SETTINGS = {
    "paper": "short questions for anchors, passages for heads, flow, knowledge and stress",
    "short": "every trace without passages",
    "passages": "every trace with passages",
}


def check_setting(name: str) -> str:
    """Return the name of a setting; raise an error if it is unknown.

    >>> check_setting("paper")
    'paper'
    """
    if name not in SETTINGS:
        raise FloatLensError(f"setting {name!r} is not known; use one of {', '.join(SETTINGS)}")
    return name


def traced_conditions(findings: Sequence[Finding], setting: str = "paper") -> tuple[str, ...]:
    """Which sets of traces the findings need: short questions, or questions with passages."""
    needed = {each.setting if setting == "paper" else setting for each in findings if each.reads in ("traces", "both")}
    return tuple(condition for name, condition in CONDITIONS.items() if name in needed)


def condition_of(sample_id: str) -> str:
    """The condition of a study's sample; empty for a trace that was not made by a study.

    >>> condition_of("world:fresh, short, fresh-test-3"), condition_of("mine")
    ('short', '')
    """
    parts = sample_id.rsplit(", ", 2)
    return parts[1] if len(parts) == 3 and parts[1] in CONDITIONS.values() else ""


@dataclass(frozen=True)
class OfSetting:
    """A run folder with the traces of one condition."""

    folder: Any
    condition: str

    @property
    def path(self) -> Path:
        return Path(self.folder.path)

    def __str__(self) -> str:
        return str(self.folder)

    def samples(self) -> list[tuple[str, Path]]:
        found = self.folder.samples()
        return [(name, path) for name, path in found if not self.condition or condition_of(name) == self.condition]


def folders_for(finding: Finding, folders: Sequence[Any]) -> list[OfSetting]:
    """The folders restricted to the traces of the finding's setting, or with all traces if there are none of it."""
    wanted = CONDITIONS[finding.setting]
    known = {condition_of(name) for folder in folders for name, _ in folder.samples()}
    return [OfSetting(folder, wanted if wanted in known else "") for folder in folders]
