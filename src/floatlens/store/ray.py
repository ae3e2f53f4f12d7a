"""The Ray engine: actors on a cluster, one model each.

An actor that dies, alone or with its node, is replaced, and its jobs go to another. Anyone who can reach a Ray cluster can
run code on it, so one that is started here listens on the loopback interface only and requires a random token.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from floatlens.errors import FloatLensError
from floatlens.store.engine import STARTED, Engine, RemoteWorker, WorkerDied, run_job

PATIENCE = 300.0  # seconds to wait for a first worker
CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # if it is "0", Ray listens on the loopback interface only
LOCAL = "local"  # Ray's name for a new cluster on this machine
OBJECT_STORE = 200 * 2**20  # bytes of a cluster that is started here; only prompts and rows pass through


@dataclass
class RayEngine(Engine):
    """Actors on the cluster that RAY_ADDRESS names ("auto", "ray://…", host:port), or on one that is started here."""

    workers: int = 1
    gpus_per_worker: float = 0.0
    cpus_per_worker: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.connected_here = False
        self.since = 0.0  # when the last worker was started

    def run(self, worker: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        import_ray(private=_address() == LOCAL)  # one that is missing is reported before anything is planned
        return super().run(worker, jobs)

    def start_worker(self, worker: Callable[[Any], Any], number: int) -> RayWorker:
        ray = import_ray()
        self.connected_here = self._connect(ray) or self.connected_here
        self.since = time.monotonic()
        # Ray's own retries are off: the queue gives a job to another actor at once.
        options = {"num_cpus": self.cpus_per_worker, "num_gpus": self.gpus_per_worker, "max_restarts": 0}
        return RayWorker(number, ray, ray.remote(**options)(RayActor).remote(worker))

    def wait_for(self, workers: Sequence[RayWorker]) -> list[RemoteWorker]:
        ray = import_ray()
        found, _ = ray.wait([worker.reference for worker in workers], num_returns=1, timeout=5.0)
        if not any(worker.ready for worker in self._pool) and time.monotonic() - self.since > PATIENCE:
            raise FloatLensError(self._explain_no_room(ray))
        return [worker for worker in workers if worker.reference in found]

    def shut_down(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        if self.connected_here:
            import_ray().shutdown()
            self.connected_here = False

    def _connect(self, ray: Any) -> bool:
        """Join the cluster, or start one on this machine; False if this process had joined one before."""
        if ray.is_initialized():
            return False
        address = _address()
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address == LOCAL:
            cores = max(os.cpu_count() or 1, int(self.workers * self.cpus_per_worker))
            options |= {"include_dashboard": False, "num_cpus": cores, "object_store_memory": OBJECT_STORE}
        try:
            ray.init(address=address, **options)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            raise FloatLensError(f"the Ray cluster at {address!r} cannot be reached: {_first_line(error)}") from None
        return True

    def _explain_no_room(self, ray: Any) -> str:
        resources = {name: n for name, n in ray.cluster_resources().items() if name in ("CPU", "GPU")}
        return (
            f"no Ray worker could start within {PATIENCE:.0f} seconds: each needs {self.cpus_per_worker} CPU and "
            f"{self.gpus_per_worker} GPU, the cluster has {resources}; use fewer --gpus-per-worker or a larger cluster"
        )


def _address() -> str:
    """Where the cluster is. Ray by itself would join any cluster that it finds on this machine."""
    return os.environ.get("RAY_ADDRESS") or LOCAL


class RayWorker(RemoteWorker):
    """An actor."""

    def __init__(self, number: int, ray: Any, actor: Any) -> None:
        super().__init__(number, ready=False, started=True)
        self.ray, self.actor = ray, actor
        self.references: list[Any] = [actor.start.remote()]  # to what it returns, in order

    @property
    def reference(self) -> Any:
        return self.references[0]

    def send(self, job: Any) -> None:
        self.references.append(self.actor.run.remote(job))

    def receive(self) -> tuple[Any, ...]:
        try:
            sent: tuple[Any, ...] = self.ray.get(self.reference)
        except self.ray.exceptions.RayTaskError as error:
            raise FloatLensError(f"a Ray worker could not start: {_last_line(error)}") from error
        except self.ray.exceptions.RayError as error:  # the actor died, or its node with the result
            if "creation task" in str(error):
                raise FloatLensError(f"a Ray worker could not start: {_last_line(error)}") from error
            raise WorkerDied(f"on Ray died: {_first_line(error)}; see Ray's logs") from None
        self.references.pop(0)
        self.ready = True
        return sent

    def stop(self) -> None:
        self.ray.kill(self.actor, no_restart=True)


class RayActor:
    """The worker in a process of Ray's."""

    def __init__(self, worker: Callable[[Any], Any]) -> None:
        self.worker = worker

    def start(self) -> tuple[str]:
        return (STARTED,)

    def run(self, job: Any) -> tuple[str, Any]:
        return run_job(self.worker, job)


def import_ray(private: bool = False) -> Any:
    """The package ray, with telemetry disabled.

    Parameters
    ----------
    private: whether a cluster started from here is closed to others. Ray reads these settings once, when it is imported.
    """
    if private and "ray" in sys.modules:
        if os.environ.get(CLUSTERS) != "0" and not sys.modules["ray"].is_initialized():
            raise FloatLensError(
                "ray was imported before, so a cluster that is started now would be open to the network; "
                "remove that import, or start a cluster of your own with ray.init()"
            )
    elif private:
        os.environ.setdefault(CLUSTERS, "0")
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
