"""Atomic writes (a file or folder appears complete under its name, or not at all), and temporary folders."""

from __future__ import annotations

import atexit
import errno
import os
import re
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Names of unfinished files. A resumed run removes what a killed process left under them, and nothing else.
UNFINISHED = re.compile(r"\.floatlens-[0-9a-f]{32}")
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES)


def unfinished_name() -> str:
    """A new name that `UNFINISHED` matches."""
    return f".floatlens-{uuid.uuid4().hex}"


@contextmanager
def atomic_write(target: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `target` when the block succeeds and is removed when it fails."""
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = target.parent / unfinished_name()
    folder.mkdir(mode=0o700)
    temporary = folder / target.name
    try:
        yield temporary
        if target.is_symlink():  # a folder cannot replace a link
            target.unlink()
        elif target.is_dir():
            os.replace(target, folder / "retired")
        os.replace(temporary, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_durably(target: Path, content: bytes, new: bool = False) -> None:
    """Write a file so that after a power cut it is whole, the old or the new one, and the new one if this has returned.

    With `new` the file must not exist: FileExistsError if it does, even if two processes try at the same time.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / unfinished_name()
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if new:
            _give_new_name(temporary, target)
        else:
            os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(target.parent)


def _give_new_name(file: Path, target: Path) -> None:
    try:
        os.link(file, target)  # unlike a rename, this never replaces a file
    except OSError as error:
        if isinstance(error, FileExistsError) or error.errno not in NO_LINKS:
            raise
        with target.open("xb") as copy:  # a disk without hard links
            copy.write(file.read_bytes())


def temporary_folder(name: str) -> Path:
    """Create a temporary folder that is removed when this process exits."""
    folder = Path(tempfile.mkdtemp(prefix=f"floatlens-{name}-"))
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked child
        shutil.rmtree(folder, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, on systems that can open a folder."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network disks cannot
            raise
    finally:
        os.close(descriptor)


def cache_folder() -> Path:
    """The folder of what can be made again: FLOATLENS_CACHE, or by default `floatlens` in the user's cache folder."""
    if given := os.environ.get("FLOATLENS_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "floatlens"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "floatlens"
