"""A process that has imported everything and forks a child for each command line: a start costs milliseconds.

Reads one JSON list per line: ["run", words, error file, strike], answered by a pid; ["wait", pid], by its exit code.
A strike is a signal that the child gets at its n-th touch of a file in its run folder (to write or rename it): a moment
like any other, but one that does not depend on how fast or busy the machine is.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


Strike = tuple[int, int]  # signal, at which touch


def touches(errors: Path) -> int:
    """How often the command with this file of errors touched a file of its run, if it lived to say so."""
    return int(errors.with_suffix(".touches").read_text())


class ForkServer:
    """The test's side."""

    def __init__(self) -> None:
        environment = os.environ | {
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "MPLBACKEND": "Agg",
        }
        command = [sys.executable, "-m", "tests.store.fork_server"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process: Any = subprocess.Popen(command, env=environment, cwd=ROOT, **pipes)

    def start(self, words: tuple[object, ...], errors: Path, strike: Strike | None = None) -> int:
        return self._ask(["run", [str(word) for word in words], str(errors), strike])

    def wait(self, pid: int) -> int:
        return self._ask(["wait", pid])

    def run(self, *words: object, errors: Path, strike: Strike | None = None) -> int:
        return self.wait(self.start(words, errors, strike))

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(30)

    def _ask(self, question: list[Any]) -> int:
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


def watched(place: str, strike: Strike | None) -> list[int]:
    """Counts the touches of files under a place from now on, and strikes at the right one."""
    count = [0]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "os.rename" or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR))
        if writes and str(arguments[0]).startswith(place):
            count[0] += 1
            if strike is not None and count[0] == strike[1]:
                os.kill(os.getpid(), strike[0])

    sys.addaudithook(hook)
    return count


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
                words, errors, strike = rest
                # As in a terminal: who was started in the background by a shell has it ignored.
                signal.signal(signal.SIGINT, signal.default_int_handler)
                count = watched(words[words.index("--out") + 1], strike)
                os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                code = run(words)
                sys.stderr.flush()
                Path(errors).with_suffix(".touches").write_text(str(count[0]))
                os._exit(code)
        print(answer, flush=True)


if __name__ == "__main__":
    main()
