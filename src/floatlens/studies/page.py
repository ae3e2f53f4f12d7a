"""Render the report as one self-contained HTML file that loads nothing and runs only its own script.

Text from prompts, tokens and data is escaped by the template; figures are cleaned by `drawing`, films travel as the
explorer's JSON. A Content-Security-Policy blocks anything that would slip through.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from floatlens.explorer.page import embed, script_hashes, source_hash
from floatlens.findings.finding import headline
from floatlens.findings.spelling import count, listed, number
from floatlens.findings.style import short
from floatlens.findings.verdict import correct_primary
from floatlens.stats import DEPENDS, FAILS, HOLDS, INCONCLUSIVE, NOT_TESTABLE, VERDICTS
from floatlens.studies.analyse import Section
from floatlens.studies.drawing import inlined
from floatlens.studies.sentences import say_aloud, say_primary

TEMPLATE, STYLE, SCRIPT = "report.html", "report.css", "report.js"
MOST_OPEN = 10  # a report with more sections shows no figure open: their headings, questions and sentences stay
MOST_SEEN = 4  # sentences beside a figure; the others are folded
ROOM = 1_500_000  # maximum characters of a figure's data; more than 300,000 rows of a heat map
SYMBOLS = {HOLDS: "●", FAILS: "✕", INCONCLUSIVE: "◐", DEPENDS: "◇", NOT_TESTABLE: "–"}
QUESTIONS = {  # of a reader, and the findings that answer them
    "Does it float?": ("drift", "similarity", "cache", "locality"),
    "Is there a sink?": ("absorption", "sink", "softness", "massive", "values"),
    "What are anchors?": ("geometry", "tokens"),
    "What are they for?": ("heads", "flow", "links", "causes", "decision"),
    "Does it read better?": ("knowledge", "stress"),
}
OTHER = "Further claims"
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def render(
    about: Mapping[str, Any],
    sections: Sequence[Section],
    folder: Path,
    films: Sequence[dict[str, Any]] = (),
    opening: dict[str, str] | None = None,
) -> str:
    """Return the report as HTML; `folder` has the sections' figures and that of the first screen (`opening`)."""
    templates = files("floatlens.studies") / "templates"
    style, script = ((templates / name).read_text(encoding="utf-8") for name in (STYLE, SCRIPT))
    claims = [claim for section in sections for claim in section.claims]
    correct_primary(claims)
    return (
        _environment()
        .get_template(TEMPLATE)
        .render(
            about=about,
            opening=_figure(opening, folder, "The same scale for both maps.") if opening else None,
            sections=[
                {
                    **asdict(section),
                    "figures": [
                        _figure(each, folder, " ".join(section.seen), section.claims) for each in section.figures
                    ],
                    "claim_rows": [{**claim, **_cell(claim)} for claim in section.claims],
                }
                for section in sections
            ],
            matrix=matrix(sections),
            tally={verdict: n for verdict in VERDICTS if (n := sum(claim["verdict"] == verdict for claim in claims))},
            symbols=SYMBOLS,
            most_seen=MOST_SEEN,
            aloud=say_aloud(claims),
            primary=say_primary(claims),
            folded=len(sections) > MOST_OPEN,
            explorer=Markup(embed(films, "films")) if films else "",
            switch=len({film["model"] for film in films[:2]}) < len(films[:2]),
            films=films,
            style=Markup(style),
            script=Markup(script),
            policy=policy(script, bool(films)),
        )
    )


def policy(script: str, films: bool) -> str:
    """Return the Content-Security-Policy: own scripts by hash, own styles, own pictures, nothing else."""
    scripts = [source_hash(script), *(script_hashes() if films else [])]
    return (
        f"default-src 'none'; script-src {' '.join(scripts)}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def matrix(sections: Sequence[Section]) -> dict[str, Any]:
    """Return the claims as rows in groups by question, and the models as columns.

    A cell holds the verdict on a model, or on an MDM against each ARM. A claim that was not measured on any model is shown
    in the first column.
    """
    named = (short(claim["models"][0]) for section in sections for claim in section.claims if claim["models"])
    columns = list(dict.fromkeys(named)) or ["–"]
    groups: dict[str, dict[str, dict[str, Any]]] = {question: {} for question in (*QUESTIONS, OTHER)}
    for section in sections:
        question = next((q for q, names in QUESTIONS.items() if section.name in names), OTHER)
        for claim in section.claims:
            about = {"section": section.name, "claim": claim["claim"], "primary": claim.get("primary")}
            about |= {"whose": claim.get("whose", ""), "cells": [[] for _ in columns]}
            row = groups[question].setdefault(claim["claim"], about)
            row["cells"][columns.index(short(claim["models"][0])) if claim["models"] else 0].append(_cell(claim))
    return {"columns": columns, "groups": {q: list(rows.values()) for q, rows in groups.items() if rows}}


def _cell(claim: dict[str, Any]) -> dict[str, Any]:
    low, high = claim["interval"]
    value, effect = number(claim["value"]), number(claim.get("effect"))
    interval = "" if low is None else f"{number(low)} to {number(high)}"
    names = listed([short(m) for m in claim["models"]], "against")
    text = f"{names}: {claim['verdict']}"
    if claim["value"] is not None:
        text += f"; {value}" + (f" [{interval}]" if interval else "") + f", {claim['statistic']}; effect {effect}"
    if claim["verdict"] == NOT_TESTABLE:
        text += f"; {claim['reason']}"
    return {
        "verdict": claim["verdict"],
        "symbol": SYMBOLS[claim["verdict"]],
        "value_text": value,
        "interval_text": interval,
        "names": names,
        "hover": text,
        "effect": effect,
        "setting": claim.get("setting", ""),
    }


def _figure(
    figure: Mapping[str, Any], folder: Path, described: str, claims: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    stem, text = figure["stem"], f"{figure['reading']} {described}"
    svg = (folder / f"{stem}.svg").read_text(encoding="utf-8")
    found = {
        "headline": headline(claims, figure.get("shows", ())) or figure["title"],
        "svg": Markup(inlined(svg, f"figure-{stem}", figure["title"], text)),
        "data": csv_of(folder / f"{stem}.parquet"),
    }
    return {**figure, **found}


def csv_of(table: Path) -> dict[str, Any]:
    """Convert a parquet table to a compressed CSV in a data: URL, or give the reason why it is `missing`.

    Text that a spreadsheet would run as a formula is prefixed with an apostrophe, since tokens may be anything.
    """
    frame = pd.read_parquet(table)
    for name in frame.select_dtypes(exclude=["number", "bool"]).columns:
        frame[name] = [f"'{c}" if isinstance(c, str) and c.startswith(FORMULA) else c for c in frame[name]]
    text = frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    packed = base64.b64encode(gzip.compress(text.encode("utf-8", "surrogatepass"), mtime=0)).decode("ascii")
    found = {"name": f"{table.stem}.csv", "rows": len(frame), "address": f"data:application/gzip;base64,{packed}"}
    if len(packed) > ROOM:
        found |= {"address": "", "missing": f"too large for this page; it is {table.name} in the run folder"}
    return found


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
