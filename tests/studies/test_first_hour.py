"""A researcher's first hour: a checkpoint in LLaDA's layout and her own JSONL file, in one command."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import first_hour
from benchmarks.first_hour import FIGURES, make_files, readme_block, readme_commands, run, walk


def test_a_checkpoint_and_a_file_become_six_figures_and_table_1_in_one_command(tmp_path: Path) -> None:
    make_files(tmp_path, questions=2)
    walk(tmp_path, "--only", ",".join([*FIGURES, "knowledge"]), "--limit", "2", "--max-new-tokens", "4")
    table = (tmp_path / "study" / "table1.md").read_text()
    assert "llada" in table and "tiny-arm" in table
    assert (tmp_path / "study" / "report.html").is_file()


def test_the_commands_of_the_readme_are_timed() -> None:
    assert [line.split()[1] for line in readme_commands()] == ["models", "trace", "figure", "explore"]
    assert all(" ./llada" in line for line in readme_commands()[:2])
    compile(readme_block("python", "fl.load"), "README.md", "exec")


def test_the_explorer_is_timed_until_it_prints_its_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "floatlens explore tiny-mdm --no-browser", until="http://") > 0
    shown = capsys.readouterr().out
    assert " s  floatlens explore tiny-mdm --no-browser  (" in shown and "http://127.0.0.1" in shown


def test_the_installation_and_the_demo_of_the_readme_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the README and the Makefile have them; the whole demo only until it says how long it takes."""
    lines = readme_block("sh", "make demo").splitlines()
    assert tuple(line.partition("#")[0].strip() for line in lines) == first_hour.INSTALL
    makefile = (first_hour.README.parent / "Makefile").read_text()
    assert "\n\t$(BIN)/floatlens demo --out demo\n" in makefile and '"installed in"' in makefile
    ran: list[tuple[str, str]] = []
    monkeypatch.setattr(first_hour, "walk", lambda folder: 0.0)
    monkeypatch.setattr(first_hour, "run", lambda folder, line, words=None, until="": ran.append((line, until)))
    first_hour.main()
    wanted = [first_hour.INSTALL[1], "floatlens demo", "floatlens demo --limit 1 --out small"]
    assert [line for line, _ in ran[-3:]] == wanted and ran[-2][1] == "This takes about"
