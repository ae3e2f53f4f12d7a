"""One run writes to a folder at a time; a dead process does not hold it, and one that lost it does not write again."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import socket
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from floatlens.errors import FloatLensError
from floatlens.store import lock
from floatlens.store.folder import RunFolder, safe_name
from floatlens.store.storage import Storage
from tests.store.bucket import Bucket
from tests.store.test_folder import some_trace

PLACES = ["disk", "memory", "bucket"]
OTHER = {"pid": os.getppid(), "machine": lock.machine_id(), "nonce": "another"}
DEAD = OTHER | {"pid": 2**22 + 1}
fork = multiprocessing.get_context("fork")


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "run") if request.param == "disk" else f"{request.param}://{tmp_path.name}/run"


def claim(place: str | Path, **content: Any) -> None:
    Storage(place).write("lock", json.dumps(content).encode())


def hold(place: Path, ready: Connection) -> None:
    RunFolder.create(place, {"asked": {}}, resume=True)
    ready.send("held")
    time.sleep(60)


def start_holder(place: Path) -> Any:
    here, there = multiprocessing.Pipe()
    holder = fork.Process(target=hold, args=(place, there), daemon=True)
    holder.start()
    assert here.recv() == "held"
    return holder


def kill(process: Any) -> None:
    process.kill()
    process.join()


def test_two_processes_do_not_share_a_folder_and_a_dead_one_does_not_hold_it(tmp_path: Path) -> None:
    holder = start_holder(tmp_path / "run")
    with pytest.raises(FloatLensError, match=f"is in use by process {holder.pid} on "):
        RunFolder.create(tmp_path / "run", {"asked": {}}, resume=True)
    kill(holder)
    assert (tmp_path / "run" / "lock").exists()
    with RunFolder.create(tmp_path / "run", {"asked": {}}, resume=True):
        pass
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"manifest.json", "samples"}


@pytest.mark.parametrize(("age", "free"), [(5, False), (3600, True)])
def test_a_lock_of_another_machine_is_stale_when_it_is_not_renewed(tmp_path: Path, age: float, free: bool) -> None:
    RunFolder.create(tmp_path / "run", {"asked": {}}).close()
    claim(tmp_path / "run", pid=1, machine="elsewhere", nonce="x", time=time.time() - age)
    if free:
        RunFolder.create(tmp_path / "run", {"asked": {}}, resume=True).close()
    else:
        with pytest.raises(FloatLensError, match="is in use by process 1 on another machine"):
            RunFolder.create(tmp_path / "run", {"asked": {}}, resume=True)


def test_a_process_of_another_machine_is_not_looked_for_on_this_one(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", {"asked": {}}).close()
    claim(tmp_path / "run", **DEAD | {"machine": "another", "time": time.time()})
    with pytest.raises(FloatLensError, match="is in use"):
        RunFolder.create(tmp_path / "run", {"asked": {}}, resume=True)


@pytest.mark.parametrize("protocol", ["memory", "bucket"])
def test_a_url_is_locked_by_what_is_written_there(tmp_path: Path, protocol: str) -> None:
    place = f"{protocol}://{tmp_path.name}"
    RunFolder.create(place, {"asked": {}}).close()
    claim(place, **OTHER)
    with pytest.raises(FloatLensError, match=f"is in use by process {os.getppid()}"):
        RunFolder.create(place, {"asked": {}}, resume=True)
    claim(place, **DEAD)
    RunFolder.create(place, {"asked": {}}, resume=True).close()
    assert not Storage(place).exists("lock")


def test_a_claim_that_another_client_makes_at_the_same_moment_is_respected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, real = f"bucket://{tmp_path.name}/run", Bucket.pipe_file

    def pipe_file(self: Bucket, path: str, value: bytes, **options: Any) -> None:
        if path.endswith("/lock") and b"another" not in value:  # the other request arrives just before ours
            monkeypatch.setattr(Bucket, "pipe_file", real)
            claim(place, **OTHER)
        real(self, path, value, **options)

    monkeypatch.setattr(Bucket, "pipe_file", pipe_file)
    with pytest.raises(FloatLensError, match=f"is in use by process {os.getppid()}"):
        RunFolder.create(place, {"asked": {}})
    assert lock.read_holder(Storage(place))["nonce"] == "another" and not Storage(place).exists("manifest.json")


def test_a_dead_claim_that_another_process_replaces_at_the_same_moment_is_left_to_it(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunFolder.create(place, {"asked": {}}).close()
    claim(place, **DEAD)
    monkeypatch.setattr(lock.time, "sleep", lambda seconds: claim(place, **OTHER))  # while ours settles
    with pytest.raises(FloatLensError, match=f"is in use by process {os.getppid()}"):
        RunFolder.create(place, {"asked": {}}, resume=True)
    assert lock.read_holder(Storage(place))["nonce"] == "another"
    Storage(place).remove("lock")


def start_and_write(place: Path, together: Barrier, answer: Connection) -> None:
    together.wait()
    run, said = None, ""
    try:
        run = RunFolder.create(place, {"asked": {}}, resume=True)
    except FloatLensError as error:
        said = str(error)
    together.wait()  # all have tried to start
    try:
        if run is not None:
            run.put((str(os.getpid()),), {})
            said = "written"
    except FloatLensError as error:
        said = str(error)
    answer.send(said)
    time.sleep(60)


@pytest.mark.parametrize("state", ["new", "stale"])
def test_of_processes_that_start_together_one_writes(tmp_path: Path, state: str) -> None:
    for number in range(3):
        place = tmp_path / str(number)
        if state == "stale":
            RunFolder.create(place, {"asked": {}}).close()
            claim(place, **DEAD)
        together, pipes = fork.Barrier(4), [multiprocessing.Pipe() for _ in range(4)]
        started = [fork.Process(target=start_and_write, args=(place, together, p[1]), daemon=True) for p in pipes]
        for process in started:
            process.start()
        answers = [pipe[0].recv() for pipe in pipes]
        for process in started:
            kill(process)
        assert len(RunFolder.open(place).results()) == sum(answer == "written" for answer in answers) == 1, answers
        refusal = "is in use by process" if state == "new" else " by process"
        assert all(refusal in answer for answer in answers if answer != "written")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="when a process began is read from Linux's /proc")
def test_another_process_with_the_number_of_a_dead_one_does_not_hold_its_lock(place: str) -> None:
    RunFolder.create(place, {"asked": {}}).close()
    claim(place, **OTHER, began=lock.process_start(os.getppid()))
    with pytest.raises(FloatLensError, match="is in use"):
        RunFolder.create(place, {"asked": {}}, resume=True)
    claim(place, **OTHER, began="1")
    RunFolder.create(place, {"asked": {}}, resume=True).close()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the state of a process is read from Linux's /proc")
def test_a_dead_process_that_its_parent_has_not_noticed_does_not_hold_the_lock(tmp_path: Path) -> None:
    holder = start_holder(tmp_path / "run")
    os.kill(holder.pid, signal.SIGKILL)
    while lock.process_start(holder.pid) is not None:
        time.sleep(0.01)
    RunFolder.create(tmp_path / "run", {"asked": {}}, resume=True).close()
    holder.join()


def test_a_run_whose_folder_was_taken_over_stops_writing_and_leaves_the_lock_of_the_other(place: str) -> None:
    run = RunFolder.create(place, {"asked": {}})
    run.put(("a",), {})
    claim(place, **OTHER)
    for write in (
        lambda: run.put(("b",), {}),
        lambda: run.write_lines("errors.jsonl", [{"sample": "b"}]),
        lambda: run.write_lines("errors.jsonl", []),
        lambda: run.write_text("results.json", "{}"),
        run.finish,
    ):
        with pytest.raises(FloatLensError, match=f"no longer held by this run but by process {os.getppid()}"):
            write()
    run.close()
    assert lock.read_holder(run.storage)["nonce"] == "another"
    assert [result.key for result in run.results()] == [("a",)]
    run.storage.remove("lock")


def test_a_renewal_does_not_replace_the_claim_of_another(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "BEAT", 0.01)
    with RunFolder.create(place, {"asked": {}}) as run:
        first = run.storage.read("lock")
        while run.storage.read("lock") == first:
            time.sleep(0.01)
        assert lock.read_holder(run.storage)["nonce"] == json.loads(first)["nonce"]
        for _ in range(3):  # a renewal that is under way may still land on the claim, but none after it
            claim(place, **OTHER)
            time.sleep(0.2)  # some beats
            if lock.read_holder(run.storage)["nonce"] == "another":
                break
        assert lock.read_holder(run.storage)["nonce"] == "another"
    run.storage.remove("lock")


def test_a_worker_does_not_write_for_a_run_that_has_replaced_its_own(place: str) -> None:
    with RunFolder.create(place, {"asked": {}}) as run:
        worker = pickle.loads(pickle.dumps(run))
        assert list(worker.save_trace("a", some_trace())) == [f"samples/{safe_name('a')}"]
        claim(place, **OTHER)
        with pytest.raises(FloatLensError, match=f"no longer held by this run but by process {os.getppid()}"):
            worker.save_trace("b", some_trace())
    assert not run.storage.names(f"samples/{safe_name('b')}")
    run.storage.remove("lock")


def test_a_run_that_was_opened_to_read_is_not_written_to(place: str) -> None:
    RunFolder.create(place, {"asked": {}}).close()
    with pytest.raises(FloatLensError, match="is open for reading only"):
        RunFolder.open(place).put(("a",), {})


def test_a_process_does_not_write_twice_to_the_same_run(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, {"asked": {}}), pytest.raises(FloatLensError, match="in use"):
        RunFolder.create(tmp_path, {"asked": {}}, resume=True)


@pytest.mark.parametrize("jump", [-86_400, -200, 86_400])
def test_a_clock_that_jumps_never_lets_two_runs_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: int
) -> None:
    """The second run is on another machine, which sees only the age of the claim."""
    first = RunFolder.create(tmp_path, {"asked": {}})
    claim(tmp_path, **lock.read_holder(first.storage) | {"time": time.time() - jump})
    monkeypatch.setattr(lock, "machine_id", lambda: "elsewhere")
    if jump < 0:  # the clock went back: the claim is from the future
        with pytest.raises(FloatLensError, match="in use by process .*if it is dead, delete the file lock"):
            RunFolder.create(tmp_path, {"asked": {}}, resume=True)
        first.put(("a",), {})
    else:  # the claim looks stale and is taken, so the first run stops
        with RunFolder.create(tmp_path, {"asked": {}}, resume=True) as second:
            second.put(("b",), {})
            with pytest.raises(FloatLensError, match="no longer held by this run"):
                first.put(("a",), {})
    first.close()


def test_the_lock_does_not_name_the_machine(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, {"asked": {}}):
        assert socket.gethostname() not in (tmp_path / "lock").read_text()
