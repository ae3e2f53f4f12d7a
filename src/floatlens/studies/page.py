"""Render the report as one self-contained HTML file that loads nothing and runs only its own script.

Text from prompts, tokens and data is escaped by the template, and films travel as the explorer's JSON. Of a figure's SVG,
only drawing elements are kept, with unique ids, and colours that follow light and dark mode: elements and attributes come
from an allow-list, URLs are its own ids or PNG data. A Content-Security-Policy blocks anything that would slip through.
"""

from __future__ import annotations

import base64
import gzip
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from floatlens.errors import FloatLensError
from floatlens.explorer.page import embed, script_hashes, source_hash
from floatlens.findings.finding import headline
from floatlens.findings.spelling import count, listed, number
from floatlens.findings.style import COLOURS, FAINT, INK, TITLE, short
from floatlens.findings.tokens import SHADES
from floatlens.findings.verdict import correct_primary
from floatlens.stats import DEPENDS, FAILS, HOLDS, INCONCLUSIVE, NOT_TESTABLE, VERDICTS
from floatlens.studies.analyse import Section
from floatlens.studies.sentences import say_aloud, say_primary

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
SVG, XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
ELEMENTS = {
    "svg", "g", "path", "text", "tspan", "use", "defs", "clipPath", "rect", "circle", "ellipse", "line", "polyline",
    "polygon", "image", "pattern",
}  # fmt: skip
ATTRIBUTES = {
    "id", "d", "x", "y", "x1", "y1", "x2", "y2", "r", "rx", "ry", "cx", "cy", "width", "height", "points", "transform",
    "style", "clip-path", "viewBox", "preserveAspectRatio", "patternUnits", "patternContentUnits", "fill", "stroke",
    "opacity",
}  # fmt: skip
# Fixed colours of the figures, and the CSS variables that replace them in the page.
VARIABLES = {
    INK: "var(--ink)",
    "#555555": "var(--muted)",
    FAINT: "var(--faint)",
    "#ffffff": "var(--paper)",
    **{colour.lower(): f"var(--c{place})" for place, colour in enumerate(COLOURS, 1)},
    **{colour.lower(): f"var(--k{place})" for place, colour in enumerate(SHADES.values(), 1)},
}
COLOUR = re.compile(r"#[0-9a-fA-F]{6}\b")
ADDRESS = re.compile(r"url\(\s*['\"]?#([^)'\"]+)['\"]?\s*\)")
PNG = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=\s]+")


def render(
    about: Mapping[str, Any],
    sections: Sequence[Section],
    folder: Path,
    films: Sequence[dict[str, Any]] = (),
    opening: dict[str, str] | None = None,
) -> str:
    """Return the report as HTML; `folder` has the sections' figures and that of the first screen (`opening`)."""
    templates = files("floatlens.studies") / "templates"
    style, script = ((templates / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    claims = [claim for section in sections for claim in section.claims]
    correct_primary(claims)
    return (
        _environment()
        .get_template("report.html")
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


# Figures


def inlined(svg: str, name: str, title: str, description: str) -> str:
    """Return the SVG as a page element; `name` makes its ids unique, title and description are for screen readers.

    >>> hostile = '<svg xmlns="http://www.w3.org/2000/svg"><script>1</script><g onclick="x" id="a"/></svg>'
    >>> inlined(hostile, "f", "A title", "What is seen")
    '<svg role="img" ...><title id="f-title">A title</title><desc id="f-desc">What is seen</desc><g id="f-a" /></svg>'
    """
    if "<!ENTITY" in svg:
        raise FloatLensError(f"the SVG of {name} declares entities; only figures drawn by floatlens are shown")
    try:
        root = _kept(ET.fromstring(svg), name)
    except ET.ParseError as error:
        raise FloatLensError(f"the SVG of {name} is damaged ({error}); draw the figure again") from None
    if root is None:
        raise FloatLensError(f"the SVG of {name} has no svg element; only figures drawn by floatlens are shown")
    for size in ("width", "height"):  # set by the page; the viewBox fixes the proportions
        root.attrib.pop(size, None)
    labels = [ET.Element(kind, {"id": f"{name}-{kind}"}) for kind in ("title", "desc")]
    for label, text in zip(labels, (title, description), strict=True):
        label.text, label.tail = text, None
    root[:0] = labels
    root.attrib = {"role": "img", "aria-labelledby": f"{name}-title {name}-desc", **root.attrib}
    return ET.tostring(root, encoding="unicode", short_empty_elements=True)


def _kept(element: ET.Element, name: str) -> ET.Element | None:
    tag = element.tag.removeprefix(SVG) if isinstance(element.tag, str) else ""
    if tag not in ELEMENTS or element.get("id") == TITLE:  # the page writes the title itself, in lines that wrap
        return None
    made = ET.Element(tag)
    made.text, made.tail = (text if tag in ("text", "tspan") else None for text in (element.text, element.tail))
    for key, value in element.attrib.items():
        if key in (f"{XLINK}href", "href"):
            if value.startswith("#"):
                made.set("href", f"#{name}-{value[1:]}")
            elif tag == "image" and PNG.fullmatch(value):
                made.set("href", value)
        elif key == "id":
            made.set("id", f"{name}-{value}")
        elif key in ATTRIBUTES and _harmless(value):
            value = ADDRESS.sub(lambda match: f"url(#{name}-{match[1]})", value)
            made.set(key, COLOUR.sub(lambda match: VARIABLES.get(match[0].lower(), match[0]), value))
    made.extend(child for child in (_kept(each, name) for each in element) if child is not None)
    return made


def _harmless(value: str) -> bool:
    """Allow only URLs that are the figure's own ids."""
    rest = ADDRESS.sub("", value).lower()
    return not any(word in rest for word in ("url", "expression", "javascript:", "@import", "\\"))
