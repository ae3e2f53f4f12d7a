"""Tasks in parallel processes: results in order, failures isolated, progress forwarded, and a process that dies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from floatlens.store.engine import run_all
from tests.store.tasks import dies_once, doubled


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_order_and_a_failure_keeps_its_place(jobs: int) -> None:
    begun: list[str] = []
    advanced: list[str] = []

    def watch(about: str, total: int | None) -> object:
        begun.append(about)
        return lambda: advanced.append(about)

    found = run_all(doubled, [(1,), (-1,), (3,)], jobs, watch)  # type: ignore[arg-type]
    assert found[0] == 2 and found[2] == 6
    assert isinstance(found[1], ValueError) and "-1 is negative" in str(found[1])
    assert sorted(begun) == ["number -1", "number 1", "number 3"]
    assert sorted(advanced) == ["number 1", "number 3"]


def test_a_process_that_dies_does_not_take_the_others_results_along(tmp_path: Path) -> None:
    mark = tmp_path / "dead"
    assert run_all(dies_once, [(1, mark), (2, mark), (3, mark)], 2) == [1, 2, 3]


def test_workers_release_their_semaphores_so_that_nothing_is_printed_at_exit() -> None:
    code = "from floatlens.store.engine import run_all; from tests.store.tasks import makes_a_semaphore as task; "
    code += "print(run_all(task, [(1,), (2,)], 2))"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout == "[1, 2]\n" and "leaked" not in made.stderr, made.stderr
