"""The Ray engine: actors on a cluster, one model each, that write directly to the run folder.

An actor that dies, alone or with its node, is replaced, and its jobs go to another. Only a few jobs are sent to an actor at
a time, so that no queue builds up. Anyone who can reach a Ray cluster can run code on it, so one that is started here
listens on the loopback interface only and requires a random token.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
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

PATIENCE = 300.0  # seconds to wait for a first worker
LOCAL = "local"  # Ray's name for a new cluster on this machine
OBJECT_STORE = 200 * 2**20  # bytes of a cluster that is started here; only prompts and rows pass through


@dataclass
class RayEngine(WorkerPool["RayWorker"]):
    """Actors on the cluster at `address` ("auto", "ray://…", host:port), or on one that is started here."""

    workers: int = 1
    gpus_per_worker: float = 0.0
    address: str | None = None
    cpus_per_worker: float = 1.0

    @property
    def in_process(self) -> bool:
        return False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._connected_here = False

    def run(self, worker: Callable[[J], R], jobs: Iterable[J]) -> Iterator[tuple[J, R | JobFailure]]:
        """Run the jobs; yields each with its result."""
        ray = import_ray(private=self._address() == LOCAL)
        todo = JobQueue(jobs)
        if todo.empty():
            return
        self._connected_here = self._connect(ray) or self._connected_here
        pool = self._pool
        if pool and pool[0].worker is not worker:
            self._stop_workers()
        deaths = 0  # since the last result
        complete = False
        try:
            pool += [RayWorker(ray, self, worker) for _ in range(len(pool), self.workers)]
            since = time.monotonic()
            while True:
                for actor in pool:
                    while actor.ready and len(actor.jobs) < JOBS_PER_WORKER and (entry := todo.take()) is not None:
                        actor.send(entry)
                refs = [actor.started if not actor.ready else actor.jobs[0][2] for actor in pool if actor.busy]
                if not any(actor.jobs for actor in pool) and any(actor.ready for actor in pool):
                    complete = True
                    return
                done, _ = ray.wait(refs, num_returns=1, timeout=5.0)
                if not any(actor.ready for actor in pool) and time.monotonic() - since > PATIENCE:
                    raise FloatLensError(self._explain_no_room(ray))
                for ref in done:
                    actor = next(a for a in pool if a.busy and ref in (a.started, a.jobs[0][2] if a.jobs else None))
                    try:
                        result = ray.get(ref)
                    except ray.exceptions.RayTaskError as error:
                        raise FloatLensError(f"a Ray worker could not start: {_last_line(error)}") from error
                    except ray.exceptions.RayError as error:  # the actor died, or its node with the result
                        actor.stop()
                        if "creation task" in str(error):
                            raise FloatLensError(f"a Ray worker could not start: {_last_line(error)}") from error
                        deaths += 1
                        if deaths > MAX_TRIES * self.workers + MAX_TRIES:
                            raise FloatLensError(
                                f"Ray workers keep dying ({_first_line(error)}); see Ray's logs"
                            ) from None
                        yield from todo.put_back(actor.entries(), "its Ray worker died")
                        pool[pool.index(actor)] = RayWorker(ray, self, worker)
                        since = time.monotonic()
                        continue
                    if not actor.ready:
                        actor.ready = True
                        continue
                    deaths = 0
                    job, _, _ = actor.jobs.pop(0)
                    if isinstance(result, WorkerError):
                        result.reraise()
                    yield job, result
        finally:
            if not (complete and self._keep):  # workers in the middle of a job cannot be kept
                self._stop_workers()
            if not self._keep:
                self._shut_down()

    def _shut_down(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        if self._connected_here:
            import_ray().shutdown()
            self._connected_here = False

    def _connect(self, ray: Any) -> bool:
        """Join the cluster, or start one on this machine; False if this process had joined one before."""
        if ray.is_initialized():
            return False
        address = self._address()
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address == LOCAL:
            cores = max(os.cpu_count() or 1, int(self.workers * self.cpus_per_worker))
            options |= {"include_dashboard": False, "num_cpus": cores, "object_store_memory": OBJECT_STORE}
        try:
            ray.init(address=address, **options)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            raise FloatLensError(f"the Ray cluster at {address!r} cannot be reached: {_first_line(error)}") from None
        return True

    def _address(self) -> str:
        """Where the cluster is. Ray by itself would join any cluster that it finds on this machine."""
        return self.address or os.environ.get("RAY_ADDRESS") or LOCAL

    def _explain_no_room(self, ray: Any) -> str:
        resources = {name: n for name, n in ray.cluster_resources().items() if name in ("CPU", "GPU")}
        return (
            f"no Ray worker could start within {PATIENCE:.0f} seconds: each needs {self.cpus_per_worker} CPU and "
            f"{self.gpus_per_worker} GPU, the cluster has {resources}; use fewer --gpus-per-worker or a larger cluster"
        )


@dataclass(eq=False)
class RayWorker:
    """An actor and the jobs sent to it; it works on the first."""

    ray: Any
    engine: RayEngine
    worker: Callable[[Any], Any]
    ready: bool = False
    jobs: list[tuple[Any, int, Any]] = field(default_factory=list)  # job, tries, reference to the result

    def __post_init__(self) -> None:
        # Ray's own retries are off: the queue gives a job to another actor at once.
        options = {"num_cpus": self.engine.cpus_per_worker, "num_gpus": self.engine.gpus_per_worker, "max_restarts": 0}
        self.actor = self.ray.remote(**options)(RayActor).remote(self.worker)
        self.started = self.actor.start.remote()

    @property
    def busy(self) -> bool:
        return not self.ready or bool(self.jobs)

    def send(self, entry: tuple[Any, int]) -> None:
        job, tries = entry
        self.jobs.append((job, tries, self.actor.run.remote(job)))

    def entries(self) -> list[tuple[Any, int]]:
        return [(job, tries) for job, tries, _ in self.jobs]

    def stop(self) -> None:
        self.ray.kill(self.actor, no_restart=True)


class RayActor:
    """The worker in a process of Ray's."""

    def __init__(self, worker: Callable[[Any], Any]) -> None:
        self.worker = worker

    def start(self) -> bool:
        return True

    def run(self, job: Any) -> Any:
        return run_job(self.worker, job)


def import_ray(private: bool = False) -> Any:
    """The package ray, with telemetry disabled.

    Parameters
    ----------
    private: whether a cluster started from here is closed to others. Ray reads these settings once, when it is imported.
    """
    if private and "ray" not in sys.modules:
        os.environ.setdefault(
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0"
        )  # without clusters, Ray uses the loopback interface
        if os.environ.setdefault("RAY_AUTH_MODE", "token") == "token" and "RAY_AUTH_TOKEN_PATH" not in os.environ:
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a worker without a GPU keeps its environment
    try:
        import ray
    except ImportError:
        raise FloatLensError("the Ray engine needs the package ray: pip install 'floatlens[ray]'") from None
    return ray


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _last_line(error: BaseException) -> str:
    """The last line of a worker's traceback, which names the error."""
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
