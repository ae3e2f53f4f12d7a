"""What `floatlens trace` of one prompt imports and starts: a short command should not wait for what it does not use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# Plots, engines, servers, notebooks, data sets and tests; statistics of scipy, of which transformers imports other parts.
NOT_NEEDED = (
    "matplotlib", "ray", "datasets", "starlette", "uvicorn", "anywidget", "IPython", "sklearn", "lm_eval", "pytest",
    "scipy.stats", "floatlens.findings", "floatlens.paper", "floatlens.explorer", "floatlens.report",
)  # fmt: skip

CODE = """
import subprocess, sys
started = []
start = subprocess.Popen.__init__
def count(self, *args, **kwargs):
    started.append(args)
    start(self, *args, **kwargs)
subprocess.Popen.__init__ = count
from floatlens.cli.main import main
sys.argv = ["floatlens", "trace", "tiny-mdm", "--prompt", "Who?", "--max-new-tokens", "2", "--out", sys.argv[1]]
try:
    main()
finally:
    print()
    print("modules", *sys.modules)
    print("processes", *(str(args[0]) for args in started))
"""


def test_a_short_trace_imports_and_starts_only_what_it_needs(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CODE, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("modules", "processes")))
    modules = set(said["modules"].split())
    assert "torch" in modules
    assert not [name for name in NOT_NEEDED if name in modules]
    assert "chat_template" not in said["processes"], "a bundled model's chat template needs no process of its own"
