"""Tables of the atlas: one TSV file per category, one row per subject.

`-` marks an empty cell. `A/B` is written as A, and B is accepted as an answer too.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

Row = dict[str, tuple[str, ...]]


@cache
def table(category: str) -> tuple[Row, ...]:
    """Rows of a category; every filled cell is the written form followed by accepted variants.

    >>> table("countries")[0]["capital"]
    ('Paris',)
    """
    text = files(__package__).joinpath("tables", f"{category}.tsv").read_text("utf-8")
    head, *lines = (line.split("\t") for line in text.splitlines())
    return tuple(
        {column: tuple(cell.split("/")) for column, cell in zip(head, line, strict=True) if cell != "-"}
        for line in lines
    )
