"""Make the results: `python -m recipes.results plan`, `run` (hours, resumable), `write`.

    python -m recipes.results plan                       hours that each run takes, estimated from the models' shapes
    python -m recipes.results run [PART...] --size full  the runs of all parts, or of some
    python -m recipes.results write                      docs/results.md and docs/results/ from the runs that are there

Parts: small, texts, real, deployment, film. `make results` does all three.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from floatlens.cli.main import run as floatlens
from floatlens.errors import FloatLensError
from recipes.results import film, page, texts
from recipes.results.parts import PARTS, Job, Place
from recipes.results.sizes import SIZES

TIMES = "times.json"


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the results of docs/results.md")
    parser.add_argument("what", choices=["plan", "run", "write"])
    parser.add_argument("parts", nargs="*", help=f"parts to run, of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--size", choices=list(SIZES), default="full")
    parser.add_argument("--runs", type=Path, default=Path("results"), help="folder of the runs; not in the repository")
    parser.add_argument("--data", type=Path, default=folder("RESULTS_DATA"), help="folder of the real questions")
    parser.add_argument(
        "--adapters", type=Path, default=folder("RESULTS_ADAPTERS"), help="folder of at-TOKENS adapters"
    )
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="folder that write writes to")
    given = parser.parse_args()
    if unknown := [name for name in given.parts if name not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; use some of {', '.join(PARTS)}")
    place = Place(given.runs, given.data, given.adapters)
    chosen = [PARTS[name] for name in given.parts or PARTS]
    sizes = SIZES[given.size]
    jobs = {part.name: part.jobs(sizes, place) for part in chosen}
    if given.what == "plan":
        page.print_plan([job for several in jobs.values() for job in several])
        return 0
    if given.what == "write":
        page.write(given.docs, place, {part.name: part.missing(place) for part in chosen}, jobs, read_times(place.runs))
        return 0
    failed = 0
    for part in chosen:
        for name, reason in part.missing(place).items():
            print(f"{part.title}: without {name}: {reason}", flush=True)
        for job in jobs[part.name]:
            failed += not run_job(job, place.runs)
    return 1 if failed else 0


def folder(variable: str) -> Path | None:
    """Return the folder that an environment variable names."""
    return Path(os.environ[variable]) if os.environ.get(variable) else None


def run_job(job: Job, runs: Path) -> bool:
    """Run a job unless it is finished, and keep its time; one that was interrupted is resumed."""
    times = read_times(runs)
    known = times.get(job.name, {"seconds": 0.0})
    if known.get("finished"):
        return True
    print(f"{job.title}: floatlens {' '.join(job.words)}", flush=True)
    target, began, done = runs / job.name, time.monotonic(), False
    try:
        done = start(job, target)
    finally:
        known = {"seconds": round(known["seconds"] + time.monotonic() - began, 1), "finished": done, "words": job.words}
        runs.mkdir(parents=True, exist_ok=True)
        (runs / TIMES).write_text(json.dumps({**read_times(runs), job.name: known}, indent=2) + "\n")
    return done


def start(job: Job, target: Path) -> bool:
    """Run a job; returns whether it succeeded."""
    if job.words[0] not in ("texts", "film"):
        resume = ("--resume",) if target.exists() else ()
        return floatlens([*job.words, "--out", str(target), *resume]) == 0
    parser = argparse.ArgumentParser()
    parser.add_argument("what")
    parser.add_argument("names", nargs="+")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--plain", type=Path)
    given = parser.parse_args(job.words)
    try:
        if given.what == "texts":
            texts.run(given.names, target, given.limit, given.plain)
        else:
            film.run(Path(given.names[0]), target, given.limit)
    except FloatLensError as error:
        print(f"{job.title} failed: {error}", file=sys.stderr)
        return False
    return True


def read_times(runs: Path) -> dict[str, Any]:
    """Return seconds, command and state of the runs so far."""
    path = runs / TIMES
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


if __name__ == "__main__":
    sys.exit(main())
