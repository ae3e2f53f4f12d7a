"""Engines run jobs in several processes or on a cluster (`ray.py`), and yield each result as it arrives.

Without an engine, whoever has the jobs runs them in this process. A job is a batch that was planned in advance, so the
engine does not affect the numbers. A worker keeps its model from job to job and returns the results; the process that sent
the jobs writes them.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, TypeVar

from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    from floatlens.options import Run

T = TypeVar("T")
MAX_TRIES = 3  # workers that may die with a job before the job is given up
READY, PROGRESS, DONE, FAILED = "ready", "progress", "done", "failed"  # what a worker sends
# Called with a label and the number of items, if known; returns a function to call once per finished item.
ProgressCallback = Callable[[str, int | None], Callable[[], None]]
_connection: Connection | None = None  # in a worker process: to the process that sends its jobs


def as_one(watch: ProgressCallback | None, label: str, total: int | None) -> ProgressCallback | None:
    """Return a callback that shows several parts as one."""
    advance = watch(label, total) if watch else None
    return (lambda *_: advance) if advance else None


class WorkerDied(FloatLensError):
    """Says how a worker ended; also the result of a job that every worker died with."""


class Engine:
    """Runs jobs with `workers` processes. With GPUs, each sees its own `gpus_per_worker` of them.

    A subclass says how a worker elsewhere is started and waited for. A worker has a `number`, and gets jobs once it is
    `ready`; `job` and `tries` are its job and how often that was tried. It has `send(job)`, `stop()` and `receive()`, which
    returns what the worker sent, one of the kinds above and its content, or raises WorkerDied.
    """

    def __init__(self, workers: int = 1, gpus_per_worker: float | None = None) -> None:
        if workers < 1:
            raise FloatLensError(f"workers {workers} is not a positive number; use --engine local")
        self.workers, self.gpus_per_worker = workers, gpus_per_worker
        self.progress: Callable[..., None] | None = None  # called with what a worker reports
        self._pool: list[Any] = []
        self._worker: Callable[[Any], Any] | None = None
        self._keep = False

    def start_worker(self, worker: Callable[[Any], Any], number: int) -> Any:
        return LocalWorker(number, worker, self.workers, self.gpus_per_worker)

    def wait_for(self, workers: Sequence[Any]) -> Sequence[Any]:
        """Those of the workers from which something can be received; possibly none."""
        found = wait([worker.connection for worker in workers])
        return [worker for worker in workers if worker.connection in found]

    def shut_down(self) -> None:
        """Stop everything but workers that the engine started."""

    def run(self, worker: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Call the worker with each job; yields each job with its result, in any order.

        A job that kills its workers is split with its method `split`, if it has one, to find the part that does; the result
        of that part is WorkerDied.
        """
        others = ((job, 0) for job in jobs)
        first = next(others, None)
        if first is None:  # no worker needs to start
            return
        repeated = [first]
        if self._worker is not worker:
            self._stop_workers()
        pool, self._worker = self._pool, worker
        deaths = 0  # since the last result
        complete = False
        try:
            pool += [self.start_worker(worker, number) for number in range(len(pool), self.workers)]
            while True:
                for each in (each for each in pool if each.ready and each.job is None):
                    if entry := repeated.pop(0) if repeated else next(others, None):
                        each.job, each.tries = entry
                        each.send(each.job)
                busy = [each for each in pool if each.job is not None or not each.ready]
                if len(busy) < len(pool) and not any(each.job is not None for each in busy):
                    complete = True
                    return
                for each in self.wait_for(busy):
                    try:
                        kind, *content = each.receive()
                    except WorkerDied as death:
                        each.stop()
                        deaths += 1
                        if deaths > MAX_TRIES * self.workers + MAX_TRIES:
                            raise FloatLensError(
                                f"workers keep dying (the last {death}); use fewer workers or a smaller --batch-size"
                            ) from None
                        if each.job is not None:
                            again = try_again(each.job, each.tries)
                            repeated[:0] = again
                            if not again:
                                yield each.job, WorkerDied(f"its worker {death}, {MAX_TRIES} times")
                        pool[pool.index(each)] = self.start_worker(worker, each.number)
                        continue
                    if kind == READY:
                        each.ready = True
                    elif kind == PROGRESS:
                        assert self.progress is not None
                        self.progress(*content)
                    elif kind == FAILED:
                        raise content[0]
                    else:
                        deaths, job, each.job = 0, each.job, None
                        yield job, content[0]
        finally:
            if not (complete and self._keep):  # workers in the middle of a job cannot be kept
                self._stop_workers()
            if not self._keep:
                self.shut_down()

    @contextlib.contextmanager
    def keep_workers(self) -> Iterator[None]:
        """Within the block, runs with the same worker use the same processes: models are loaded once."""
        self._keep = True
        try:
            yield
        finally:
            self._keep = False
            self._stop_workers()
            self.shut_down()

    def _stop_workers(self) -> None:
        for worker in self._pool:
            worker.stop()
        self._pool.clear()


