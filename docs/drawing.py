"""What the scripts that draw figures of the documentation share: runs that are made once, small files, tables."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from floatlens.cli.main import run
from floatlens.findings import style
from floatlens.findings.style import short
from recipes.results.keep import WIDTH, shrink

DOCS = Path(__file__).parent


def make_run(target: Path, command: str) -> Path:
    """Return the run folder `target`; the command is run if the folder does not exist."""
    print(f"floatlens {command}")
    if not target.exists():
        words = [*shlex.split(command)[:-1], str(target)]
        if code := run(words):
            raise SystemExit(code)
    return target


def save(figure: Any, target: Path) -> None:
    """Save a figure as a PNG file with few colours."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with style.sheet():
        figure.savefig(target, dpi=WIDTH / style.WIDTH)
    shrink(target, target)
    print(f"{target.relative_to(DOCS)}: {target.stat().st_size // 1000} kB")


def table(verdicts: list[Any]) -> str:
    """Return the verdicts as a Markdown table."""
    rows = ["| claim | models | value [95 % interval] | n | verdict |", "|---|---|---|---|---|"]
    for v in verdicts:
        value, low, high = (x + 0.0 for x in (v.value, *v.interval))  # turns −0 into 0
        reason = f": {v.reason}" if v.reason else ""
        cells = [v.claim, ", ".join(map(short, v.models)), f"{value:.3g} [{low:.3g}, {high:.3g}]", str(v.n)]
        rows.append(f"| {' | '.join(cells)} | {v.verdict}{reason} |")
    return "\n".join(rows)
