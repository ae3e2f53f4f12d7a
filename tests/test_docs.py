"""The code on the documentation pages runs, and generated pages are up to date.

`make docs` checks links, anchors, docstrings and notebooks.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import floatlens
from floatlens.anchors import RULES
from floatlens.attention.statistic import STATISTICS
from floatlens.cli.main import COMMANDS, CommandLineError, load_command
from floatlens.cli.main import run as floatlens_run
from floatlens.data.read import read
from floatlens.findings.finding import FINDINGS
from floatlens.interventions.intervention import INTERVENTIONS
from floatlens.models.family import FAMILIES
from tests.models import checkpoints
from tests.registries import restored
from tests.small_tokenizers import byte_level

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "floatlens"
API = sorted((DOCS / "api").glob("*.md"))
FOLDER_PAGES = [ROOT / name / "README.md" for name in ("tests", "benchmarks", "recipes", "recipes/tiny")]
FOLDER_PAGES += [path for path in sorted(SOURCE.rglob("README.md")) if "checkpoints" not in path.parts]
# Pages with a pyproject.toml describe a package: tests/howto runs them from outside the tree.
HOW_TO = [
    f"howto/{path.name}"
    for path in sorted((DOCS / "howto").glob("*.md"))
    if "```python\n" in path.read_text() and 'title="pyproject.toml"' not in path.read_text()
]
TRACED = [f"findings/{name}.md" for name, finding in FINDINGS.items() if finding.reads == "traces"]
GUIDE = ["start.md", "anchor-rules.md", "explorer.md", "intervals.md", "prompts.md", "trace.md", "interventions.md"]
GUIDE += ["evaluation.md", "runs.md"]
SCRIPTS = DOCS / "scripts"
INTERVAL = re.compile(r"\[[-−]?\d+(\.\d+)?, [-−]?\d+\.\d+\]")
LONGEST = 300  # words of a page on a finding
PAGES = [*GUIDE, *HOW_TO, *TRACED]


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Run each page in a temporary folder, and forget what it registered."""
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        for registry in (STATISTICS, FAMILIES, INTERVENTIONS, RULES):
            stack.enter_context(restored(registry))
        yield


@pytest.fixture(scope="module")
def traces() -> list[floatlens.Trace]:
    """The `traces` of the pages on findings: two bundled models on the same two questions."""
    samples = list(read("world:long", split="test", passages=3, limit=2))
    found = []
    for model in ("tiny-mdm", "tiny-arm"):
        lens = floatlens.load(model)
        prompts = [lens.prompt(sample.question, sample.passages, gold=sample.gold) for sample in samples]
        needed = ["default", *(name for finding in FINDINGS.values() for name in finding.records)]
        found += lens.traces(prompts, sample_ids=[sample.id for sample in samples], max_new_tokens=8, record=needed)
    return found


def run_page(page: str, **names: Any) -> dict[str, Any]:
    """Run the Python blocks of a page, and return the names that they define."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert blocks, f"{page} has no code"
    for block in blocks:
        exec(compile(block, page, "exec", dont_inherit=True), names)
    return names


def test_the_matrices_of_a_trace_are_shown_by_bertviz_and_circuitsvis() -> None:
    page = run_page("howto/your-own-loop.md")
    with torch.no_grad():  # all rows at once; the last token was written by the last step
        again = page["eager"](page["outputs"].sequences[:, :-1], output_attentions=True)
    torch.testing.assert_close(
        torch.cat(page["for_bertviz"]["attention"]), torch.cat(again.attentions), atol=2e-5, rtol=0
    )
    assert len(page["tokens"]) == page["matrices"].shape[-1] == 9
    bertviz = pytest.importorskip("bertviz", reason="bertviz is not installed")
    for view in (bertviz.head_view, bertviz.model_view):
        assert "attn" in view(**page["for_bertviz"], html_action="return").data
    circuits = pytest.importorskip("circuitsvis.attention", reason="circuitsvis is not installed", exc_type=ImportError)
    assert "L0H0" in circuits.attention_heads(**page["for_circuitsvis"]).local_src


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(page: str, traces: list[floatlens.Trace]) -> None:
    run_page(page, traces=traces, trace=traces[0], fl=floatlens)


def test_the_readme_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    run_page("../README.md")
    shown = re.findall(r"^\s*print\(.*\)  # (.*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert shown and capsys.readouterr().out.splitlines() == shown


def test_the_readme_is_short_and_its_picture_light() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 750
    assert (DOCS / "images" / "explorer.gif").stat().st_size <= 3_000_000


def test_the_attention_of_llada_is_recorded_with_the_code_of_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both answers to LLaDA's issue 114, on a tiny checkpoint of its layout and with a loop like its own."""
    tokenizer = byte_level()
    tokenizer.save_pretrained(tmp_path / "llada")
    checkpoints.llada(tmp_path / "llada", vocab=len(tokenizer) + 8)
    (tmp_path / "generate.py").write_text(LIKE_LLADA)
    monkeypatch.syspath_prepend(str(tmp_path))
    blocks = dict(re.findall(r'```python title="(\w+)\.py"\n(.*?)```', (DOCS / "llada.md").read_text(), re.DOTALL))
    found: dict[str, dict[str, Any]] = {}
    for name, code in blocks.items():
        assert len(code.strip().splitlines()) <= 15
        found[name] = {}
        exec(compile(code, name, "exec", dont_inherit=True), found[name])
    trace, own = found["attention"]["trace"], found["own_loop"]["trace"]
    received = trace.data["attention"].sel(attention_layer=0).mean("query")
    np.testing.assert_allclose(
        trace.data["received"].sel(layer=0), received.transpose("step", "head", "key"), atol=1e-6
    )
    np.testing.assert_allclose(own.data["received"], trace.data["received"], atol=1e-5)
    assert own.final_tokens.tolist() == trace.final_tokens.tolist()


