"""Engines: the same results from one process, from several and from a cluster, also when workers die."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from floatlens.cli import main
from floatlens.errors import FloatLensError
from floatlens.options import Run
from floatlens.store import ray as ray_engine
from floatlens.store.engine import Engine, WorkerDied, make_engine, try_again
from floatlens.store.ray import RayEngine
from tests.store.conftest import Undisturbed, assert_same
from tests.store.fork_server import ROOT, ForkServer
from tests.store.workers import Numbers, Squares, jobs, squares

EXPECTED = {n: n**2 for n in range(12)}


# --- what is to be done again -----------------------------------------------------------------------------------------


def test_a_job_whose_workers_die_is_tried_again_then_taken_apart_then_given_up() -> None:
    both = Numbers((1, 2))
    assert try_again(both, 0) == [(both, 1)]
    assert try_again(both, 1) == [(both, 2)]
    parts = [(Numbers((1,)), 2), (Numbers((2,)), 2)]
    assert try_again(both, 2) == parts
    assert try_again(*parts[0]) == []
    assert try_again((0, ("a job without parts",)), 2) == []


def test_jobs_are_taken_one_by_one_as_there_is_room(tmp_path: Path) -> None:
    taken = []

    def counted() -> Iterator[Numbers]:
        for job in jobs(8):
            taken.append(job)
            yield job

    for done, _ in enumerate(Engine(workers=1).run(Squares(str(tmp_path)), counted()), start=1):
        assert len(taken) == done


# --- several processes ------------------------------------------------------------------------------------------------


def test_processes_that_die_cost_nothing_and_a_deadly_sample_only_itself(tmp_path: Path) -> None:
    worker = Squares(str(tmp_path), once=(3,), deadly=(8,))
    done = list(Engine(workers=2).run(worker, jobs(12)))
    assert squares(done) == {n: s for n, s in EXPECTED.items() if n != 8}
    assert [job.numbers for job, made in done if isinstance(made, WorkerDied)] == [(8,)]
    [reason] = [str(made) for _, made in done if isinstance(made, WorkerDied)]
    assert "killed by SIGKILL" in reason
    pids = {pid for _, made in done if not isinstance(made, WorkerDied) for _, _, pid in made}
    assert len(pids) >= 2 and os.getpid() not in pids


def test_two_processes_give_what_one_gives(
    fork_server: ForkServer, words: dict[str, Any], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """A study, since it has all there is: traces, answers and interventions."""
    line = (*words["study"], "--engine", "local:2", "--out", tmp_path / "run")
    assert fork_server.run(*line, errors=tmp_path / "err") == 0, (tmp_path / "err").read_text()
    assert_same(tmp_path / "run", undisturbed["study"])


def test_workers_that_stay_are_the_same_ones_as_long_as_it_is_the_same_work(tmp_path: Path) -> None:
    engine, worker = Engine(workers=2), Squares(str(tmp_path))

    def done_by(worker: Squares) -> set[int]:
        return {pid for _, made in engine.run(worker, jobs(12)) for _, _, pid in made}

    with engine.keep_workers():
        first = done_by(worker)
        kept = {worker.process.pid for worker in engine._pool}
        assert first <= kept and done_by(worker) <= kept
        assert not done_by(Squares(str(tmp_path))) & kept
    assert not engine._pool


def test_no_process_is_started_when_nothing_is_left_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floatlens.store.engine.LocalWorker", lambda *_: pytest.fail("a process was started"))
    assert list(Engine(workers=2).run(Squares("nowhere"), [])) == []


def test_an_error_about_the_settings_comes_back_as_it_was_raised(tmp_path: Path) -> None:
    with pytest.raises(FloatLensError, match="number 5 cannot be squared"):
        list(Engine(workers=2).run(Squares(str(tmp_path), wrong=(5,)), jobs(12)))


# --- a stand-in for Ray: its calls, answered by threads ---------------------------------------------------------------


class Actor:
    """A handle of an actor: each call of a method is answered later, in the order of the calls."""

    def __init__(self, made: Any) -> None:
        self.made, self.pool = made, ThreadPoolExecutor(1)

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *given: self.pool.submit(getattr(self.made, name), *given))


class RayError(Exception):
    """What Ray raises for an actor that died."""


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(reference: Any) -> Any:
        try:
            return reference.result()
        except SystemExit:
            raise RayError("the actor died") from None

    def wait(references: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        done, _ = wait_for_futures(references, timeout, return_when="FIRST_COMPLETED")
        return [each for each in references if each in done], []

    remote = lambda **_: lambda kind: SimpleNamespace(remote=lambda *given: Actor(kind(*given)))  # noqa: E731
    errors = SimpleNamespace(RayError=RayError, RayTaskError=type("RayTaskError", (RayError,), {}))
    calls = {"is_initialized": lambda: True, "kill": lambda actor, no_restart: actor.pool.shutdown(wait=False)}
    made = SimpleNamespace(**calls, remote=remote, get=get, wait=wait, exceptions=errors)
    monkeypatch.setattr(ray_engine, "import_ray", lambda private=False: made)


def test_an_actor_that_dies_is_replaced_and_a_deadly_job_given_up(stand_in: None) -> None:
    def worker(job: int) -> int:
        if job == 5:
            raise SystemExit
        return job**2

    found = dict(RayEngine(2).run(worker, range(12)))
    died = found.pop(5)
    assert isinstance(died, WorkerDied) and "on Ray died: the actor died; see Ray's logs, 3 times" in str(died)
    assert found == {n: square for n, square in EXPECTED.items() if n != 5}


def test_an_error_of_an_actor_is_raised_with_its_traceback(stand_in: None) -> None:
    def worker(job: int) -> int:
        raise ValueError(f"{job} is wrong")

    with pytest.raises(ValueError, match="1 is wrong") as raised:
        list(RayEngine().run(worker, [1]))
    assert "in a worker:" in raised.value.__notes__[0] and "test_engines.py" in raised.value.__notes__[0]


# --- a cluster of two nodes -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes on this machine, each with room for one worker."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Where clusters are off by default, Ray takes this machine for 127.0.0.1 instead of looking for its address outside.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT}"  # for the workers
    ray = pytest.importorskip("ray", reason="THE RAY ENGINE IS NOT TESTED: ray is not installed")
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 80 * 2**20}
    made = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    made.second = made.add_node(**node)
    made.wait_for_nodes(timeout=180)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker imports torch before it is ready, which takes minutes on a machine that is busy."""
    monkeypatch.setattr(ray_engine, "PATIENCE", 1500.0)


