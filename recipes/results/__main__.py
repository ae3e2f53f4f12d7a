"""Make the results: `python -m recipes.results plan`, `run` (hours, resumable), `write`.

    python -m recipes.results plan                       hours that each run takes, estimated from the models' shapes
    python -m recipes.results run [NAME...] --size full  the runs of all parts, or of some parts or runs
    python -m recipes.results write                      docs/results.md and docs/results/ from the runs that are kept

Parts: small, texts, real, deployment, film; `plan` lists the runs. `make results` does all three.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from floatlens.cli.main import run as floatlens
from floatlens.errors import FloatLensError
from recipes.results import film, page, texts
from recipes.results.keep import failures, jobs_of, keep, kept_runs, matching, public
from recipes.results.parts import PARTS, Job, Place
from recipes.results.sizes import SIZES

TIMES = "times.json"


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the results of docs/results.md")
    parser.add_argument("what", choices=["plan", "run", "write"])
    parser.add_argument("names", nargs="*", help=f"parts ({', '.join(PARTS)}) or single runs (default: all)")
    parser.add_argument("--size", choices=list(SIZES), default="full")
    parser.add_argument("--runs", type=Path, default=Path("results"), help="folder of the runs; not in the repository")
    parser.add_argument("--data", type=Path, default=folder("RESULTS_DATA"), help="folder of the real questions")
    parser.add_argument(
        "--adapters", type=Path, default=folder("RESULTS_ADAPTERS"), help="folder of at-TOKENS adapters"
    )
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="folder that write writes to")
    given = parser.parse_args()
    # Only results of full size belong into the repository.
    kept = given.docs / "results" / "runs" if given.size == "full" else given.runs / "kept"
    place = Place(given.runs, kept, given.data, given.adapters)
    jobs = {part.name: part.jobs(SIZES[given.size], place) for part in PARTS.values()}
    chosen = choose(jobs, given.names)
    if unknown := [name for name in given.names if name not in PARTS and not matching(by_name(jobs), name)]:
        parser.error(f"there is no part or run {unknown[0]!r}; python -m recipes.results plan lists them")
    if given.what == "plan":
        page.print_plan(chosen, jobs_of(kept_runs(place.kept)))
        return 0
    if given.what == "write":
        page.write(given.docs, place, {part.name: part.missing(place) for part in PARTS.values()}, jobs)
        return 0
    for part in PARTS.values():
        for name, reason in part.missing(place).items() if not given.names or part.name in given.names else ():
            print(f"{part.title}: without {name}: {reason}", flush=True)
    done = [run_job(job, place) for job in chosen]
    return 0 if all(done) else 1


def by_name(jobs: Mapping[str, Sequence[Job]]) -> dict[str, Path]:
    """Return the names of all runs, as `matching` takes them."""
    return {job.name: Path(job.name) for several in jobs.values() for job in several}


def choose(jobs: Mapping[str, Sequence[Job]], names: Sequence[str]) -> list[Job]:
    """Return the runs of the named parts, the named runs, and those that begin with a name; all without names."""
    runs = by_name(jobs)
    wanted = [key for name in names if name not in PARTS for key in ([name] if name in runs else matching(runs, name))]
    return [
        job for part, several in jobs.items() for job in several if not names or part in names or job.name in wanted
    ]


def folder(variable: str) -> Path | None:
    """Return the folder that an environment variable names."""
    return Path(os.environ[variable]) if os.environ.get(variable) else None


def run_job(job: Job, place: Place) -> bool:
    """Run a job and keep its results, unless those of the same command are kept; one that was interrupted is resumed."""
    kept = jobs_of(kept_runs(place.kept))
    if job.name in kept and kept[job.name]["words"] == public(list(job.words)):
        print(f"{job.name} is kept in {place.kept}; remove it there to run it again", flush=True)
        return True
    print(f"{job.title}: floatlens {' '.join(job.words)}", flush=True)
    times = read_times(place.runs)
    target, began, done = place.runs / job.name, time.monotonic(), False
    try:
        done = start(job, target)
    finally:
        seconds = round(times.get(job.name, 0.0) + time.monotonic() - began, 1)
        place.runs.mkdir(parents=True, exist_ok=True)
        (place.runs / TIMES).write_text(json.dumps({**read_times(place.runs), job.name: seconds}, indent=2) + "\n")
    if done and (reasons := failures(target)):
        print(f"{job.name} is not kept, because parts of it failed: {'; '.join(reasons)}", file=sys.stderr)
        return False
    if done:
        keep(target, place.kept / job.name, {"title": job.title, "seconds": seconds, "words": list(job.words)})
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


def read_times(runs: Path) -> dict[str, float]:
    """Return the seconds that each run took so far."""
    path = runs / TIMES
    found: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    return found


if __name__ == "__main__":
    sys.exit(main())
