"""What is kept of a finished run: its claims, results and tables, without anything that concerns one machine only.

The results take hours. With this, they can be made one run at a time, on several machines: a run that is kept in the
repository is not made again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

JOB = "job.json"
FILES = ("claims.json", "results.json", "manifest.json")
# Studies whose figures are shown: which figures (none: all), and the beginning of their names.
FIGURES: dict[str, tuple[tuple[str, ...], str]] = {
    "small-attention": ((), ""),
    "small-knowledge": ((), ""),
    "small-causes": ((), ""),
    "real-attention": (("drift", "drift-numbers", "absorption", "tokens", "heads"), "smollm2-"),
}
WIDTH, COLOURS = 1400, 256  # of a picture: pixels across, and colours; keeps files small
SCORES = "scores.parquet"
# Of answers: which question, under which condition, with which scores. Never their text, which may not be ours.
SCORED = ("id", "model", "kind", "data", "condition", "stress", "level", "x", "intervention", "of")
SCORED += ("em", "accuracy", "accuracy_words", "f1")
PRIVATE = ("machine", "command", "arguments", "host", "run")


def keep(run: Path, target: Path, job: Mapping[str, Any]) -> None:
    """Copy what is kept of a run to `target`; `job` says with which command it was made, and in how many seconds."""
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        if (run / name).exists():
            content = json.loads((run / name).read_text(encoding="utf-8"))
            (target / name).write_text(
                json.dumps(public(content), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
            )
    if (run / "answers.parquet").exists():
        keep_scores(run / "answers.parquet", target / SCORES)
    if run.name in FIGURES:
        keep_figures(run, target.parent.parent / "figures", *FIGURES[run.name])
    if (run / "manifest.json").exists():
        if (run / "report.html").exists() and run.name == "small-attention":
            shutil.copy(run / "report.html", target.parent.parent / "report.html")
    else:  # texts and film: tables that are written by their own scripts
        for table in run.glob("*.parquet"):
            keep_table(table, target / table.name)
    (target / JOB).write_text(json.dumps(public(dict(job)), indent=1) + "\n", encoding="utf-8")


def keep_scores(answers: Path, target: Path) -> None:
    """Write the scores of all answers, without questions and answers, to a small table."""
    table = pd.read_parquet(answers, columns=list(SCORED))
    table["x"] = pd.to_numeric(table["x"])
    table.to_parquet(target, index=False, compression="zstd")


def keep_table(source: Path, target: Path) -> None:
    """Write a table with numbers of 32 bits, compressed."""
    table = pd.read_parquet(source)
    wide = table.select_dtypes("float64").columns
    table.astype(dict.fromkeys(wide, "float32")).to_parquet(target, index=False, compression="zstd")


def scores_of(runs: Mapping[str, Path]) -> pd.DataFrame:
    """Return the scores of all answers of some kept runs; those without answers are left out."""
    tables = [pd.read_parquet(path / SCORES) for path in runs.values() if (path / SCORES).exists()]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=list(SCORED))


def keep_figures(run: Path, target: Path, names: Collection[str] = (), prefix: str = "") -> None:
    """Copy the figures of a study as small files: all of them, or those with these names."""
    target.mkdir(parents=True, exist_ok=True)
    for figure in sorted((run / "figures").glob("*.png")):
        if not names or figure.stem in names:
            shrink(figure, target / f"{prefix}{figure.name}")


def shrink(source: Path, target: Path) -> None:
    """Write a picture of at most `WIDTH` pixels across with few colours."""
    with Image.open(source) as picture:
        small = picture.convert("RGB")
        if small.width > WIDTH:
            small = small.resize((WIDTH, round(small.height * WIDTH / small.width)), Image.Resampling.LANCZOS)
        small = small.quantize(COLOURS, Image.Quantize.MEDIANCUT, kmeans=2, dither=Image.Dither.NONE)
    small.save(target, optimize=True)


def failures(run: Path) -> list[str]:
    """Return the parts of a run that failed, each with its reason."""
    path = run / "results.json"
    found = json.loads(path.read_text(encoding="utf-8")).get("failed", {}) if path.exists() else {}
    return [f"{part}: {reason}" for part, reason in found.items()]


def kept_runs(kept: Path) -> dict[str, Path]:
    """Return the folders of all kept runs by name, in the order of their names."""
    return {path.parent.name: path.parent for path in sorted(kept.glob(f"*/{JOB}"))}


def jobs_of(runs: Mapping[str, Path]) -> dict[str, Any]:
    """Return command and seconds of each kept run."""
    return {name: json.loads((path / JOB).read_text(encoding="utf-8")) for name, path in runs.items()}


def matching(runs: Mapping[str, Path], *names: str) -> dict[str, Path]:
    """Return the runs with one of these names, and those of single models whose names begin with one.

    >>> matching({"real-noise-smollm2": Path("a"), "real-answers": Path("b"), "real": Path("c")}, "real-noise", "real")
    {'real-noise-smollm2': PosixPath('a'), 'real-answers': PosixPath('b'), 'real': PosixPath('c')}
    """
    return {key: path for key, path in runs.items() if any(key == name or key.startswith(f"{name}-") for name in names)}


def public(value: Any) -> Any:
    """Return JSON without what concerns one machine only; of an absolute path its last part stays.

    >>> public({"machine": "m", "data": ["/home/me/nq.jsonl", "atlas"]})
    {'data': ['nq.jsonl', 'atlas']}
    """
    if isinstance(value, dict):
        return {public(key): public(part) for key, part in value.items() if key not in PRIVATE}
    if isinstance(value, list | tuple):
        return [public(part) for part in value]
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value
