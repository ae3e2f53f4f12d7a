"""Print the statistics of the paper's own figures: `python -m floatlens.paper`."""

from __future__ import annotations

from floatlens.paper.facts import facts, table

if __name__ == "__main__":
    print(table(facts()))
