"""The local engine: this process, or several on this machine, one model each."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, TypeVar

from floatlens.errors import FloatLensError
from floatlens.store.engine import (
    STARTED,
    Engine,
    J,
    JobFailure,
    ProgressCallback,
    R,
    RemoteWorker,
    WorkerDied,
    run_job,
)

T = TypeVar("T")
GRACE = 5.0  # seconds that an idle worker has to end
_connection: Connection | None = None  # in a worker process: to the process that sends its jobs


class Progress(NamedTuple):
    """A message of a worker about a progress bar: its name, its label and length when it begins."""

    name: str
    label: str | None = None
    total: int | None = None


@dataclass
class LocalEngine(Engine):
    """`workers` processes; one means this process. With GPUs, each worker sees its own `gpus_per_worker` of them."""

    workers: int = 1
    gpus_per_worker: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.in_process = self.workers == 1
        self.watch: ProgressCallback | None = None
        self.advance: dict[str, Callable[[], None]] = {}

    def run(self, worker: Callable[[J], R], jobs: Iterable[J]) -> Iterator[tuple[J, R | JobFailure]]:
        if self.in_process:
            return ((job, worker(job)) for job in jobs)
        return super().run(worker, jobs)

    def start_worker(self, worker: Callable[[Any], Any], number: int) -> LocalWorker:
        return LocalWorker(number, engine=self, worker=worker)

    def wait_for(self, workers: Sequence[LocalWorker]) -> list[RemoteWorker]:
        found = wait([worker.connection for worker in workers])
        return [worker for worker in workers if worker.connection in found]

    def show(self, progress: Progress) -> None:
        """Show what a worker says about its progress."""
        if self.watch is not None and progress.label is not None:
            self.advance[progress.name] = self.watch(progress.label, progress.total)
        elif self.watch is not None:
            self.advance[progress.name]()


class LocalWorker(RemoteWorker):
    """A worker process."""

    def __init__(self, number: int, engine: LocalEngine, worker: Callable[[Any], Any]) -> None:
        super().__init__(number)
        self.engine = engine
        self.connection, theirs = multiprocessing.Pipe()
        # Spawned, not forked: a forked process cannot use a GPU, and would share the lock of the run folder.
        context = multiprocessing.get_context("spawn")
        arguments = (theirs, worker, number, engine.workers, engine.gpus_per_worker)
        self.process = context.Process(target=serve_jobs, args=arguments, daemon=True, name=f"floatlens-{number}")
        self.process.start()
        theirs.close()

    def send(self, job: Any) -> None:
        with contextlib.suppress(OSError):  # if it died, this is detected when reading from it
            self.connection.send(job)

    def receive(self) -> Any:
        try:
            found = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            killed = code is not None and code < 0
            raise WorkerDied(
                f"was killed by {signal.Signals(-code).name}" if killed and code else f"ended with code {code}"
            ) from None
        if isinstance(found, Progress):
            self.engine.show(found)
            return STARTED
        self.started = isinstance(found, str) and found == STARTED
        return found

    def stop(self) -> None:
        self.connection.close()
        if not self.jobs:
            self.process.join(GRACE)  # an idle worker ends by itself, and releases its semaphores
        self.process.kill()
        self.process.join()


def serve_jobs(
    connection: Connection, worker: Callable[[Any], Any], number: int, workers: int, gpus_per_worker: int | None
) -> None:
    """Run the jobs that arrive in a worker process, until the process that sends them is gone.

    An idle worker returns, so that Python cleans up: Blosc makes a named semaphore, which would leak.
    """
    global _connection
    _connection = connection
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that sends the jobs decides
    use_own_devices(number, workers, gpus_per_worker)
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    idle = threading.Event()
    idle.set()

    def receive() -> None:  # always reading, so that neither side waits for the other to read
        while True:
            try:
                jobs.put(connection.recv())
            except (EOFError, OSError):
                if not idle.is_set():
                    os._exit(0)
                jobs.put(None)
                return

    threading.Thread(target=receive, daemon=True).start()
    while (job := jobs.get()) is not None:
        idle.clear()
        with contextlib.suppress(OSError):  # the process that sent the job is gone
            connection.send(STARTED)
            result = run_job(worker, job)
            idle.set()
            connection.send(result)


def die_with_parent() -> None:
    """Have the kernel end this process when its parent dies, even by SIGKILL; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def use_own_devices(number: int, workers: int, gpus_per_worker: int | None) -> None:
    """Restrict this process to its GPUs, or to its share of the cores."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    if devices and devices != [""]:
        count = gpus_per_worker or max(1, len(devices) // workers)
        mine = [devices[(number * count + i) % len(devices)] for i in range(count)]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
    elif workers > 1:
        torch.set_num_threads(max(1, cores() // workers))


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_engine(
    name: str = "local",
    *,
    workers: int | None = None,
    address: str | None = None,
    gpus_per_worker: float | None = None,
) -> Engine:
    """The engine that the options of the command line describe.

    >>> make_engine("local", workers=2).workers
    2
    """
    count = 1 if workers is None else workers
    if name == "ray":
        from floatlens.store.ray import RayEngine

        return RayEngine(count, gpus_per_worker or 0.0, address)
    if name != "local":
        raise FloatLensError(f"unknown engine {name!r}; use local or ray")
    if address is not None:
        raise FloatLensError("--address is for the Ray engine; add --engine ray")
    if gpus_per_worker is not None and gpus_per_worker != int(gpus_per_worker):
        raise FloatLensError(f"the local engine needs whole GPUs, not {gpus_per_worker}; use --engine ray")
    return LocalEngine(count, None if gpus_per_worker is None else int(gpus_per_worker))


# --- calls of a function ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A job of `run_all`: the arguments of one call."""

    index: int
    arguments: tuple[Any, ...]

    def split(self) -> list[Call]:
        return [self]


@dataclass
class CallFunction:
    """The worker of `run_all`."""

    function: Callable[..., Any]

    def __call__(self, call: Call) -> Any:
        try:
            return self.function(*call.arguments, watch=_send_progress)
        except Exception as error:  # returned as a value, so that the other calls go on
            return error


def run_all(
    function: Callable[..., T], tasks: Sequence[tuple[Any, ...]], jobs: int, watch: ProgressCallback | None = None
) -> list[T | BaseException]:
    """Call `function(*task, watch=...)` for each task, in up to `jobs` processes.

    Returns each result, or the exception that a task raised. A small model uses one core, so a study gives each model its
    own process.
    """
    found: dict[int, Any] = {}
    if jobs <= 1 or len(tasks) <= 1:
        for index, task in enumerate(tasks):
            try:
                found[index] = function(*task, watch=watch)
            except Exception as error:
                found[index] = error
        return [found[index] for index in range(len(tasks))]
    engine = LocalEngine(min(jobs, len(tasks)))
    engine.queued, engine.watch = 1, watch
    calls = [Call(index, task) for index, task in enumerate(tasks)]
    for call, result in engine.run(CallFunction(function), calls):
        found[call.index] = FloatLensError(result.reason) if isinstance(result, JobFailure) else result
    return [found[index] for index in range(len(tasks))]


def _send_progress(label: str, total: int | None) -> Callable[[], None]:
    connection, name = _connection, f"{os.getpid()} {label}"
    assert connection is not None
    connection.send(Progress(name, label, total))
    return lambda: connection.send(Progress(name))
