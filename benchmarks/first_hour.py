"""CPU seconds of a first hour: from a LLaDA checkpoint and a JSONL file to figures and Table 1, and the README's commands.

    python -m benchmarks.first_hour

The aim is 90 CPU seconds for the figures and Table 1. The checkpoint is tiny-mdm, which has the files and names of LLaDA's.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import floatlens as fl
from floatlens.models import bundled

AIM = 90
FIGURES = ("drift", "absorption", "geometry", "heads", "flow", "stress")
README = Path(__file__).parents[1] / "README.md"
LLADA = "GSAI-ML/LLaDA-8B-Instruct"


def make_files(folder: Path, questions: int = 4) -> None:
    """Write `llada`, a checkpoint in LLaDA's layout, and `mine.jsonl`, questions with passages."""
    shutil.copytree(bundled.path("tiny-mdm"), folder / "llada")
    with (folder / "mine.jsonl").open("w", encoding="utf-8") as file:
        for sample in fl.read("world:fresh", split="test", limit=questions, passages=5):
            passages = [{"title": passage.title, "text": passage.text} for passage in sample.passages]
            record = {"id": sample.id, "question": sample.question, "answers": list(sample.answers)}
            gold = [index for index, passage in enumerate(sample.passages) if passage.gold]
            file.write(json.dumps({**record, "passages": passages, "gold": gold}) + "\n")


def run(folder: Path, line: str) -> float:
    """Run a command in a folder; returns its CPU seconds, with those of its workers."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [sys.executable, "-m", *shlex.split(line)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(f"{line}\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    print(f"{seconds:6.1f} s  {line}", flush=True)
    return seconds


def walk(folder: Path, *options: str) -> float:
    """Make the figures and Table 1 from `llada` and `mine.jsonl`; returns CPU seconds."""
    study = ["floatlens", "study", "./llada", "tiny-arm", "--data", "mine.jsonl", "--out", "study", *options]
    seconds = run(folder, shlex.join(study))
    made = [folder / "study" / "figures" / f"{name}.png" for name in FIGURES] + [folder / "study" / "table1.md"]
    missing = [str(path) for path in made if not path.is_file() or not path.stat().st_size]
    if missing:
        raise SystemExit(f"not made: {', '.join(missing)}")
    return seconds


def readme_commands() -> list[str]:
    """The README's commands for LLaDA-8B, for the small checkpoint on a CPU; `explore`, which does not end, is left out."""
    [block] = [
        block for block in re.findall(r"```sh\n(.*?)```", README.read_text(encoding="utf-8"), re.S) if LLADA in block
    ]
    small = block.replace(LLADA, "./llada").replace(" --device cuda", "").replace(" --dtype bfloat16", "")
    return [line.replace("--layer 0,31", "--layer 0,5") for line in small.splitlines() if " explore " not in line]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder)
        seconds = walk(folder)
        print(
            f"{seconds:6.1f} s  from a checkpoint and a JSONL file to six figures and Table 1, in one command (aim {AIM})"
        )
        print("the README's commands, on a checkpoint of LLaDA's layout:")
        for line in readme_commands():
            run(folder, line)


if __name__ == "__main__":
    main()
