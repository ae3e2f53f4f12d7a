"""Table 1 of the paper: rows are models without and with passages, columns data sets; best in bold, gain in brackets.

It is printed as one table per data set, and written as Markdown, LaTeX and CSV. Numbers are percentages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from rich.markup import escape
from rich.table import Table

from floatlens.evaluation.sources import CLOSED, OPEN

COLUMNS = {"accuracy": "Acc", "accuracy_words": "Words", "f1": "F1", "em": "EM"}
SUFFIX = {CLOSED: "", OPEN: " + passages"}
GAIN = " gain"


def table1(results: Sequence[Mapping[str, Any]], averages: Sequence[Mapping[str, Any]] = ()) -> pd.DataFrame:
    """Arrange results, and macro averages, as the paper's Table 1.

    Columns are (data set, score), (data set, score + " gain"), and (data set, "n"), the number of answers.
    """
    entries = {(e["model"], e["condition"], e["data"]): e for e in (*results, *averages)}
    models, conditions, data = ([*dict.fromkeys(key[i] for key in entries)] for i in range(3))
    rows = {}
    for model in models:
        for condition in dict.fromkeys((CLOSED, OPEN, *conditions)):
            row: dict[tuple[str, str], float | None] = {}
            for name in data:
                entry = entries.get((model, condition, name), {})
                base = entries.get((model, CLOSED, name), {}) if condition == OPEN else {}
                for score, short in COLUMNS.items():
                    value, without = entry.get(score), base.get(score)
                    row[name, short] = None if value is None else 100 * value
                    row[name, short + GAIN] = None if value is None or without is None else 100 * value - 100 * without
                row[name, "n"] = entry.get("n")
            if any((model, condition, name) in entries for name in data):
                rows[f"{model}{SUFFIX.get(condition, f' ({condition})')}"] = row
    columns = [(name, each + end) for name in data for each in COLUMNS.values() for end in ("", GAIN)]
    index = pd.MultiIndex.from_tuples([*columns, *((name, "n") for name in data)], names=["data", "score"])
    return pd.DataFrame([[row[key] for key in index] for row in rows.values()], list(rows), index, dtype=float)


def heads(table: pd.DataFrame) -> list[Any]:
    """Return the columns as (data set, score)."""
    return list(table.columns)


def cells(table: pd.DataFrame, bold: str) -> pd.DataFrame:
    """Return the texts of Table 1 by data set and score; `bold` is the form of the best of a column.

    >>> table = table1([{"model": "m", "condition": c, "data": "d", "f1": f} for c, f in ((CLOSED, 0.5), (OPEN, 0.7))])
    >>> cells(table, "**{}**")["d", "F1"].tolist()
    ['50.00', '**70.00 (+20.00)**']
    """
    found = {}
    for name, short in (key for key in heads(table) if key[1] in COLUMNS.values()):
        values = table[name, short]
        texts = [f"{value:.2f}" for value in values]
        texts = [t if g != g else f"{t} ({g:+.2f})" for t, g in zip(texts, table[name, short + GAIN], strict=True)]
        best = values.round(2) == round(values.max(), 2) if len(values) > 1 else values.isna() & False
        texts = [bold.format(text) if is_best else text for text, is_best in zip(texts, best, strict=True)]
        found[name, short] = ["–" if value != value else text for text, value in zip(texts, values, strict=True)]
    return pd.DataFrame(found, table.index)


def terminal(table: pd.DataFrame) -> list[Table]:
    """Return one table per data set for the terminal, with the number of answers."""
    texts, tables = cells(table, "[bold]{}[/bold]"), []
    for data in dict.fromkeys(name for name, _ in heads(table)):
        title = f"{data}: scores in %, best in bold, gain from passages in brackets, n answered questions"
        shown = Table("model", title=escape(title))
        for head in (*COLUMNS.values(), "n"):
            shown.add_column(head, justify="right")
        for (name, *row), n in zip(texts[data].itertuples(), table[data, "n"], strict=True):
            shown.add_row(escape(name), *row, "–" if n != n else f"{n:.0f}")
        tables.append(shown)
    return tables


def files(table: pd.DataFrame) -> dict[str, str]:
    """Return Table 1 as the contents of table1.md, table1.tex (for LaTeX's package booktabs) and table1.csv."""
    texts = cells(table, "**{}**")
    names = [" ".join(key) for key in heads(texts)]
    lines = [["model", *names], ["---", *["---:"] * len(names)], *([name, *row] for name, *row in texts.itertuples())]
    markdown = "".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |\n" for line in lines)

    style = cells(table, r"\textbf{{{}}}").replace("–", "--").style
    latex = style.format_index(escape="latex").format_index(escape="latex", axis=1)

    numbers = table[[key for key in heads(table) if key[1] != "n"]]
    numbers.columns = [_harmless(" ".join(key)) for key in heads(numbers)]
    csv = numbers.rename(_harmless).to_csv(float_format="%.4f", index_label="model", lineterminator="\n")
    return {
        "table1.md": markdown,
        "table1.tex": str(latex.to_latex(hrules=True, multicol_align="c")),
        "table1.csv": csv,
    }


def _harmless(text: str) -> str:
    """Return a cell that a spreadsheet does not run as a formula."""
    return f"'{text}" if text[:1] in "=+-@\t\r" else text
