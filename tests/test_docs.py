"""Code in the documentation runs as it stands, and what is made from the program is up to date.

Links, anchors, docstrings and notebooks are checked by the build itself: `make docs`.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import floatlens
from floatlens.anchors import RULES
from floatlens.cli.main import COMMANDS
from floatlens.cli.main import run as floatlens_run
from floatlens.data.readers.registry import read
from floatlens.findings.registry import NAMES
from floatlens.interventions.registry import INTERVENTIONS
from floatlens.models.registry import FAMILIES
from floatlens.observation.registry import STATISTICS
from tests.models import checkpoints
from tests.small_tokenizers import byte_level

DOCS = Path(__file__).parents[1] / "docs"
# Pages with a pyproject.toml describe a package: tests/howto runs them from outside the tree.
HOW_TO = [
    f"howto/{path.name}"
    for path in sorted((DOCS / "howto").glob("*.md"))
    if "```python\n" in path.read_text() and 'title="pyproject.toml"' not in path.read_text()
]
TRACED = [f"findings/{name}.md" for name in ("drift", "absorption", "geometry", "tokens", "heads", "flow")]
PAGES = ["start.md", "anchor-rules.md", "prompts.md", "trace.md", "world.md", "interventions.md", *HOW_TO, *TRACED]


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Pages register things of their own and write files: into a folder that goes, and for one page only."""
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        for registry in (STATISTICS, FAMILIES, INTERVENTIONS, RULES):
            stack.enter_context(registry.restored())
        yield


@pytest.fixture(scope="module")
def traces() -> list[floatlens.Trace]:
    """What the pages of findings call `traces`: both bundled models on the same two questions."""
    samples = list(read("world:long", split="test", passages=3, limit=2))
    found = []
    for model in ("tiny-mdm", "tiny-arm"):
        lens = floatlens.load(model)
        prompts = [lens.prompt(sample.question, sample.passages, gold=sample.gold) for sample in samples]
        found += lens.traces(prompts, sample_ids=[sample.id for sample in samples], max_new_tokens=8)
    return found


def run_page(page: str, **names: Any) -> dict[str, Any]:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert blocks, f"{page} has no code"
    for block in blocks:
        exec(compile(block, page, "exec", dont_inherit=True), names)
    return names


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(page: str, traces: list[floatlens.Trace]) -> None:
    run_page(page, traces=traces, trace=traces[0], fl=floatlens)


def test_the_code_of_statistics_runs_on_a_model_of_any_layout(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.save_pretrained(tmp_path)
    lens = floatlens.load(str(checkpoints.llada(tmp_path, vocab=len(tokenizer) + 8)))
    names = run_page("statistics.md", lens=lens)
    assert names["trace"].data["peak"].dims == ("step", "layer", "head")


def test_the_code_on_answers_runs(tmp_path: Path) -> None:
    asked = ("tiny-mdm", "tiny-arm", "--data", "world:fresh", "--limit", "5", "--max-new-tokens", "4", "--out")
    assert floatlens_run(["eval", *asked, "answers", "--both", "--json"]) == 0
    run_page("findings/knowledge.md", answers="answers")
    assert floatlens_run(["stress", "noise", *asked, "stressed", "--levels", "0,2", "--json"]) == 0
    run_page("findings/stress.md", stressed="stressed")


@pytest.mark.parametrize("name", NAMES)
def test_each_finding_has_a_page_that_explains_it(name: str) -> None:
    page = (DOCS / "findings" / f"{name}.md").read_text()
    for part in ("# ", "## The figure on the bundled models", "How to read it", "paper's scripts differ", "## Claim"):
        assert part in page, f"docs/findings/{name}.md lacks {part!r}"
    assert page.count("<!-- verdicts -->") == 2 and "| claim | models |" in page
    pictures = re.findall(r"\]\(\.\./(images/findings/[\w-]+\.png)\)", page)
    assert pictures and all((DOCS / picture).stat().st_size < 150_000 for picture in pictures)


def test_every_public_name_is_in_the_api() -> None:
    page = (DOCS / "api.md").read_text()
    missing = [name for name in floatlens.__all__ if name != "__version__" and not re.search(rf"[.`]{name}\b", page)]
    assert not missing


def test_the_page_of_commands_has_every_command_and_option() -> None:
    page = script("site_hooks").commands()
    for name in COMMANDS:
        assert f"## floatlens {name}\n" in page
    for option in (
        "`--version`",
        "`--record-steps`",
        "`--closed-book`",
        "`--trace`, `--no-trace`",
        "`--gpus-per-worker`",
    ):
        assert option in page, option


def test_the_estimates_of_large_models_are_what_the_program_says() -> None:
    page = (DOCS / "howto" / "large-models.md").read_text()
    for (name, command), said in script("estimate_large_models").outputs().items():
        assert said in page, f"{name} {command} differs: run docs/estimate_large_models.py"


@pytest.mark.parametrize("notebook", sorted((DOCS / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(notebook: Path) -> None:
    """Outputs come from the build, which executes them; the repository keeps what people write."""
    cells = json.loads(notebook.read_text())["cells"]
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in cells)


def script(name: str) -> Any:
    """A script of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
