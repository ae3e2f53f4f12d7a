"""Write docs/verdicts.md: every verdict of the kept results that was computed with today's definition, by finding.

    python docs/scripts/list_verdicts.py

`python -m recipes.results keep RUN` keeps the verdicts of a study in docs/results/claims.parquet; `tests/test_docs.py`
checks that the page is current.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from floatlens.findings.finding import CLAIMS, FINDINGS

DOCS = Path(__file__).parents[1]
PAGE = DOCS / "verdicts.md"
HEAD = """# All verdicts

Every claim that was tested on the bundled models with today's definition, also where it fails. This page is
generated from `docs/results/claims.parquet` by `python docs/scripts/list_verdicts.py`. [All claims](claims.md) has the
definitions, [How to read a verdict](intervals.md) the words. Click a column to sort; type to filter.

{counts}
"""


def page() -> str:
    """Return the page."""
    table = pd.read_parquet(DOCS / "results" / "claims.parquet")
    names = FINDINGS.names()
    today = {name: claim.statistic for name, claim in CLAIMS.items()}
    table = table[[today.get(id_) == defined for id_, defined in zip(table["id"], table["statistic"], strict=True)]]
    counts = ", ".join(f"{word} {count}" for word, count in table["verdict"].value_counts().items())
    parts = [HEAD.format(counts=f"{len(table)} verdicts: {counts}.")]
    for name in names:
        found = table[table["finding"] == name]
        parts.append(f"## {name}\n")
        if found.empty:
            parts.append("Not measured with today's definitions.")
        else:
            parts += ["| claim | verdict | models | value | low | high | n | run |", f"|{'---|' * 8}"]
            parts += [row(found_row) for found_row in found.to_dict("records")]
        parts.append("")
    return "\n".join(parts)


def row(found: dict[str, object]) -> str:
    """Return a verdict as a row in Markdown."""
    numbers = ["–" if pd.isna(found[name]) else f"{found[name]:.3g}" for name in ("value", "low", "high")]
    cells = [
        f"{CLAIMS[str(found['id'])].sentence} (`{found['id']}`)",
        found["verdict"],
        found["models"],
        *numbers,
        found["n"],
        found["run"],
    ]
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
