"""A section of the report, as plain values that the page renders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from floatlens.findings.finding import ReportTable


@dataclass
class Drawing:
    """A figure: the stem of its files, its title, and how to read it."""

    stem: str
    title: str
    reading: str


@dataclass
class Section:
    """A finding in the report; `problem` is the reason if it could not be analysed."""

    name: str
    title: str
    paper: str = ""
    question: str = ""
    seen: list[str] = field(default_factory=list)
    drawings: list[Drawing] = field(default_factory=list)
    tables: list[ReportTable] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problem: str = ""
