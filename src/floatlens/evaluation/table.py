"""Table 1 of the paper: rows are models without and with passages, columns data sets; best in bold, gain in brackets.

It is printed as a table, and written as Markdown, LaTeX and CSV. Numbers are percentages.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.markup import escape
from rich.table import Table

from floatlens.evaluation.sources import CLOSED, OPEN

COLUMNS = (("accuracy", "Acc"), ("accuracy_words", "Words"), ("f1", "F1"), ("em", "EM"))
SUFFIX = {CLOSED: "", OPEN: " + passages"}
ESCAPES = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


@dataclass(frozen=True)
class Cell:
    """A percentage, whether it is the best of its column, and the gain from passages."""

    value: float | None
    best: bool = False
    gain: float | None = None

    def plain(self) -> str:
        """Return the cell as text.

        >>> Cell(55.3, gain=43.53).plain()
        '55.30 (+43.53)'
        """
        if self.value is None:
            return "–"
        return f"{self.value:.2f}" + (f" ({self.gain:+.2f})" if self.gain is not None else "")


@dataclass(frozen=True)
class Table1:
    """The table as rows of cells; `data` are the groups of columns, `counts` the number of answers per row and group."""

    data: list[str]
    rows: list[tuple[str, list[Cell]]]
    counts: list[list[int | None]] = field(default_factory=list)

    @property
    def heads(self) -> list[str]:
        return [f"{data} {short}" for data in self.data for _, short in COLUMNS]

    def terminal(self, width: int = 120) -> list[Table]:
        """Return as many tables as needed to show the data sets side by side within the width."""
        names = max([len(name) for name, _ in self.rows], default=0)
        column = max([len(cell.plain()) for _, cells in self.rows for cell in cells], default=0) + 3
        number = max([len(str(n)) for counts in self.counts for n in counts], default=1) + 3
        fit = max(1, (width - names - 4) // (column * len(COLUMNS) + number))
        tables = []
        for first in range(0, len(self.data), fit):
            title = "Scores in %, best in bold, gain from passages in brackets, n answered questions"
            table = Table(title=title if not first else None)
            table.add_column("model", overflow="fold")
            groups = range(len(self.data))[first : first + fit]
            for group in groups:
                for head in (*(short for _, short in COLUMNS), "n"):
                    table.add_column(escape(f"{self.data[group]}\n{head}"), justify="right")
            for row, (name, cells) in enumerate(self.rows):
                texts = [f"[bold]{c.plain()}[/bold]" if c.best else c.plain() for c in cells]
                line = []
                for group in groups:
                    line += texts[group * len(COLUMNS) : (group + 1) * len(COLUMNS)]
                    n = self.counts[row][group] if self.counts else None
                    line.append("–" if n is None else str(n))
                table.add_row(escape(name), *line)
            tables.append(table)
        return tables

    def markdown(self) -> str:
        lines = [["model", *self.heads], ["---", *["---:"] * len(self.heads)]]
        for name, cells in self.rows:
            lines.append([name, *(f"**{c.plain()}**" if c.best else c.plain() for c in cells)])
        return "".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |\n" for line in lines)

    def latex(self) -> str:
        width = len(COLUMNS)
        groups = " & ".join(rf"\multicolumn{{{width}}}{{c}}{{{_escaped(data)}}}" for data in self.data)
        rules = "".join(rf"\cmidrule(lr){{{2 + width * i}-{1 + width * (i + 1)}}}" for i in range(len(self.data)))
        heads = " & ".join(short for _ in self.data for _, short in COLUMNS)
        body = []
        for name, cells in self.rows:
            shown = [rf"\textbf{{{c.plain()}}}" if c.best else c.plain().replace("–", "--") for c in cells]
            body.append(f"{_escaped(name)} & {' & '.join(shown)} " + r"\\")
        return "\n".join(
            [
                r"% needs \usepackage{booktabs}",
                rf"\begin{{tabular}}{{l{'r' * (width * len(self.data))}}}",
                r"\toprule",
                f" & {groups} " + r"\\",
                rules,
                f"model & {heads} " + r"\\",
                r"\midrule",
                *body,
                r"\bottomrule",
                r"\end{tabular}",
                "",
            ]
        )

    def csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["model", *(_harmless(h) for head in self.heads for h in (head, f"{head} gain"))])
        for name, cells in self.rows:
            numbers = [x for c in cells for x in (c.value, c.gain)]
            writer.writerow([_harmless(name), *("" if x is None else f"{x:.4f}" for x in numbers)])
        return out.getvalue()


def table1(results: Sequence[dict[str, Any]], averages: Sequence[dict[str, Any]] = ()) -> Table1:
    """Arrange results, and macro averages, as the paper's Table 1."""
    entries = [*results, *averages]
    found = {(e["model"], e["condition"], e["data"]): e for e in entries}
    data = list(dict.fromkeys(e["data"] for e in entries))
    conditions = dict.fromkeys((CLOSED, OPEN, *(e["condition"] for e in entries)))
    keys = [(m, c) for m in dict.fromkeys(e["model"] for e in entries) for c in conditions]
    keys = [(m, c) for m, c in keys if any((m, c, d) in found for d in data)]
    values = {
        (m, c, d, s): _percent(found.get((m, c, d), {}).get(s)) for m, c in keys for d in data for s, _ in COLUMNS
    }
    rows = []
    for model, condition in keys:
        cells = []
        for d in data:
            for s, _ in COLUMNS:
                value = values[model, condition, d, s]
                column = [v for m, c in keys if (v := values[m, c, d, s]) is not None]
                base = values.get((model, CLOSED, d, s)) if condition == OPEN else None
                gain = value - base if value is not None and base is not None else None
                best = value is not None and len(keys) > 1 and round(value, 2) == round(max(column), 2)
                cells.append(Cell(value, best, gain))
        rows.append((f"{model}{SUFFIX.get(condition, f' ({condition})')}", cells))
    counts = [[found.get((m, c, d), {}).get("n") for d in data] for m, c in keys]
    return Table1(data, rows, counts)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _escaped(text: str) -> str:
    return "".join(ESCAPES.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)


def _harmless(text: str) -> str:
    """Return a cell that a spreadsheet does not run as a formula."""
    return f"'{text}" if text[:1] in "=+-@\t\r" else text