# Writes the most certain mask of the sequence at each step, as LLaDA's sampler does with one block and one token per step.
LIKE_LLADA = """
import torch


@torch.no_grad()
def generate(model, prompt, steps, gen_length, block_length, mask_id):
    x = torch.cat([prompt, prompt.new_full((1, gen_length), mask_id)], dim=1)
    for _ in range(steps):
        probability, token = model(x).logits.softmax(-1).max(-1)
        best = probability.masked_fill(x != mask_id, -1).argmax(-1)
        x[0, best] = token[0, best]
    return x
"""


def test_the_code_on_answers_runs(tmp_path: Path) -> None:
    asked = ("tiny-mdm", "tiny-arm", "--data", "world:fresh", "--limit", "5", "--max-new-tokens", "4", "--out")
    assert floatlens_run(["eval", *asked, "answers", "--both", "--json"]) == 0
    run_page("findings/knowledge.md", answers="answers")
    assert floatlens_run(["stress", "noise", *asked, "stressed", "--levels", "0,2", "--json"]) == 0
    run_page("findings/stress.md", stressed="stressed")


@pytest.mark.parametrize("name", FINDINGS.names())
def test_each_finding_has_a_page_that_explains_it(name: str) -> None:
    page = (DOCS / "findings" / f"{name}.md").read_text()
    pictures = re.findall(r"\]\(\.\./(results/(?:figures/)?[\w-]+\.png)\)", page)
    kept = ("## How to read the figure", f"verdicts.md#{name}") if pictures else ()
    for part in ("# ", "## Pitfalls", f"claims.md#{name}", *kept):
        assert part in page, f"docs/findings/{name}.md lacks {part!r}"
    assert len(re.sub(r"```.*?```", " ", page, flags=re.DOTALL).split()) <= LONGEST
    assert (pictures or name == "sink") and all((DOCS / picture).stat().st_size < 300_000 for picture in pictures)


def test_single_verdicts_stand_on_one_page() -> None:
    """No page quotes an interval, except the generated ones and the results."""
    for page in sorted(DOCS.rglob("*.md")):
        if page.name not in ("verdicts.md", "results.md"):
            assert not INTERVAL.search(re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)), page


def test_the_page_of_verdicts_is_current() -> None:
    assert script("list_verdicts").page() == (DOCS / "verdicts.md").read_text(), (
        "run python docs/scripts/list_verdicts.py"
    )


def test_the_table_beside_the_papers_scripts_is_current() -> None:
    scripts = script("compare_scripts")
    made = scripts.table(scripts.GOLDEN)
    shown = (DOCS / "howto" / "paper-scripts.md").read_text().split("<!-- scripts -->\n")[1].strip()
    assert made == shown, "run python docs/scripts/compare_scripts.py"


def test_the_page_of_all_claims_is_current() -> None:
    assert script("list_claims").page() == (DOCS / "claims.md").read_text(), "run python docs/scripts/list_claims.py"


def test_the_table_of_families_is_complete() -> None:
    text = (DOCS / "families.md").read_text()
    assert not [name for name in FAMILIES if f"| `{name}` |" not in text]


def test_every_public_name_is_in_the_api() -> None:
    page = (DOCS / "api.md").read_text() + "".join(path.read_text() for path in API)
    missing = [name for name in floatlens.__all__ if name != "__version__" and not re.search(rf"[.`]{name}\b", page)]
    assert not missing


def test_every_folder_with_public_names_has_its_api_page() -> None:
    found = re.findall(r"^from \.(\w+)(?:\.\w+)* import", (SOURCE / "__init__.pyi").read_text(), re.MULTILINE)
    rooms = {name if name not in ("anchors", "errors") else "base" for name in found} - {"version"}
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")} - {"cli"}  # docs/cli.md is generated
    assert rooms | folders <= {path.stem for path in API}


def test_every_object_on_the_api_page_exists() -> None:
    named = [name for path in API for name in re.findall(r"^::: (\S+)", path.read_text(), re.MULTILINE)]
    assert len(named) == len(set(named))
    if importlib.util.find_spec("lm_eval") is None:
        named = [name for name in named if not name.startswith("floatlens.lm_eval.")]
    for name in named:
        module, _, attribute = name.rpartition(".")
        assert importlib.util.find_spec(module) is not None and hasattr(importlib.import_module(module), attribute), (
            name
        )


