"""Write docs/verdicts.md: every verdict of the kept results, by finding.

    python docs/scripts/list_verdicts.py

`make results` keeps the verdicts in docs/results/claims.parquet; `tests/test_docs.py` checks that the page is current.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from floatlens.findings.finding import FINDINGS

DOCS = Path(__file__).parents[1]
PAGE = DOCS / "verdicts.md"
WORDS = {"supported": "holds", "not supported": "fails"}  # of runs made before the words changed
HEAD = """# All verdicts

Every claim that was tested on the bundled models, also where it fails. This is the only page with single verdicts: it is
generated from `docs/results/claims.parquet` by `python docs/scripts/list_verdicts.py`. [All claims](claims.md) has the
definitions, [How to read a verdict](intervals.md) the words. Click a column to sort; type to filter.

{counts}
"""


def page() -> str:
    """Return the page."""
    table = pd.read_parquet(DOCS / "results" / "claims.parquet")
    table["verdict"] = table["verdict"].replace(WORDS)
    counts = ", ".join(f"{word} {count}" for word, count in table["verdict"].value_counts().items())
    parts = [HEAD.format(counts=f"{len(table)} verdicts: {counts}.")]
    for name in FINDINGS.names():
        found = table[table["finding"] == name]
        if len(found):
            parts += [f"## {name}\n", "| claim | models | run | value | low | high | n | verdict |", f"|{'---|' * 8}"]
            parts += [row(found_row) for found_row in found.to_dict("records")]
            parts.append("")
    return "\n".join(parts)


def row(found: dict[str, object]) -> str:
    """Return a verdict as a row in Markdown."""
    numbers = [f"{found[name]:.3g}" for name in ("value", "low", "high")]
    cells = [
        f"{found['claim']} (`{found['id']}`)",
        found["models"],
        found["run"],
        *numbers,
        found["n"],
        found["verdict"],
    ]
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