def try_again(job: Any, tries: int) -> list[tuple[Any, int]]:
    """Return the job of a dead worker, or its parts, with the number of their tries; nothing if it is given up."""
    if tries + 1 < MAX_TRIES:
        return [(job, tries + 1)]
    parts = job.split() if hasattr(job, "split") else [job]
    return [(part, MAX_TRIES - 1) for part in parts] if len(parts) > 1 else []


def run_job(worker: Callable[[Any], Any], job: Any) -> tuple[str, Any]:
    """Run a job in a worker process; an error that is not meant for users carries the worker's traceback."""
    try:
        return DONE, worker(job)
    except Exception as error:
        if not isinstance(error, FloatLensError | OSError):
            error.add_note(f"in a worker:\n{traceback.format_exc()}")
        return FAILED, sendable(error)


def sendable(error: Exception) -> Exception:
    """Return the error, or one with its text if it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))  # our own bytes; this only tests whether the error can be pickled
        return error
    except Exception:  # some errors cannot be rebuilt from their arguments
        return RuntimeError(f"{type(error).__name__}: {error}")


def make_engine(run: Run) -> Engine | None:
    """Return the engine that the options describe, None for this process; raise an error for invalid ones."""
    match = re.fullmatch(r"(local|ray)(?::(\d+)(?:x(\d+(?:\.\d+)?))?)?", run.engine)
    if not match:
        raise FloatLensError(f"unknown engine {run.engine!r}; use local or ray, such as local:4 or ray:8x2")
    name, count, gpus = match[1], int(match[2] or 1), float(match[3]) if match[3] else None
    if name == "ray":
        from floatlens.store.ray import RayEngine

        return RayEngine(count, gpus)
    if gpus is not None and gpus != int(gpus):
        raise FloatLensError(f"the local engine needs whole GPUs, not {gpus}; use --engine ray:{count}x{gpus}")
    return None if count == 1 else Engine(count, gpus)


# --- processes on this machine ----------------------------------------------------------------------------------------


class LocalWorker:
    """A worker process."""

    def __init__(self, number: int, *work: Any) -> None:
        self.number, self.ready, self.job, self.tries = number, False, None, 0
        self.connection, theirs = multiprocessing.Pipe()
        # Spawned, not forked: a forked process cannot use a GPU, and would share the lock of the run folder.
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=serve_jobs, args=(theirs, number, *work), daemon=True)
        self.process.start()
        theirs.close()

    def send(self, job: Any) -> None:
        with contextlib.suppress(OSError):  # if it died, this is detected when reading from it
            self.connection.send(job)

    def receive(self) -> tuple[Any, ...]:
        try:
            sent: tuple[Any, ...] = self.connection.recv()
            return sent
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode or 0
            ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            raise WorkerDied(ended) from None

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join()


def serve_jobs(
    connection: Connection, number: int, worker: Callable[[Any], Any], workers: int, gpus_per_worker: float | None
) -> None:
    """Run the jobs that arrive in a worker process, until it is killed or the process that sends them is gone."""
    global _connection
    _connection = connection
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # the kernel ends this process when its parent dies, even by SIGKILL
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that sends the jobs decides
    if "fork" in multiprocessing.get_all_start_methods():
        # In a spawned process, locks such as Blosc's are semaphores with a name, which a killed process leaks. Under
        # this method they have none. It starts no process here: engines choose theirs themselves.
        multiprocessing.set_start_method("fork", force=True)
    use_own_devices(number, workers, gpus_per_worker)
    with contextlib.suppress(EOFError, OSError):  # the process that sends the jobs is gone
        connection.send((READY,))
        while True:
            connection.send(run_job(worker, connection.recv()))


def use_own_devices(number: int, workers: int, gpus_per_worker: float | None) -> None:
    """Restrict this process to its GPUs, or to its share of the cores."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    if devices:
        count = int(gpus_per_worker or max(1, len(devices) // workers))
        mine = [devices[(number * count + i) % len(devices)] for i in range(count)]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
    else:
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
    if min(jobs, len(tasks)) < 2:
        return [_call(function, watch, job) for job in enumerate(tasks)]
    engine = Engine(min(jobs, len(tasks)))
    bars: dict[str, Callable[[], None]] = {}

    def show(name: str, label: str | None = None, total: int | None = None) -> None:
        """Begin a worker's progress bar if it has a label, otherwise advance it."""
        if watch is not None and label is not None:
            bars[name] = watch(label, total)
        elif watch is not None:
            bars[name]()

    engine.progress = show
    work = partial(_call, function, _send_progress)
    found = {number: result for (number, _), result in engine.run(work, enumerate(tasks))}
    return [found[number] for number in range(len(tasks))]


def _call(function: Callable[..., Any], watch: ProgressCallback | None, job: tuple[int, tuple[Any, ...]]) -> Any:
    try:
        return function(*job[1], watch=watch)
    except Exception as error:  # returned as a value, so that the other tasks go on
        return sendable(error)


def _send_progress(label: str, total: int | None) -> Callable[[], None]:
    connection, name = _connection, f"{os.getpid()} {label}"
    assert connection is not None
    connection.send((PROGRESS, name, label, total))
    return lambda: connection.send((PROGRESS, name))
