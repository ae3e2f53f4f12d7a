"""Render the report as one self-contained HTML file that loads nothing and runs only its own script.

Text from prompts, tokens and data is escaped by the template; figures are cleaned by `drawing`, films travel as the
explorer's JSON. A Content-Security-Policy blocks anything that would slip through.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from floatlens.explorer.page import embed, script_hashes
from floatlens.findings.spelling import count, listed, number
from floatlens.findings.style import short
from floatlens.findings.verdict import correct_primary
from floatlens.stats import VERDICTS
from floatlens.studies.analyse import Section
from floatlens.studies.drawing import inlined, whisker, whisker_reach
from floatlens.studies.sentences import say_aloud, say_primary
from floatlens.version import __version__

TEMPLATE, STYLE, SCRIPT = "report.html", "report.css", "report.js"
MOST_OPEN = 10  # a report with more sections is folded: their headings, questions and sentences stay open
ROOM = 1_500_000  # maximum characters of a figure's data; more than 300,000 rows of a heat map
FORMULA = ("=", "+", "-", "@", "\t", "\r")


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
    notes: list[str] = field(default_factory=list)
    errors: list[dict[str, str]] = field(default_factory=list)
    errors_left_out: int = 0
    tracked: list[str] = field(default_factory=list)  # the summary of a report on checkpoints, which has no claims
    version: str = __version__

    @property
    def line(self) -> str:
        """Return the line under the title."""
        parts = [f"{count(len(self.models), 'model')}", f"{count(self.traces, 'trace')}", count(self.answers, "answer")]
        return ", ".join(parts) + (f" on {listed(self.data)}" if self.data else "")


@dataclass(frozen=True)
class Download:
    """An embedded file, or the reason why there is none."""

    name: str
    address: str = ""
    rows: int = 0
    missing: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure as the page shows it."""

    stem: str
    title: str
    reading: str
    svg: Markup
    data: Download


def render(about: About, sections: Sequence[Section], figures: Path, films: Sequence[dict[str, Any]] = ()) -> str:
    """Return the report as HTML; `figures` is the folder with the sections' figures."""
    template = _environment().get_template(TEMPLATE)
    style, script = (_asset(name) for name in (STYLE, SCRIPT))
    claims = [claim for section in sections for claim in section.claims]
    correct_primary(claims)
    return template.render(
        about=about,
        sections=[
            {**asdict(section), "figures": _figures(section, figures), "claim_rows": claim_rows(section.claims)}
            for section in sections
        ],
        matrix=matrix(sections),
        tally={verdict: n for verdict in VERDICTS if (n := sum(claim["verdict"] == verdict for claim in claims))},
        aloud=say_aloud(claims),
        primary=say_primary(claims),
        folded=len(sections) > MOST_OPEN,
        explorer=Markup(embed(films, "films")) if films else "",
        films=[
            {"model": short(film["model"]), "question": film["question"], "output": film["output"]} for film in films
        ],
        style=Markup(style),
        script=Markup(script),
        policy=policy(script, bool(films)),
    )


def policy(script: str, films: bool) -> str:
    """Return the Content-Security-Policy: own scripts by hash, own styles, own pictures, nothing else."""
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    scripts = [f"'sha256-{digest}'", *(script_hashes() if films else [])]
    return (
        f"default-src 'none'; script-src {' '.join(scripts)}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def matrix(sections: Sequence[Section]) -> dict[str, Any]:
    """Return the claims as rows and the MDMs as columns; a cell holds the verdict against each ARM, or on the MDM alone.

    A claim that was not measured on any model is shown in the first column.
    """
    named = (short(claim["models"][0]) for section in sections for claim in section.claims if claim["models"])
    columns = dict.fromkeys(named) or {"–": None}
    rows: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for section in sections:
        for claim in section.claims:
            column = short(claim["models"][0]) if claim["models"] else next(iter(columns))
            rows.setdefault((section.name, claim["claim"]), {}).setdefault(column, []).append(claim)
    made = []
    for (name, text), cells in rows.items():
        every = [claim for several in cells.values() for claim in several]
        reach = whisker_reach(every)
        shown = [[_cell(claim, reach) for claim in cells.get(column, [])] for column in columns]
        statistic = f"{every[0]['statistic']}; smallest effect that matters: {number(every[0].get('effect'))}"
        whose = every[0].get("whose", "") + ("; primary" if every[0].get("primary") else "")
        made.append({"section": name, "claim": text, "whose": whose, "statistic": statistic, "cells": shown})
    return {"columns": list(columns), "rows": made}


def claim_rows(claims: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the claims of one section with their verdicts and reasons."""
    reach = {text: whisker_reach([c for c in claims if c["claim"] == text]) for text in {c["claim"] for c in claims}}
    return [{**claim, **_cell(claim, reach[claim["claim"]])} for claim in claims]


def _cell(claim: dict[str, Any], reach: float) -> dict[str, Any]:
    low, high = claim["interval"]
    value = number(claim["value"])
    interval = "" if low is None else f"{number(low)} to {number(high)}"
    text = f"{claim['verdict']}: {value}" + (f", 95 % interval {interval}" if interval else "")
    return {
        "verdict": claim["verdict"],
        "value_text": value,
        "interval_text": interval,
        "against": ", ".join(short(m) for m in claim["models"][1:]),
        "names": listed([short(m) for m in claim["models"]], "against"),
        "reason": claim["reason"],
        "n": claim["n"],
        "rule": claim["rule"],
        "effect": number(claim.get("effect")),
        "whisker": Markup(whisker(claim, reach, text)),
    }


def _figures(section: Section, folder: Path) -> list[Figure]:
    found = []
    for drawing in section.drawings:
        svg = (folder / f"{drawing.stem}.svg").read_text(encoding="utf-8")
        described = " ".join([drawing.reading, *section.seen])
        made = Markup(inlined(svg, f"figure-{drawing.stem}", f"{section.title}: {drawing.title}", described))
        found.append(
            Figure(drawing.stem, drawing.title, drawing.reading, made, csv_of(folder / f"{drawing.stem}.parquet"))
        )
    return found


def csv_of(table: Path) -> Download:
    """Convert a parquet table to a compressed CSV in a data: URL.

    Text that a spreadsheet would run as a formula is prefixed with an apostrophe, since tokens may be anything.
    """
    frame = pd.read_parquet(table)
    for column in frame.columns:
        if frame[column].dtype == object or isinstance(frame[column].dtype, pd.StringDtype):
            frame[column] = frame[column].map(lambda cell: _quiet(cell) if isinstance(cell, str) else cell)
    text = frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    packed = base64.b64encode(gzip.compress(text.encode("utf-8", "surrogatepass"), mtime=0)).decode("ascii")
    name = f"{table.stem}.csv"
    if len(packed) > ROOM:
        return Download(name, rows=len(frame), missing=f"too large for this page; it is {table.name} in the run folder")
    return Download(name, f"data:application/gzip;base64,{packed}", len(frame))


def _quiet(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA) else text


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("floatlens.studies"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"short": short, "slug": lambda verdict: verdict.replace(" ", "-")}
    made.globals |= {"count": count, "listed": listed}
    return made


@cache
def _asset(name: str) -> str:
    """Read a style or script; its hash is taken from the same bytes."""
    source = _environment().loader
    assert source is not None
    return source.get_source(_environment(), name)[0]
