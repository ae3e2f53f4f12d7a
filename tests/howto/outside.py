"""A package outside the tree, made from the code of a how-to page and used as a user would use it.

A block of the page with a title is a file of the package; the one called pyproject.toml names it and its entry points.
Blocks of Python without a title are, together, the script that uses it; blocks of `sh` are commands. The package is put on
the path with a .dist-info folder, which is what an installer leaves, so that entry points work without installing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
GROUP = "floatlens.plugins"


@dataclass(frozen=True)
class OutsidePackage:
    """A package on the path of new processes. `script` is the page's code, `commands` its shell commands."""

    site: Path
    work: Path
    script: str
    commands: tuple[str, ...]

    def run(self, code: str | None = None) -> str:
        """Run Python code, by default the page's own, in a process of its own; returns what it printed."""
        return self._run([sys.executable, "-c", self.script if code is None else code])

    def run_command(self, command: str) -> str:
        """Run a `floatlens` command in a process of its own; returns what it printed."""
        arguments = command.split()
        assert arguments[0] == "floatlens", f"{command!r} is not a floatlens command"
        return self._run([sys.executable, "-m", "floatlens", *arguments[1:]])

    def _run(self, arguments: list[str]) -> str:
        path = os.pathsep.join([str(self.site), str(ROOT / "src")])
        environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(arguments, cwd=self.work, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout


def build(page: str | Path, folder: Path) -> OutsidePackage:
    """The package of a page, such as "howto/new-family.md", in a folder of its own."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return build_from_text(text, folder)


def build_from_text(text: str, folder: Path) -> OutsidePackage:
    """The package that a text in Markdown describes."""
    site, work = folder / "site", folder / "work"
    site.mkdir(parents=True)
    work.mkdir()
    blocks = [(kind, title, code) for kind, title, code in BLOCK.findall(text)]
    for _, title, code in blocks:
        if title and title != "pyproject.toml":
            file = site / title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(code, encoding="utf-8")
    [project] = [tomllib.loads(code)["project"] for _, title, code in blocks if title == "pyproject.toml"]
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = [f"{name} = {module}" for name, module in project["entry-points"][GROUP].items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *points, ""]))
    script = "\n".join(code for kind, title, code in blocks if kind == "python" and not title)
    lines = "\n".join(code for kind, title, code in blocks if kind == "sh" and not title).splitlines()
    return OutsidePackage(site, work, script, tuple(line for line in lines if line.startswith("floatlens ")))
