"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_atomically(target: Path) -> Iterator[Path]:
    """A temporary path beside `target` that takes its place when the block ends well, and is removed when it does not."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent)) / target.name
    try:
        yield temporary
        if target.is_dir() and not target.is_symlink():
            retired = temporary.parent / "retired"
            os.replace(target, retired)
        os.replace(temporary, target)
    finally:
        shutil.rmtree(temporary.parent, ignore_errors=True)
