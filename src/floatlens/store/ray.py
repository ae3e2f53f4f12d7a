"""The Ray engine: actors on a cluster, one model each.

An actor that dies, alone or with its node, is replaced, and its job goes to another. Anyone who can reach a Ray cluster can
run code on it, so one that is started here listens on the loopback interface only and requires a random token.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from floatlens.errors import FloatLensError
from floatlens.store.engine import READY, Engine, WorkerDied, run_job

PATIENCE = 300.0  # seconds to wait for a first worker
CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # if it is "0", Ray listens on the loopback interface only
LOCAL = "local"  # Ray's name for a new cluster on this machine
OBJECT_STORE = 200 * 2**20  # bytes of a cluster that is started here; only prompts and rows pass through


class RayEngine(Engine):
    """Actors on the cluster that RAY_ADDRESS names ("auto", "ray://…", host:port), or on one that is started here.

    Each actor has one CPU and `gpus_per_worker` GPUs.
    """

    connected_here = False
    since = 0.0  # when the last worker was started

    def run(self, worker: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        import_ray(private=_address() == LOCAL)  # one that is missing is reported before anything is planned
        return super().run(worker, jobs)

    def start_worker(self, worker: Callable[[Any], Any], number: int) -> RayWorker:
        ray = import_ray()
        if not ray.is_initialized():
            self._connect(ray)
        self.since = time.monotonic()
        # Ray's own retries are off: the queue gives a job to another actor at once.
        options = {"num_cpus": 1, "num_gpus": self.gpus_per_worker or 0, "max_restarts": 0}
        return RayWorker(number, ray, ray.remote(**options)(RayActor).remote(worker))

    def wait_for(self, workers: Sequence[RayWorker]) -> list[RayWorker]:
        ray = import_ray()
        found, _ = ray.wait([worker.reference for worker in workers], num_returns=1, timeout=5.0)
        if not any(worker.ready for worker in self._pool) and time.monotonic() - self.since > PATIENCE:
            resources = {name: n for name, n in ray.cluster_resources().items() if name in ("CPU", "GPU")}
            raise FloatLensError(
                f"no Ray worker could start within {PATIENCE:.0f} seconds: each needs 1 CPU and "
                f"{self.gpus_per_worker or 0:g} GPU, the cluster has {resources}; "
                "use fewer GPUs per worker or a larger cluster"
            )
        return [worker for worker in workers if worker.reference in found]

    def shut_down(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        if self.connected_here:
            import_ray().shutdown()
            self.connected_here = False

    def _connect(self, ray: Any) -> None:
        """Join the cluster, or start one on this machine."""
        address = _address()
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address == LOCAL:
            options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
            options["num_cpus"] = max(os.cpu_count() or 1, self.workers)
        try:
            ray.init(address=address, **options)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            raise FloatLensError(f"the Ray cluster at {address!r} cannot be reached: {_lines(error)[0]}") from None
        self.connected_here = True


def _address() -> str:
    """Where the cluster is. Ray by itself would join any cluster that it finds on this machine."""
    return os.environ.get("RAY_ADDRESS") or LOCAL


class RayWorker:
    """An actor; `reference` is to what it returns next."""

    def __init__(self, number: int, ray: Any, actor: Any) -> None:
        self.number, self.ready, self.job, self.tries = number, False, None, 0
        self.ray, self.actor, self.reference = ray, actor, actor.start.remote()

    def send(self, job: Any) -> None:
        self.reference = self.actor.run.remote(job)

    def receive(self) -> tuple[Any, ...]:
        try:
            sent: tuple[Any, ...] = self.ray.get(self.reference)
            return sent
        except self.ray.exceptions.RayError as error:  # the actor died, or its node with the result
            if isinstance(error, self.ray.exceptions.RayTaskError) or "creation task" in str(error):
                raise FloatLensError(f"a Ray worker could not start: {_lines(error)[-1].strip()}") from error
            raise WorkerDied(f"on Ray died: {_lines(error)[0]}; see Ray's logs") from None

    def stop(self) -> None:
        self.ray.kill(self.actor, no_restart=True)


class RayActor:
    """The worker in a process of Ray's."""

    def __init__(self, worker: Callable[[Any], Any]) -> None:
        self.worker = worker

    def start(self) -> tuple[str]:
        return (READY,)

    def run(self, job: Any) -> tuple[str, Any]:
        return run_job(self.worker, job)


def import_ray(private: bool = False) -> Any:
    """The package ray, with telemetry disabled.

    With `private`, a cluster that is started from here is closed to others. Ray reads these settings once, when it is
    imported.
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


def _lines(error: BaseException) -> list[str]:
    return str(error).strip().splitlines() or [type(error).__name__]
