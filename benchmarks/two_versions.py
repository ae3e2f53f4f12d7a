"""The cost of a default trace in two versions of FloatLens, compared with plain generation in each.

    python -m benchmarks.two_versions 7f03847^ 7f03847      what recording on request costs a trace without it

Both versions are taken out of git. Each round runs both, one after the other, in processes of their own: a trace and plain
generation by turns, median CPU time of each. The ratio of the two cancels most of what else the machine is doing. The
number of tensor operations of a trace is exact, whatever the machine is doing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parent.parent
CODE = """
import sys, tempfile, torch
from pathlib import Path
from benchmarks.measure import interleaved
from benchmarks.trace import model, random_ids
from torch.utils._python_dispatch import TorchDispatchMode
class Count(TorchDispatchMode):
    operations = 0
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations += 1
        return func(*args, **(kwargs or {}))
torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as folder:
    lens = model(Path(folder), "small")
    ids = random_ids(256, 4096)
    plain, trace = (lambda: lens.generate([ids], max_new_tokens=8)), (lambda: lens.trace(ids, max_new_tokens=8))
    taken = interleaved({"plain": plain, "trace": trace}, int(sys.argv[1]))
    with Count() as count:
        trace()
print(taken["plain"], taken["trace"], count.operations)
"""


def take_out(version: str, folder: Path) -> Path:
    """Write the sources of a version into a folder, and return where they are."""
    packed = subprocess.run(["git", "archive", version, "src"], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def measure(source: Path, rounds: int) -> tuple[float, int]:
    """CPU time of a trace over that of plain generation, and its operations, by one process that imports from `source`."""
    env = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", CODE, str(rounds)]
    done = subprocess.run(words, env=env, cwd=source, capture_output=True, text=True, check=True)
    plain, trace, operations = done.stdout.split()[-3:]
    return float(trace) / float(plain), int(operations)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("versions", nargs=2, help="two commits")
    parser.add_argument("--processes", type=int, default=5, help="processes per version")
    parser.add_argument("--rounds", type=int, default=5, help="rounds per process")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sources = [take_out(version, Path(folder) / str(number)) for number, version in enumerate(given.versions)]
        found: list[list[tuple[float, int]]] = [[], []]
        for _ in range(given.processes):
            for source, measured in zip(sources, found, strict=True):
                measured.append(measure(source, given.rounds))
    medians = []
    for version, measured in zip(given.versions, found, strict=True):
        ratios, operations = [each for each, _ in measured], measured[0][1]
        medians.append(statistics.median(ratios))
        spread = f"{min(ratios):.3f} to {max(ratios):.3f} over the processes"
        print(
            f"{version}: {medians[-1]:.3f} times the CPU time of plain generation ({spread}), {operations} operations"
        )
    print(f"from the first version to the second: {100 * (medians[1] / medians[0] - 1):+.1f} %")


if __name__ == "__main__":
    main()
