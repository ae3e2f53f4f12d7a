"""A run folder keeps results whole, and never takes an id from data for a path."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pandas as pd
import pytest
from hypothesis import given

from floatlens import FloatLensError
from floatlens.files import written_atomically
from floatlens.runs.folder import RunFolder, safe_name


@given(st.text(max_size=300))
def test_any_id_becomes_one_plain_file_name(sample_id: str) -> None:
    name = safe_name(sample_id)
    assert Path(name).name == name and 0 < len(name) < 64 and not name.startswith((".", "-"))


@given(st.text(max_size=60), st.text(max_size=60))
def test_different_ids_have_different_names(a: str, b: str) -> None:
    assert (safe_name(a) == safe_name(b)) == (a == b)


def test_a_run_is_not_overwritten_and_resumes_only_with_the_same_settings(tmp_path: Path) -> None:
    asked = {"asked": {"model": "x", "steps": 4}}
    RunFolder.create(tmp_path / "run", asked)
    with pytest.raises(FloatLensError, match="use --resume"):
        RunFolder.create(tmp_path / "run", asked)
    RunFolder.create(tmp_path / "run", asked, resume=True)
    with pytest.raises(FloatLensError, match="other settings \\(steps\\)"):
        RunFolder.create(tmp_path / "run", {"asked": {"model": "x", "steps": 5}}, resume=True)


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("dear")
    with pytest.raises(FloatLensError, match="is not empty and holds no run"):
        RunFolder.create(tmp_path, {})
    with pytest.raises(FloatLensError, match="is not a run folder"):
        RunFolder.open(tmp_path)


def test_errors_and_tables_are_read_back(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", {"command": "eval"})
    run.record_error("q\n1", "too long")
    run.write_table("answers", pd.DataFrame({"id": ["a"], "em": [1.0]}))
    assert RunFolder.open(run.path).errors() == [{"sample": "q\n1", "reason": "too long"}]
    assert pd.read_parquet(run.path / "answers.parquet")["id"].tolist() == ["a"]


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    with pytest.raises(ZeroDivisionError), written_atomically(target) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert target.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["file"]
