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
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from floatlens.store.engine import (
    PROGRESS,
    STARTED,
    Engine,
    ProgressCallback,
    RemoteWorker,
    WorkerDied,
    run_job,
    sendable,
)

T = TypeVar("T")
_connection: Connection | None = None  # in a worker process: to the process that sends its jobs


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

    def run(self, worker: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        if self.in_process:
            return ((job, worker(job)) for job in jobs)
        return super().run(worker, jobs)

    def start_worker(self, worker: Callable[[Any], Any], number: int) -> LocalWorker:
        return LocalWorker(number, engine=self, worker=worker)

    def wait_for(self, workers: Sequence[LocalWorker]) -> list[RemoteWorker]:
        found = wait([worker.connection for worker in workers])
        return [worker for worker in workers if worker.connection in found]

    def show(self, name: str, label: str | None = None, total: int | None = None) -> None:
        """Begin a worker's progress bar if it has a label, otherwise advance it."""
        if self.watch is not None and label is not None:
            self.advance[name] = self.watch(label, total)
        elif self.watch is not None:
            self.advance[name]()


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

    def receive(self) -> tuple[Any, ...]:
        try:
            kind, *content = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            killed = code is not None and code < 0
            raise WorkerDied(
                f"was killed by {signal.Signals(-code).name}" if killed and code else f"ended with code {code}"
            ) from None
        if kind == PROGRESS:
            self.engine.show(*content)
        else:
            self.started = kind == STARTED
        return kind, *content

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join()


def serve_jobs(
    connection: Connection, worker: Callable[[Any], Any], number: int, workers: int, gpus_per_worker: int | None
) -> None:
    """Run the jobs that arrive in a worker process, until it is killed or the process that sends them is gone."""
    global _connection
    _connection = connection
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that sends the jobs decides
    if "fork" in multiprocessing.get_all_start_methods():
        # In a spawned process, locks such as Blosc's are semaphores with a name, which a killed process leaks. Under
        # this method they have none. It starts no process here: engines choose theirs themselves.
        multiprocessing.set_start_method("fork", force=True)
    use_own_devices(number, workers, gpus_per_worker)
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def receive() -> None:  # always reading, so that neither side waits for the other to read
        while True:
            try:
                jobs.put(connection.recv())
            except (EOFError, OSError):
                os._exit(0)

    threading.Thread(target=receive, daemon=True).start()
    while True:
        job = jobs.get()
        with contextlib.suppress(OSError):  # the process that sent the job is gone
            connection.send((STARTED,))
            connection.send(run_job(worker, job))


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


def run_all(
    function: Callable[..., T], tasks: Sequence[tuple[Any, ...]], jobs: int, watch: ProgressCallback | None = None
) -> list[T | BaseException]:
    """Call `function(*task, watch=...)` for each task, in up to `jobs` processes.

    Returns each result, or the exception that a task raised. A small model uses one core, so a study gives each model its
    own process.
    """
    parallel = jobs > 1 and len(tasks) > 1
    engine = LocalEngine(min(jobs, len(tasks)) if parallel else 1)
    engine.queued, engine.watch = 1, watch
    call = partial(_call, function, _send_progress if parallel else watch)
    found = {number: result for (number, _), result in engine.run(call, enumerate(tasks))}
    return [found[number] for number in range(len(tasks))]


def _call(function: Callable[..., Any], watch: ProgressCallback | None, task: tuple[int, tuple[Any, ...]]) -> Any:
    try:
        return function(*task[1], watch=watch)
    except Exception as error:  # returned as a value, so that the other tasks go on
        return sendable(error)


def _send_progress(label: str, total: int | None) -> Callable[[], None]:
    connection, name = _connection, f"{os.getpid()} {label}"
    assert connection is not None
    connection.send((PROGRESS, name, label, total))
    return lambda: connection.send((PROGRESS, name))
