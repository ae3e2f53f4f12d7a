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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from floatlens.errors import FloatLensError
from floatlens.store.engines.engine import (
    JOBS_PER_WORKER,
    MAX_TRIES,
    J,
    JobFailure,
    JobQueue,
    R,
    WorkerError,
    WorkerPool,
    run_job,
)

STARTED = "floatlens: job started"  # sent by a worker before a job's result


@dataclass
class LocalEngine(WorkerPool["LocalWorker"]):
    """`workers` processes; one means this process. With GPUs, each worker sees its own `gpus_per_worker` of them."""

    workers: int = 1
    gpus_per_worker: int | None = None

    @property
    def in_process(self) -> bool:
        return self.workers == 1

    def run(self, worker: Callable[[J], R], jobs: Iterable[J]) -> Iterator[tuple[J, R | JobFailure]]:
        """Run the jobs; yields each with its result."""
        if self.in_process:
            for job in jobs:
                yield job, worker(job)
            return
        todo = JobQueue(jobs)
        if todo.empty():
            return
        pool = self._pool
        if pool and pool[0].worker is not worker:
            self._stop_workers()
        deaths = 0  # since the last result
        complete = False
        try:
            pool += [LocalWorker(worker, number, self) for number in range(len(pool), self.workers)]
            while True:
                for process in pool:
                    while len(process.jobs) < JOBS_PER_WORKER and (entry := todo.take()) is not None:
                        process.send(entry)
                if not any(process.jobs for process in pool):
                    complete = True
                    return
                for connection in wait([process.connection for process in pool if process.jobs]):
                    index = next(i for i, process in enumerate(pool) if process.connection is connection)
                    process = pool[index]
                    try:
                        result = process.connection.recv()
                    except (EOFError, OSError):
                        process.stop()
                        deaths += 1
                        if deaths > MAX_TRIES * self.workers + MAX_TRIES:
                            raise FloatLensError(
                                f"worker processes keep dying (the last {process.ending()}); "
                                "try fewer --workers or a smaller --batch-size"
                            ) from None
                        yield from todo.put_back(process.jobs, f"its worker {process.ending()}", process.started)
                        pool[index] = LocalWorker(worker, process.number, self)
                        continue
                    if isinstance(result, str) and result == STARTED:
                        process.started = True
                        continue
                    deaths, process.started = 0, False
                    job, _ = process.jobs.pop(0)
                    if isinstance(result, WorkerError):
                        result.reraise()
                    yield job, result
        finally:
            if not (complete and self._keep):  # workers in the middle of a job cannot be kept
                self._stop_workers()


@dataclass
class LocalWorker:
    """A worker process and the jobs sent to it; it works on the first."""

    worker: Callable[[Any], Any]
    number: int
    engine: LocalEngine
    jobs: list[tuple[Any, int]] = field(default_factory=list)
    started: bool = False  # the first job

    def __post_init__(self) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        # Spawned, not forked: a forked process cannot use a GPU, and would share the lock of the run folder.
        context = multiprocessing.get_context("spawn")
        arguments = (theirs, self.worker, self.number, self.engine.workers, self.engine.gpus_per_worker)
        self.process = context.Process(target=serve_jobs, args=arguments, daemon=True, name=f"floatlens-{self.number}")
        self.process.start()
        theirs.close()

    def send(self, entry: tuple[Any, int]) -> None:
        self.jobs.append(entry)
        with contextlib.suppress(OSError):  # if it died, this is detected when reading from it
            self.connection.send(entry[0])

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join()

    def ending(self) -> str:
        """How the process ended."""
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with code {code}"


def serve_jobs(
    connection: Connection, worker: Callable[[Any], Any], number: int, workers: int, gpus_per_worker: int | None
) -> None:
    """Run the jobs that arrive in a worker process, until the process that sends them is gone."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that sends the jobs decides
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
        connection.send(STARTED)
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
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
