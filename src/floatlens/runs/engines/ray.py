"""The Ray engine: actors on a cluster, one model each, that write straight to the run folder.

An actor that dies, alone or with its node, is replaced; what it was at is done by another. Jobs are given out as there
is room, so that no queue of them builds up.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from floatlens.errors import FloatLensError
from floatlens.runs.engines.engine import AHEAD, TRIES, Queue, Raised, Staying, attempt

PATIENCE = 300.0  # seconds to wait for a first worker
OBJECTS = 200 * 2**20  # bytes of the object store of a cluster that is started here; only prompts and rows pass through


@dataclass
class Ray(Staying):
    """Actors on the cluster at `address` ("auto", "ray://…", host:port), or on one that is started here."""

    workers: int = 1
    gpus_per_worker: float = 0.0
    address: str | None = None
    cpus_per_worker: float = 1.0

    @property
    def inside(self) -> bool:
        return False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._began = False

    def run(self, worker: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Have the jobs done; each comes back with what the worker made of it."""
        ray = imported()
        todo = Queue(jobs)
        if todo.empty():
            return
        self._began = self._connect(ray) or self._began
        hands = self._hands
        if hands and hands[0].worker is not worker:
            self._dismiss()
        dead = 0
        whole = False
        try:
            hands += [Hand(ray, self, worker) for _ in range(len(hands), self.workers)]
            waiting = time.monotonic()
            while True:
                for hand in hands:
                    while hand.ready and len(hand.flight) < AHEAD and (given := todo.next()) is not None:
                        hand.give(given)
                refs = [hand.begun if not hand.ready else hand.flight[0][2] for hand in hands if hand.busy]
                if not any(hand.flight for hand in hands) and any(hand.ready for hand in hands):
                    whole = True
                    return
                done, _ = ray.wait(refs, num_returns=1, timeout=5.0)
                if not any(hand.ready for hand in hands) and time.monotonic() - waiting > PATIENCE:
                    raise FloatLensError(self._no_room(ray))
                for ref in done:
                    hand = next(h for h in hands if h.busy and ref in (h.begun, h.flight[0][2] if h.flight else None))
                    try:
                        made = ray.get(ref)
                    except ray.exceptions.RayTaskError as error:
                        raise FloatLensError(f"a Ray worker could not start: {_last_line(error)}") from error
                    except ray.exceptions.RayError as error:  # the actor died, or its node with what it had made
                        hand.stop()
                        if "creation task" in str(error):
                            raise FloatLensError(f"a Ray worker could not start: {_last_line(error)}") from error
                        dead += 1
                        if dead > TRIES * self.workers + TRIES:
                            raise FloatLensError(
                                f"Ray workers die one after another ({_first_line(error)}); see Ray's logs"
                            ) from None
                        yield from todo.died(hand.jobs(), "its Ray worker died")
                        hands[hands.index(hand)] = Hand(ray, self, worker)
                        waiting = time.monotonic()
                        continue
                    if not hand.ready:
                        hand.ready = True
                        continue
                    dead = 0
                    job, _, _ = hand.flight.pop(0)
                    if isinstance(made, Raised):
                        made.again()
                    yield job, made
        finally:
            if not (whole and self._stay):  # those that are in the middle of something cannot stay
                self._dismiss()
            if not self._stay:
                self._leave()

    def _leave(self) -> None:
        """Shut down a cluster that was started here."""
        if self._began:
            imported().shutdown()
            self._began = False

    def _connect(self, ray: Any) -> bool:
        """Join the cluster, or start one on this machine; True if it was done here."""
        if ray.is_initialized():
            return False
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self.address is None:
            cores = max(os.cpu_count() or 1, int(self.workers * self.cpus_per_worker))
            options |= {"include_dashboard": False, "num_cpus": cores, "object_store_memory": OBJECTS}
        try:
            ray.init(address=self.address, **options)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            raise FloatLensError(
                f"the Ray cluster at {self.address!r} cannot be reached: {_first_line(error)}"
            ) from None
        return True

    def _no_room(self, ray: Any) -> str:
        there = {name: n for name, n in ray.cluster_resources().items() if name in ("CPU", "GPU")}
        return (
            f"no Ray worker could start within {PATIENCE:.0f} seconds: each needs {self.cpus_per_worker} CPU and "
            f"{self.gpus_per_worker} GPU, the cluster has {there}; use fewer --gpus-per-worker or a larger cluster"
        )


@dataclass(eq=False)
class Hand:
    """An actor and the jobs that it was given, the one that it is at first."""

    ray: Any
    engine: Ray
    worker: Callable[[Any], Any]
    ready: bool = False
    flight: list[tuple[Any, int, Any]] = field(default_factory=list)  # job, tries, reference to what it comes to

    def __post_init__(self) -> None:
        # Ray's own retries are off: the queue gives a job to another actor at once.
        options = {"num_cpus": self.engine.cpus_per_worker, "num_gpus": self.engine.gpus_per_worker, "max_restarts": 0}
        self.actor = self.ray.remote(**options)(Actor).remote(self.worker)
        self.begun = self.actor.begin.remote()

    @property
    def busy(self) -> bool:
        return not self.ready or bool(self.flight)

    def give(self, given: tuple[Any, int]) -> None:
        job, tries = given
        self.flight.append((job, tries, self.actor.do.remote(job)))

    def jobs(self) -> list[tuple[Any, int]]:
        return [(job, tries) for job, tries, _ in self.flight]

    def stop(self) -> None:
        self.ray.kill(self.actor, no_restart=True)


class Actor:
    """The worker in a process of Ray's."""

    def __init__(self, worker: Callable[[Any], Any]) -> None:
        self.worker = worker

    def begin(self) -> bool:
        return True

    def do(self, job: Any) -> Any:
        return attempt(self.worker, job)


def imported() -> Any:
    """The package ray, told to send nothing home."""
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
    """What went wrong, at the end of a worker's traceback."""
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
