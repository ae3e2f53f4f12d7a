"""How large a trace is on disk, what writing it costs, and how far half precision is from what was recorded.

    python -m benchmarks.storage tiny-mdm --length 256
    python -m benchmarks.storage smollm2-mdm --rounds 1

A prompt of about 700 tokens, 32 new ones in 32 steps. The size for the shape of LLaDA-8B (732 positions, 32 steps, 32
layers, 32 heads, as many key/value heads) is extrapolated from the bytes per number of each variable. The noise of a
statistic is how much it changes if the model computes in bfloat16 instead of float32, for the same text.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

import floatlens as fl
from floatlens import Lens, Prompt, Trace
from floatlens.trace.summarise import Detail, is_per_head

LLADA = {"step": 32, "layer": 32, "head": 32, "kv_head": 32, "position": 732}
WAYS: dict[str, tuple[Detail, str]] = {
    "full, float32": ("full", "float32"),
    "full (default)": ("full", "float16"),
    "summary": ("summary", "float16"),
}
NEW = 32
MB = 1e6


def long_prompt(lens: Lens, length: int) -> Prompt:
    """A question of the synthetic world with as many passages as it takes to reach a length."""
    samples = list(fl.read("world:fresh", limit=60))
    passages = [passage for sample in samples for passage in sample.passages]
    for count in range(1, len(passages) + 1):
        prompt = lens.prompt(samples[0].question, passages[:count], gold=[0])
        if len(prompt.ids) >= length:
            break
    return prompt


def sizes(folder: Path) -> dict[str, int]:
    """Bytes of each variable; the group's own file counts as `attributes`."""
    found = {"attributes": (folder / "zarr.json").stat().st_size}
    for inside in (path for path in folder.iterdir() if path.is_dir()):
        found[inside.name] = sum(file.stat().st_size for file in inside.rglob("*") if file.is_file())
    return found


def as_llada(trace: Trace, stored: dict[str, int]) -> float:
    """Bytes that a stored trace would have in the shape of LLaDA-8B, if its numbers took as many bytes each."""
    total = 0.0
    for name, size in stored.items():
        factor = 1.0
        if name in trace.data:
            for dim, count in zip(trace.data[name].dims, trace.data[name].shape, strict=True):
                factor *= LLADA.get(str(dim), count) / count
        total += size * factor
    return total


def noise(name: str, length: int) -> None:
    """Print the error of half precision beside the difference between float32 and bfloat16, root mean squares."""
    single, half = (fl.load(name, dtype=dtype) for dtype in ("float32", "bfloat16"))
    prompt = long_prompt(single, length)
    trace = single.trace(prompt, max_new_tokens=8)
    other = half.replay(prompt, trace.written, trace.order)
    print(f"{'':18}float16 / bfloat16: rms error of the stored numbers, and of a model that computes in bfloat16")
    with tempfile.TemporaryDirectory() as folder:
        stored = Trace.open(trace.save(Path(folder, "trace")))
        for variable in (str(key) for key, one in trace.data.data_vars.items() if is_per_head(one)):
            given = trace.data[variable].values
            errors = [np.sqrt(np.nanmean((t.data[variable].values - given) ** 2)) for t in (stored, other)]
            scale = np.nanstd(given)
            print(f"{variable:16}  {errors[0] / scale:.1e}   {errors[1] / scale:.1e}   of the standard deviation")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="tiny-mdm")
    parser.add_argument("--length", type=int, default=700, help="Tokens of the prompt.")
    parser.add_argument("--rounds", type=int, default=5, help="Runs of each way; the median is printed.")
    given = parser.parse_args()
    lens = fl.load(given.model)
    prompt = long_prompt(lens, given.length)
    lens.trace(prompt, max_new_tokens=2).save(Path(tempfile.mkdtemp(), "warm"))
    seconds: dict[str, list[float]] = {way: [] for way in ("trace", *WAYS)}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.rounds):
            start = time.process_time()
            trace = lens.trace(prompt, max_new_tokens=NEW)
            seconds["trace"].append(time.process_time() - start)
            for way, (detail, dtype) in WAYS.items():
                start = time.process_time()
                trace.save(Path(folder, f"{way} {number}"), dtype=dtype, detail=detail)
                seconds[way].append(time.process_time() - start)
        shape = ", ".join(f"{trace.data.sizes[dim]} {dim}s" for dim in ("position", "step", "layer", "head"))
        memory = sum(one.nbytes for one in trace.data.data_vars.values())
        tracing = statistics.median(seconds["trace"])
        print(f"{given.model}: {shape}; {memory / MB:.1f} MB in memory, {tracing:.2f} s of CPU to trace")
        for way in WAYS:
            stored, opened = sizes(Path(folder, f"{way} 0")), Trace.open(Path(folder, f"{way} 0"))
            writing = statistics.median(seconds[way])
            print(
                f"{way:16}  {sum(stored.values()) / MB:7.2f} MB, {as_llada(opened, stored) / MB:6.1f} MB in the shape of "
                f"LLaDA-8B; written in {writing:.3f} s, {100 * writing / tracing:.1f} % of the trace"
            )
    noise(given.model, min(given.length, 128))


if __name__ == "__main__":
    main()
