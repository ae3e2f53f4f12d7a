"""The lock of a run folder: two processes do not share one by accident, and a dead one holds nothing.

On a disk the kernel holds the lock (`flock`) and lets go when the process dies, however it dies. Where there is no such
lock, or the holder is on another machine, the lock's file says who writes here and is touched every few seconds: one
that was not touched for a while is stale, and is taken over.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from typing import IO, Any

from floatlens.errors import FloatLensError
from floatlens.runs.storage import Disk, Remote

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NAME = "lock"
BEAT = 20.0  # seconds between two touches
STALE = 90.0  # seconds without a touch after which the holder counts as dead


class Lock:
    """Holds a run folder for this process until `release`."""

    def __init__(self, storage: Disk | Remote) -> None:
        self.storage = storage
        self.file: IO[str] | None = None
        self._stop = threading.Event()
        if isinstance(storage, Disk) and fcntl is not None:
            self.file = self._flocked(storage)
        self._refuse_if_alive()
        self._touch()
        threading.Thread(target=self._beat, name="floatlens-lock", daemon=True).start()

    def _flocked(self, storage: Disk) -> IO[str] | None:
        """The lock's file, locked by the kernel; None where the disk has no such locks."""
        path = storage.root / NAME
        while True:
            file = path.open("a+", encoding="utf-8")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                raise self._in_use() from None
            except OSError:
                file.close()
                return None
            # Between opening and locking, the holder before may have removed the file: then this is not the lock.
            if path.exists() and os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                return file
            file.close()

    def _refuse_if_alive(self) -> None:
        holder = self.holder()
        if not holder:
            return
        here = holder.get("host") == socket.gethostname()
        if here and (self.file is not None or not _alive(holder.get("pid")) or holder.get("pid") == os.getpid()):
            return
        if self.storage.age(NAME) < STALE:
            if self.file is not None:
                self.file.close()
            raise self._in_use()

    def _in_use(self) -> FloatLensError:
        holder = self.holder()
        who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}" if holder else "another process"
        return FloatLensError(
            f"{self.storage.place} is in use by {who}; wait until that has ended, or name another --out"
        )

    def holder(self) -> dict[str, Any]:
        """Who wrote the lock's file last; empty if nobody did."""
        try:
            found = json.loads(self.storage.read(NAME) or b"{}")
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _touch(self) -> None:
        content = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "time": time.time()})
        if self.file is None:
            self.storage.write(NAME, content.encode())
        else:  # in place: a renamed file would not be the one that is locked
            self.file.seek(0)
            self.file.truncate()
            self.file.write(content)
            self.file.flush()

    def _beat(self) -> None:
        while not self._stop.wait(BEAT):
            try:
                self._touch()
            except (OSError, ValueError):  # a full disk: the lock is held all the same
                continue

    def release(self) -> None:
        """Let go; the lock's file is removed."""
        self._stop.set()
        try:
            self.storage.remove(NAME)
        except OSError:
            pass
        finally:
            if self.file is not None:
                self.file.close()


def _alive(pid: Any) -> bool:
    if not isinstance(pid, int) or pid < 1:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
