"""The lock of a run folder: one run writes to it at a time, and a dead process does not hold it.

The file `lock` is a claim. It is created on the condition that there is none, names its process, has a random nonce and
is renewed every few seconds. A claim that is not renewed for a while is stale and may be replaced. Before a
result is written, the claim must still have the nonce of its run, so a run that was stopped for minutes and replaced
meanwhile does not write again. On a disk the kernel's lock (filelock) is taken first: it ends with its process in any case,
so a run can be resumed immediately.
"""

from __future__ import annotations

import atexit
import errno
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

import filelock

from floatlens.errors import FloatLensError
from floatlens.store.storage import Storage

NAME = "lock"
KERNEL = "lock.kernel"  # separate from the claim, since other processes open the file that the kernel locks
BEAT = 20.0  # seconds between two renewals
STALE = 90.0  # seconds without a renewal after which the process counts as dead
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)  # a disk without kernel locks
SETTLE = 0.2  # seconds after which a replaced claim is read again: another process may have replaced it too
_HELD: set[str] = set()  # nonces of the locks of this process


class RunLock:
    """Holds a run folder for this process until `release`."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.pid = os.getpid()
        self.nonce = uuid.uuid4().hex
        self.kernel = self._lock_kernel()
        try:
            self._claim()
        except BaseException:
            self._release_kernel()
            raise
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_stopped, name="floatlens-lock", daemon=True)
        self._thread.start()
        _HELD.add(self.nonce)
        atexit.register(self.release)

    def release(self) -> None:
        """Remove the claim, if it is still this one's, and release the kernel's lock."""
        atexit.unregister(self.release)
        if self.pid != os.getpid():  # a forked child
            return
        self._stop.set()
        self._thread.join(5)
        _HELD.discard(self.nonce)
        try:
            if read_claim(self.storage).get("nonce") == self.nonce:
                self.storage.remove(NAME)
        except (OSError, FloatLensError):
            pass
        finally:
            self._release_kernel()

    def _claim(self) -> None:
        try:
            self.storage.create(NAME, self._content())
        except FileExistsError:
            claim = read_claim(self.storage)
            if claim.get("nonce") == self.nonce:  # the response to the first request was lost, and it was sent again
                return
            if self._is_alive(claim):
                raise self._in_use() from None
            self.storage.write(NAME, self._content())
            if self.kernel is None:
                time.sleep(SETTLE)
        if read_claim(self.storage).get("nonce") != self.nonce:
            raise self._in_use()

    def _is_alive(self, claim: dict[str, Any]) -> bool:
        """Whether the process of a claim may still write."""
        if not claim and self.kernel is not None:
            return False  # a process that died before it could write its claim
        if claim and claim.get("machine") == machine_id():
            if self.kernel is not None and claim.get("kernel"):
                return False  # it would hold the kernel's lock
            if claim.get("pid") == os.getpid():  # this process, or a dead one that had its number
                return claim.get("nonce") in _HELD
            return _process_exists(claim.get("pid"))
        try:
            age = self.storage.age(NAME)
        except FileNotFoundError:
            return False
        if age < -STALE:
            raise FloatLensError(
                f"{self.storage}/{NAME} was written {-age:.0f} seconds in the future: a clock is or was wrong; "
                "if no other run writes there, delete that file"
            )
        return age < STALE

    def _content(self) -> bytes:
        claim = {
            "pid": self.pid,
            "machine": machine_id(),
            "kernel": self.kernel is not None,
            "nonce": self.nonce,
            "time": time.time(),
        }
        return json.dumps(claim).encode()

    def _in_use(self) -> FloatLensError:
        return FloatLensError(
            f"{self.storage} is in use by {_describe(read_claim(self.storage))}; "
            "wait until that run has ended, or choose another --out"
        )

    def _renew_until_stopped(self) -> None:
        while not self._stop.wait(BEAT):
            try:
                check_nonce(self.storage, self.nonce)
                self.storage.write(NAME, self._content())
            except (OSError, FloatLensError):  # a full disk, or no longer ours: the next write of a result checks again
                continue

    def _lock_kernel(self) -> filelock.BaseFileLock | None:
        """The kernel's lock; None at a URL and on a disk without such locks."""
        if self.storage.folder is None:
            return None
        path = self.storage.folder / KERNEL
        if path.is_symlink():
            raise FloatLensError(f"{path} is a link; remove it")
        lock = filelock.FileLock(path, timeout=0, thread_local=False, fallback_to_soft=False)
        try:
            lock.acquire()
        except filelock.Timeout:
            raise self._in_use() from None
        except NotImplementedError:
            return None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            return None
        return lock

    def _release_kernel(self) -> None:
        if self.kernel is not None:
            # Removed while it is held. A process that opened it before and locks it now still has to make a claim.
            Path(self.kernel.lock_file).unlink(missing_ok=True)
            self.kernel.release()


def read_claim(storage: Storage) -> dict[str, Any]:
    """The content of the lock file; empty if there is none or it cannot be parsed."""
    try:
        found = json.loads(storage.read(NAME))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def check_nonce(storage: Storage, nonce: str) -> None:
    """Raise an error if the lock is not the one with this nonce: another run has taken the folder over."""
    claim = read_claim(storage)
    if claim.get("nonce") != nonce:
        raise FloatLensError(
            f"{storage} is no longer held by this run but by {_describe(claim)}; this run stops writing"
        )


def _describe(claim: dict[str, Any]) -> str:
    where = "this" if claim.get("machine") == machine_id() else "another"
    return f"process {claim.get('pid', '?')} on {where} machine" if claim else "another process"


@cache
def machine_id() -> str:
    """An id of this boot of this machine. Runs are shared, so it is a hash and not the host's name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return hashlib.sha256(f"{socket.gethostname()} {boot}".encode()).hexdigest()[:16]


def _process_exists(pid: object) -> bool:
    if not isinstance(pid, int) or pid < 1:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
