"""Make the page of results.

    floatlens study tiny-mdm tiny-arm --beyond --skip causes --data world:fresh --data world:hops --passages 5 --out RUN
    python -m recipes.results keep RUN    docs/results/claims.parquet and the figures of the findings, from a study;
                                          of a track, its table and its figure
    python -m recipes.results write       docs/results.md and its figures, from the tables in the repository

`switch.py`, `explore.py` and `nulls.py` make the tables of the plan. Verdicts that were computed with a definition that has
changed since are dropped; `python docs/scripts/list_verdicts.py` lists the others.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import pandas as pd

from recipes.results import draw, page

COLUMNS = ("id", "finding", "claim", "whose", "source", "statistic", "value", "n", "verdict", "reason")
RESULTS = page.DOCS / "results"


def keep(run: Path, claims_file: Path = RESULTS / "claims.parquet") -> None:
    """Keep the verdicts of a study instead of all earlier ones on its models: one study per models."""
    rows = []
    for claim in json.loads((run / "claims.json").read_text(encoding="utf-8"))["claims"]:
        low, high = claim["interval"]
        arm = claim["details"].get("ARM")
        numbers = {"low": low, "high": high, "arm": arm if isinstance(arm, int | float) else None}
        rows.append(
            {"run": run.name, "models": ", ".join(claim["models"])} | {c: claim.get(c) for c in COLUMNS} | numbers
        )
    table = pd.DataFrame(rows)
    if claims_file.exists():
        studied = {name for models in table["models"] for name in models.split(", ")} | {""}
        earlier = pd.read_parquet(claims_file)
        others = [not set(models.split(", ")) <= studied for models in earlier["models"]]
        table = pd.concat([table, earlier[others]], ignore_index=True)
    table = table.astype({"value": float, "low": float, "high": float, "arm": float})
    table.to_parquet(claims_file, index=False, compression="zstd")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("keep", "write"))
    parser.add_argument("run", nargs="?", type=Path, help="folder of a study")
    args = parser.parse_args()
    if args.what == "write":
        page.write()
        return
    if (args.run / "track.parquet").exists():
        shutil.copy(args.run / "track.parquet", page.TABLES / "track-open-masked-0.parquet")
        draw.shrink(args.run / "figures" / "track.png", page.picture("track"))
        return
    keep(args.run)
    for shown in sorted((RESULTS / "figures").glob("*.png")):  # the pages on findings show these
        if (args.run / "figures" / shown.name).exists():
            draw.shrink(args.run / "figures" / shown.name, shown)


if __name__ == "__main__":
    main()
