"""Table 1 of the paper: rows are models without and with passages, columns data sets; best in bold, gain in brackets.

It is printed as one table per data set, and written as Markdown, LaTeX and CSV. Numbers are percentages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
from rich.markup import escape
from rich.table import Table

from floatlens.evaluation.sources import CLOSED, OPEN

COLUMNS = {"accuracy": "Acc", "accuracy_words": "Words", "f1": "F1", "em": "EM"}
SUFFIX = {CLOSED: "", OPEN: " + passages"}


class Cell(NamedTuple):
    """A percentage, whether it is the best of its column, and the gain from passages."""

    value: float | None
    best: bool = False
    gain: float | None = None

    def text(self, bold: str = "{}") -> str:
        """Return the cell as text; `bold` is the form of the best of its column.

        >>> Cell(55.3, True, gain=43.53).text("**{}**")
        '**55.30 (+43.53)**'
        """
        if self.value is None:
            return "–"
        text = f"{self.value:.2f}" + (f" ({self.gain:+.2f})" if self.gain is not None else "")
        return bold.format(text) if self.best else text


@dataclass(frozen=True)
class Table1:
    """The table as rows of cells; `data` are the groups of columns, `counts` the number of answers per row and group."""

    data: list[str]
    rows: list[tuple[str, list[Cell]]]
    counts: list[list[int | None]]

    @property
    def heads(self) -> list[str]:
        return [f"{data} {short}" for data in self.data for short in COLUMNS.values()]

    def terminal(self) -> list[Table]:
        tables = []
        for group, data in enumerate(self.data):
            title = f"{data}: scores in %, best in bold, gain from passages in brackets, n answered questions"
            table = Table("model", title=escape(title))
            for head in (*COLUMNS.values(), "n"):
                table.add_column(head, justify="right")
            for (name, cells), counts in zip(self.rows, self.counts, strict=True):
                texts = [cell.text("[bold]{}[/bold]") for cell in cells[group * len(COLUMNS) :][: len(COLUMNS)]]
                table.add_row(escape(name), *texts, "–" if counts[group] is None else str(counts[group]))
            tables.append(table)
        return tables

    def markdown(self) -> str:
        lines = [["model", *self.heads], ["---", *["---:"] * len(self.heads)]]
        lines += [[name, *(cell.text("**{}**") for cell in cells)] for name, cells in self.rows]
        return "".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |\n" for line in lines)

    def latex(self) -> str:
        """Return the table for LaTeX's package booktabs."""
        texts = [[cell.text(r"\textbf{{{}}}").replace("–", "--") for cell in cells] for _, cells in self.rows]
        columns = pd.MultiIndex.from_product([self.data, COLUMNS.values()])
        style = pd.DataFrame(texts, [name for name, _ in self.rows], columns).style
        style = style.format_index(escape="latex").format_index(escape="latex", axis=1)
        return str(style.to_latex(hrules=True, multicol_align="c"))

    def csv(self) -> str:
        heads = [_harmless(each) for head in self.heads for each in (head, f"{head} gain")]
        numbers = [[number for cell in cells for number in (cell.value, cell.gain)] for _, cells in self.rows]
        frame = pd.DataFrame(numbers, [_harmless(name) for name, _ in self.rows], heads, dtype=float)
        return frame.to_csv(float_format="%.4f", index_label="model", lineterminator="\n")


def table1(results: Sequence[dict[str, Any]], averages: Sequence[dict[str, Any]] = ()) -> Table1:
    """Arrange results, and macro averages, as the paper's Table 1."""
    entries = [*results, *averages]
    found = {(e["model"], e["condition"], e["data"]): e for e in entries}
    data = list(dict.fromkeys(e["data"] for e in entries))
    conditions = dict.fromkeys((CLOSED, OPEN, *(e["condition"] for e in entries)))
    keys = [(m, c) for m in dict.fromkeys(e["model"] for e in entries) for c in conditions]
    keys = [(m, c) for m, c in keys if any((m, c, d) in found for d in data)]

    def percent(model: str, condition: str, data: str, score: str) -> float | None:
        share = found.get((model, condition, data), {}).get(score)
        return None if share is None else 100 * share

    rows = []
    for model, condition in keys:
        cells = []
        for d in data:
            for score in COLUMNS:
                value = percent(model, condition, d, score)
                column = [v for m, c in keys if (v := percent(m, c, d, score)) is not None]
                base = percent(model, CLOSED, d, score) if condition == OPEN else None
                gain = value - base if value is not None and base is not None else None
                best = value is not None and len(keys) > 1 and round(value, 2) == round(max(column), 2)
                cells.append(Cell(value, best, gain))
        rows.append((f"{model}{SUFFIX.get(condition, f' ({condition})')}", cells))
    return Table1(data, rows, [[found.get((m, c, d), {}).get("n") for d in data] for m, c in keys])


def _harmless(text: str) -> str:
    """Return a cell that a spreadsheet does not run as a formula."""
    return f"'{text}" if text[:1] in "=+-@\t\r" else text
