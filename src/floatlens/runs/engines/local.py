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
from floatlens.runs.engines.engine import AHEAD, TRIES, Queue, Raised, Staying, attempt


@dataclass
class Local(Staying):
    """`workers` processes; one means this process. With GPUs, each worker sees its own `gpus_per_worker` of them."""

    workers: int = 1
    gpus_per_worker: int | None = None

    @property
    def inside(self) -> bool:
        return self.workers == 1

    def run(self, worker: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Have the jobs done; each comes back with what the worker made of it."""
        if self.inside:
            for job in jobs:
                yield job, worker(job)
            return
        todo = Queue(jobs)
        if todo.empty():
            return
        hands = self._hands
        if hands and hands[0].worker is not worker:
            self._dismiss()
        dead = 0  # since the last job that was done
        whole = False
        try:
            hands += [Hand(worker, number, self) for number in range(len(hands), self.workers)]
            while True:
                for hand in hands:
                    while len(hand.flight) < AHEAD and (given := todo.next()) is not None:
                        hand.give(given)
                if not any(hand.flight for hand in hands):
                    whole = True
                    return
                for connection in wait([hand.connection for hand in hands if hand.flight]):
                    at = next(i for i, hand in enumerate(hands) if hand.connection is connection)
                    hand = hands[at]
                    try:
                        made = hand.connection.recv()
                    except (EOFError, OSError):
                        hand.stop()
                        dead += 1
                        if dead > TRIES * self.workers + TRIES:
                            raise FloatLensError(
                                f"worker processes die one after another ({hand.how()}); try fewer --workers"
                            ) from None
                        yield from todo.died(hand.flight, f"its worker {hand.how()}")
                        hands[at] = Hand(worker, hand.number, self)
                        continue
                    dead = 0
                    job, _ = hand.flight.pop(0)
                    if isinstance(made, Raised):
                        made.again()
                    yield job, made
        finally:
            if not (whole and self._stay):  # those that are in the middle of something cannot stay
                self._dismiss()


@dataclass
class Hand:
    """A worker process and the jobs that it was given, the one that it is at first."""

    worker: Callable[[Any], Any]
    number: int
    engine: Local
    flight: list[tuple[Any, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        # Spawned, not forked: a forked process cannot use a GPU, and would share the lock of the run folder.
        context = multiprocessing.get_context("spawn")
        arguments = (theirs, self.worker, self.number, self.engine.workers, self.engine.gpus_per_worker)
        self.process = context.Process(target=work, args=arguments, daemon=True, name=f"floatlens-{self.number}")
        self.process.start()
        theirs.close()

    def give(self, given: tuple[Any, int]) -> None:
        self.flight.append(given)
        with contextlib.suppress(OSError):  # it died: reading from it will say so
            self.connection.send(given[0])

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join()

    def how(self) -> str:
        """How the process ended."""
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with code {code}"


def work(
    connection: Connection, worker: Callable[[Any], Any], number: int, workers: int, gpus_per_worker: int | None
) -> None:
    """What a worker process does: jobs, until there are none or the process that gives them is gone."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that gives the jobs decides
    share(number, workers, gpus_per_worker)
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def listen() -> None:  # always reading, so that neither side waits for the other to read
        while True:
            try:
                jobs.put(connection.recv())
            except (EOFError, OSError):
                os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        connection.send(attempt(worker, jobs.get()))


def die_with_parent() -> None:
    """On Linux the kernel ends this process when the one that started it dies, even of SIGKILL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def share(number: int, workers: int, gpus_per_worker: int | None) -> None:
    """Give this process its part of the machine: its GPUs, or its share of the cores."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    if devices and devices != [""]:
        each = gpus_per_worker or max(1, len(devices) // workers)
        mine = [devices[(number * each + i) % len(devices)] for i in range(each)]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
    elif workers > 1:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
