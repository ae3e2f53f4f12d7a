"""Answers of earlier runs: what `floatlens eval` and `floatlens stress` left in their run folders."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import pyarrow

from floatlens.errors import FloatLensError

Answers = pd.DataFrame | str | Path | Iterable[str | Path]
NEEDED = ("id", "model", "data", "condition", "accuracy", "kind")


def answers_of(source: Answers) -> pd.DataFrame:
    """One table from a table, a run folder or several; what is given twice counts once, the last."""
    if isinstance(source, pd.DataFrame):
        return source
    paths = [Path(source)] if isinstance(source, str | Path) else [Path(path) for path in source]
    tables = [_read(path) for path in paths]
    whole = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=list(NEEDED))
    if whole.empty:
        raise FloatLensError(
            f"{', '.join(map(str, paths)) or 'nothing'} holds no answers; run floatlens eval or stress"
        )
    return whole.drop_duplicates(["id", "model", "data", "condition"], keep="last").reset_index(drop=True)


def _read(path: Path) -> pd.DataFrame:
    file = path / "answers.parquet" if path.is_dir() else path
    try:
        table = pd.read_parquet(file)
    except FileNotFoundError:
        raise FloatLensError(
            f"{path} holds no answers.parquet; make it with floatlens eval or floatlens stress"
        ) from None
    except (OSError, pyarrow.ArrowException) as error:
        raise FloatLensError(
            f"{file} cannot be read ({str(error).splitlines()[0]}); run the evaluation again"
        ) from None
    if missing := [name for name in NEEDED if name not in table]:
        raise FloatLensError(f"{file} lacks the column {missing[0]!r}; it is no table of answers of floatlens")
    return table