@pytest.mark.timeout(1800)
def test_ray_gives_the_rows_that_one_process_gives(
    cluster: Any, patient: None, words: dict[str, Any], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    line = [*words["eval"], "--engine", "ray:2", "--out", tmp_path / "run"]
    assert main.run([str(word) for word in line]) == 0
    assert_same(tmp_path / "run", undisturbed["eval"])


@pytest.mark.timeout(1800)
def test_a_study_on_ray_with_a_worker_killed_on_the_way_has_the_claims_of_an_undisturbed_one(
    cluster: Any, patient: None, words: dict[str, Any], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    out, over = tmp_path / "run", threading.Event()
    killed: list[int] = []

    def kill_a_worker() -> None:
        """Kill one of this cluster's actors when a few results are there."""
        while not over.wait(0.05):
            actors = ray_actors()
            if actors and len(list(out.glob("models/*/results/*/*.json"))) >= 3:
                actors[0].kill()
                killed.append(actors[0].pid)
                return

    killer = threading.Thread(target=kill_a_worker)
    killer.start()
    try:
        line = [*words["study"], "--engine", "ray:2", "--out", out]
        assert main.run([str(word) for word in line]) == 0
    finally:
        over.set()
        killer.join()
    assert killed
    assert_same(out, undisturbed["study"])


def ray_actors() -> list[Any]:
    """Processes of actors on the nodes that this process has started."""
    psutil = pytest.importorskip("psutil")
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any("RayActor" in word for word in process.cmdline()):
                found.append(process)
    return found


def test_a_ray_worker_that_dies_is_replaced_and_a_node_that_goes_is_done_without(cluster: Any, tmp_path: Path) -> None:
    engine = RayEngine(2)
    given: list[int] = []
    done: list[Any] = []
    pids: set[int] = set()
    killed, replaced, after = 0, False, 0  # after: results since the node went

    def work() -> Iterator[Numbers]:
        """Jobs until enough was done without the node: a new worker takes its time to start, however fast the rest are."""
        for job in jobs(6000):
            if after >= 12:
                return
            given.extend(job.numbers)
            yield job

    for number, (job, made) in enumerate(engine.run(Squares(str(tmp_path), pause=0.05), work())):
        assert not isinstance(made, WorkerDied)
        done.append((job, made))
        pids |= {pid for _, _, pid in made}
        if number == 5:
            killed = made[0].pid
            os.kill(killed, signal.SIGKILL)
        if replaced:
            after += 1
        elif killed and len(pids - {killed}) >= 2:  # only now: a worker cannot come back on a node that is gone
            replaced = True
            cluster.remove_node(cluster.second, allow_graceful=False)
    assert replaced and after >= 12
    assert squares(done) == {n: n**2 for n in given}


def test_a_cluster_without_room_is_told_apart_from_a_slow_one(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floatlens.store.ray.PATIENCE", 1.0)
    engine = make_engine(Run(engine="ray:1x4"))
    assert isinstance(engine, RayEngine)
    with pytest.raises(FloatLensError, match="no Ray worker could start within 1 seconds.*4 GPU"):
        list(engine.run(Squares(str(tmp_path)), jobs(2)))


ALONE = """
from floatlens.store.ray import RayEngine
from tests.store.workers import Squares, jobs

results = RayEngine(workers=1).run(Squares({location!r}), jobs(2))
next(results)
print("running", flush=True)
input()
list(results)
"""


def marked_processes(mark: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Processes that have a mark in their environment, with that environment."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            pairs = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        if environment.get("FLOATLENS_TEST_MARK") == mark:
            yield int(folder.name), environment


def listening(pid: int) -> set[str]:
    """Addresses, in the kernel's hexadecimal notation, on which a process waits for connections."""
    addresses: dict[str, str] = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                addresses[f"socket:[{fields[9]}]"] = fields[1].partition(":")[0]
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(addresses.get(os.readlink(link), ""))
    return found - {""}


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="the sockets of processes are read from Linux's /proc")
def test_a_cluster_that_is_started_here_is_closed_to_the_network_and_asks_for_a_token(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="THE RAY ENGINE IS NOT TESTED: ray is not installed")
    mark = uuid.uuid4().hex
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"FLOATLENS_TEST_MARK": mark, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    line = [sys.executable, "-c", ALONE.format(location=str(tmp_path))]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(line, env=environment, cwd=ROOT, **pipes) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == "running\n"
        processes = dict(marked_processes(mark))
        addresses = {pid: listening(pid) for pid in processes}
        names = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in processes}
        driver.communicate("\n")
    loopback = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
    assert any(addresses.values()) and set().union(*addresses.values()) <= loopback
    servers = [processes[pid] for pid, name in names.items() if name in ("gcs_server", "raylet")]
    assert len(servers) == 2, names
    assert all(len(each["RAY_AUTH_TOKEN"]) == 64 and each["RAY_AUTH_MODE"] == "token" for each in servers)


def test_a_cluster_that_can_no_longer_be_closed_to_the_network_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (ray_engine.CLUSTERS, "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    with pytest.raises(FloatLensError, match="would be open to the network"):
        RayEngine(workers=1).run(Squares("x"), jobs(1))


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--engine", "dask"), "unknown engine 'dask'"),
        (("--engine", "local:0"), "workers 0 is not a positive number"),
        (("--engine", "local:1x0.5"), "needs whole GPUs"),
    ],
)
def test_engines_that_cannot_be_are_refused_before_anything_is_written(
    words: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[Any, ...], said: str
) -> None:
    line = [str(word) for word in (*words["eval"], *options, "--out", tmp_path / "run")]
    assert main.run(line) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "run").exists()