@pytest.mark.parametrize("page", FOLDER_PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_readme_of_a_folder_names_files_that_exist(page: Path) -> None:
    roots = (page.parent, SOURCE, SOURCE.parent, ROOT)
    for name in re.findall(r"`([\w/.-]+\.(?:py|pyi|md))`", page.read_text()):
        stem = Path(name).stem
        assert stem == stem.upper() or any((root / name).exists() for root in roots), f"{page} names {name}"


def test_the_page_of_commands_has_every_command_and_option() -> None:
    page = script("site_hooks").commands()
    for name in COMMANDS:
        assert f"## floatlens {name}\n" in page
    for option in (
        "`--version`",
        "`--record`",
        "`--closed-book`",
        "`--engine`",
    ):
        assert option in page, option


def test_the_gallery_has_every_finding_with_its_pictures_and_code() -> None:
    page = script("site_hooks").gallery()
    for name in FINDINGS.names():
        part = page.split(f"(findings/{name}.md)")[1].split("\n## ")[0]
        assert "```" in part and "figure" in part and ("](results/" in part or name == "sink"), name


def test_the_page_of_questions_names_commands_that_exist() -> None:
    page = (DOCS / "index.md").read_text()
    named = set(re.findall(r"`floatlens (\w+)", page))
    assert named <= COMMANDS.keys()
    internal = {"claims", "report", "models", "import"}  # not an answer to a question about a model
    assert COMMANDS.keys() - named <= internal
    for question in (
        "What does my model attend to while it writes?",
        "Does it have a sink?",
        "Would a KV cache be safe?",
    ):
        assert question in page
    for finding in re.findall(r"`floatlens figure (\w+)", page):
        assert finding in FINDINGS.names()


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Yield the command lines of `floatlens` in the code blocks of all pages, with the page."""
    for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))):
        fenced = re.findall(r"^```([^\n]*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
        blocks = [block for language, block in fenced if language in ("", "sh")]
        if page.name == "index.md" and page.parent == DOCS:  # which command do I need?
            blocks += re.findall(r"`(floatlens [^`]+)`", page.read_text())
        for block in blocks:
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("floatlens "):
                    words = shlex.split(line.partition(" > ")[0].partition(" $(")[0], comments=True)
                    yield page.relative_to(ROOT).as_posix(), words[1:]


def test_every_command_in_the_documentation_has_known_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "floatlens.models.checkpoint.check_name", lambda name: None
    )  # models of examples need not exist
    found = list(command_lines())
    assert len(found) > 30
    for page, (name, *words) in found:
        if name.startswith("-"):
            continue
        try:
            load_command(name).make_context(name, list(words))
        except CommandLineError as error:
            pytest.fail(f"{page}: floatlens {name} {' '.join(words)}: {error}")


# Pages whose command lines are run, on four questions with four tokens each.
RUN_FOR_REAL = ["start.md", "evaluation.md", "runs.md", "howto/sequences.md"]
RUN_FOR_REAL += [
    f"findings/{name}.md" for name in ("cache", "decision", "knowledge", "locality", "massive", "similarity", "stress")
]
SLOW = ("study", "explore", "ablate")  # test_first_hour and the tests of their folders run these


@pytest.mark.parametrize("page", RUN_FOR_REAL)
def test_the_commands_of_a_page_run(page: str) -> None:
    ran = 0
    for name, words in command_lines():
        if name != f"docs/{page}" or words[0] in SLOW or any("/" in word or "RUN" in word for word in words):
            continue  # of another page, slow, or with a model or a file that is not here
        for option, most in (("--limit", "4"), ("--max-new-tokens", "4")):
            if option in words:
                words[words.index(option) + 1] = most
            elif words[0] in ("trace", "eval", "stress") and (option != "--limit" or "--data" in words):
                words += [option, most]
        assert floatlens_run(words) == 0, words
        ran += 1
    assert ran


def test_every_option_that_a_page_names_exists() -> None:
    known = {"--help", "--version", "--debug", "--install-completion"}
    for name in COMMANDS:
        known |= {text for each in load_command(name).params for text in (*each.opts, *each.secondary_opts)}
    for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))):
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for code in re.findall(r"`([^`]+)`", text):
            if page.name == "lm-eval.md" or re.match(r"(pip|python|ray|hf) ", code):  # options of other programs
                continue
            assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", code)) <= known, f"{page}: {code}"


def test_the_estimates_of_large_models_are_what_the_program_says() -> None:
    page = (DOCS / "llada.md").read_text()
    for (name, command), said in script("estimate_large_models").outputs().items():
        assert said in page, f"{name} {command} differs: run docs/scripts/estimate_large_models.py"


@pytest.mark.parametrize("notebook", sorted((DOCS / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(notebook: Path) -> None:
    """The build of the site executes them."""
    cells = json.loads(notebook.read_text())["cells"]
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in cells)


def script(name: str) -> Any:
    """Import a script of docs/scripts, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
