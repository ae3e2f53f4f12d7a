"""What the report says of one finding: plain values, made where the numbers are, shown by the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd


@dataclass
class Table:
    """Rows of text under a title; `strong` are the cells (row, column) to stand out."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    strong: set[tuple[int, int]] = field(default_factory=set)


@dataclass
class Drawing:
    """A figure: the stem of its files, what it shows, and how it is read."""

    stem: str
    title: str
    reading: str


@dataclass
class Section:
    """A finding in the report; `problem` says why there is nothing to see."""

    name: str
    title: str
    paper: str = ""
    question: str = ""
    seen: list[str] = field(default_factory=list)
    drawings: list[Drawing] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problem: str = ""


@dataclass(frozen=True)
class Words:
    """What a finding is about, and how its numbers are put into words.

    `views` gives each figure's title and how to read it; `tables(measured)` the numbers; `seen(measured)` sentences on
    them, as they fall; `shown(measured, view)` the part of the samples that a figure can show together.
    """

    title: str
    question: str
    views: dict[str, tuple[str, str]]
    tables: Callable[[Any], list[Table]]
    seen: Callable[[Any], list[str]]
    notes: Callable[[Any], list[str]] = lambda measured: []
    shown: Callable[[Any, str], Any] = lambda measured, view: measured


def as_table(title: str, frame: pd.DataFrame, spell: Callable[[Any], str]) -> Table:
    """A frame as text, numbers spelled."""
    rows = [
        [value if isinstance(value, str) else str(value) if isinstance(value, int) else spell(value) for value in row]
        for row in frame.itertuples(index=False)
    ]
    return Table(title, [str(name) for name in frame.columns], rows)
