"""The lock of a run folder: one run writes to it at a time, and a dead process does not hold it.

The file `lock` names its holder, on a disk as at a URL. It is created on the condition that there is none, has a random
nonce and is renewed every few seconds. A holder on this machine is gone when its process is, one on another machine when it
has not renewed the file for a while; the file may then be replaced. Before a result is written, the file must still have the
nonce of its run, so a run that was stopped for minutes and replaced meanwhile writes no more.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import socket
import threading
import time
import uuid
from functools import cache
from pathlib import Path
from typing import Any

from floatlens.errors import FloatLensError
from floatlens.store.storage import Storage

NAME = "lock"
BEAT = 20.0  # seconds between two renewals
STALE = 90.0  # seconds without a renewal after which the process counts as dead
SETTLE = 0.2  # seconds after which a replaced lock is read again: another process may have replaced it too


class RunLock:
    """Holds a run folder for this process until `release`."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.pid = os.getpid()
        self.nonce = uuid.uuid4().hex
        self._take()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_stopped, name="floatlens-lock", daemon=True)
        self._thread.start()
        atexit.register(self.release)

    def release(self) -> None:
        """Remove the lock, if it is still this one's."""
        atexit.unregister(self.release)
        if self.pid != os.getpid():  # a forked child
            return
        self._stop.set()
        self._thread.join(5)
        try:
            if read_holder(self.storage).get("nonce") == self.nonce:
                self.storage.remove(NAME)
        except (OSError, FloatLensError):
            pass

    def _take(self) -> None:
        try:
            self.storage.write(NAME, self._content(), new=True)
        except FileExistsError:
            holder = read_holder(self.storage)
            if holder.get("nonce") == self.nonce:  # the response to the first request was lost, and it was sent again
                return
            if is_alive(holder):
                raise self._in_use() from None
            self.storage.write(NAME, self._content())
            time.sleep(SETTLE)
        if read_holder(self.storage).get("nonce") != self.nonce:
            raise self._in_use()

    def _content(self) -> bytes:
        holder = {"pid": self.pid, "machine": machine_id(), "began": process_start(self.pid)}
        return json.dumps(holder | {"nonce": self.nonce, "time": time.time()}).encode()

    def _in_use(self) -> FloatLensError:
        return FloatLensError(
            f"{self.storage} is in use by {_describe(read_holder(self.storage))}; "
            f"wait until that run has ended, or choose another --out (if it is dead, delete the file {NAME})"
        )

    def _renew_until_stopped(self) -> None:
        while not self._stop.wait(BEAT):
            try:
                check_nonce(self.storage, self.nonce)
                self.storage.write(NAME, self._content())
            except (OSError, FloatLensError):  # a full disk, or no longer ours: the next write of a result checks again
                continue


def read_holder(storage: Storage) -> dict[str, Any]:
    """The content of the lock file; empty if there is none or it cannot be parsed."""
    try:
        found = json.loads(storage.read(NAME))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def is_alive(holder: dict[str, Any]) -> bool:
    """Whether the holder of a lock may still write."""
    if holder.get("machine") == machine_id():
        began = process_start(holder.get("pid"))
        return began is not None and holder.get("began", began) == began  # another process may have its number now
    written = holder.get("time")
    return isinstance(written, int | float) and time.time() - written < STALE


def check_nonce(storage: Storage, nonce: str) -> None:
    """Raise an error if the lock is not the one with this nonce: another run has taken the folder over."""
    holder = read_holder(storage)
    if holder.get("nonce") != nonce:
        raise FloatLensError(
            f"{storage} is no longer held by this run but by {_describe(holder)}; this run stops writing"
        )


def _describe(holder: dict[str, Any]) -> str:
    where = "this" if holder.get("machine") == machine_id() else "another"
    return f"process {holder.get('pid', '?')} on {where} machine" if holder else "another process"


@cache
def machine_id() -> str:
    """An id of this boot of this machine. Runs are shared, so it is a hash and not the host's name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return hashlib.sha256(f"{socket.gethostname()} {boot}".encode()).hexdigest()[:16]


def process_start(pid: object) -> str | None:
    """When a process of this machine began, in ticks since the boot; empty where that is unknown, None without a process."""
    if not isinstance(pid, int) or pid < 1:
        return None
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        pass
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return None if state == "Z" else fields[18]  # a dead process whose parent has not noticed yet does not write
