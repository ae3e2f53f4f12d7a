"""Loading holds the weights once: tensors are converted one by one, and others stay mapped from their file."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import floatlens
from tests.models import checkpoints

STATUS = Path("/proc/self/status")


def private() -> float:
    """MiB of memory that belongs to the process alone, without pages that are mapped from files."""
    lines = STATUS.read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon"))) / 1024


def peak_of_loading(folder: Path, dtype: str) -> float:
    """MiB by which private memory rose at most while the weights were read."""
    before = private()
    seen, done = [before], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            seen.append(private())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        lens = floatlens.load(str(folder), dtype=dtype)
        assert lens.model.config.num_hidden_layers == 8
    finally:
        done.set()
        watcher.join()
    return max(*seen, private()) - before


@pytest.mark.skipif(not STATUS.exists(), reason="memory is read from Linux's /proc/self/status")
def test_the_weights_are_not_held_twice(tmp_path: Path) -> None:
    small = floatlens.load(str(checkpoints.llada(tmp_path / "small")))
    assert small.model is not None  # imports and caches are paid for before the measurement
    folder = checkpoints.llada(tmp_path / "large", width=512, layers=8, heads=8, vocab=4096, shards=3)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 2**20
    assert size > 60
    assert peak_of_loading(folder, "float32") < 1.3 * size
    assert peak_of_loading(folder, "bfloat16") < 1.3 * size / 2
