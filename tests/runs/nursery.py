"""A process that has imported everything and forks a child for each command line: a start costs milliseconds.

Reads one JSON list a line: ["run", words, standard error file], answered by a pid; ["wait", pid], by the exit code.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


class Nursery:
    """The test's side."""

    def __init__(self) -> None:
        environment = os.environ | {
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "MPLBACKEND": "Agg",
        }
        command = [sys.executable, "-m", "tests.runs.nursery"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process: Any = subprocess.Popen(command, env=environment, cwd=ROOT, **pipes)

    def start(self, words: tuple[object, ...], errors: Path) -> int:
        return self._ask(["run", [str(word) for word in words], str(errors)])

    def wait(self, pid: int) -> int:
        return self._ask(["wait", pid])

    def run(self, *words: object, errors: Path) -> int:
        return self.wait(self.start(words, errors))

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(30)

    def _ask(self, question: list[Any]) -> int:
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


def main() -> None:
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401

    from floatlens.cli.main import run

    torch.set_num_threads(1)
    while line := sys.stdin.readline():
        what, *rest = json.loads(line)
        if what == "wait":
            answer = os.waitstatus_to_exitcode(os.waitpid(rest[0], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                words, errors = rest
                os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                code = run(words)
                sys.stderr.flush()
                os._exit(code)
        print(answer, flush=True)


if __name__ == "__main__":
    main()
