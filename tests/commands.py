"""Run a command line in the test process and return its output."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

from floatlens.cli import main


class Done(NamedTuple):
    stdout: str
    stderr: str


def run(*words: object, code: int = 0) -> Done:
    """Run the program in this process; importing torch anew for every command line would take most of the time."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        found = main.run([str(word) for word in words])
    assert found == code, out.getvalue() + err.getvalue()
    return Done(out.getvalue(), err.getvalue())
