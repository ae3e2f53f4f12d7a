"""floatlens doctor: check observation on this machine, and measure its cost."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floatlens.cli import options as common
from floatlens.cli import shared
from floatlens.options import Load

if TYPE_CHECKING:
    from floatlens.trace.trace import Trace

MODELS = ("tiny-mdm", "tiny-arm")
DTYPES = ("float32", "bfloat16", "float16")  # the last one not on a CPU
EXTRAS = ("ray", "gguf", "datasets", "anywidget", "starlette")  # listed only if they are installed
QUESTION = "On which river does the town of Ada Tarn lie?"
PASSAGES = ["Ada Tarn lives in Molen.", "Molen lies on the river Aste."]
COMPARED = ("received", "entropy", "flow", "qk", "qk_norm", "qk_cos", "value_norm", "received_writing")
TOLERANCE = 1e-4  # relative to the largest value of a statistic
AGREE = "All implementations agree."
DIFFER = "Some implementations differ: please open an issue with the output of floatlens doctor --json."
KERNEL_AGREES = 'The GPU kernel agrees with stream. Switch it on with: lens.trace(..., implementation="kernel")'
KERNEL_DIFFERS = "The GPU kernel does not agree with stream: do not use it, and please open an issue with this output."
SHOWN = ("floatlens", "python", "torch", "transformers", "platform", "device", "threads")


def command(
    device: Annotated[str | None, typer.Option(help="Device: auto, cpu, cuda, …")] = None,
    as_json: common.AsJson = False,
) -> None:
    """Check observation on this machine: all implementations against the reference, and the cost of a trace.

    Runs the bundled models for about a minute. Exits with 0 only if `fused` and `stream` agree with `exact`. On a GPU it
    also compares the kernel with `stream`, and prints the option that switches it on.

    Examples:

        floatlens doctor

        floatlens doctor --device cuda --json
    """
    import torch

    from floatlens.attention.kernel import available

    if device in (None, "auto"):
        device = "cuda" if torch.cuda.is_available() else "cpu"
    assert device is not None
    shared.check_device(Load(device_map=device))
    runs = [(name, device, dtype) for dtype in DTYPES[: 2 if device == "cpu" else 3] for name in MODELS]
    fused = ("fused", "stream"), ("stream",)  # fused computes in float32 on a CPU, and is stream elsewhere
    checks = [c for run in runs for c in compare(*run, fused[run[1:] != ("cpu", "float32")], "exact")]
    kernel = [c for run in runs for c in compare(*run, ("kernel",), "stream")] if available(device) else []
    found = {
        "versions": versions(),
        "device": device,
        "checks": checks,
        "kernel": kernel,
        "cost": cost(device, bool(kernel) and all("failed" not in check for check in kernel)),
        "agree": all(check["agrees"] for check in checks),
    }
    if as_json:
        shared.print_json(found)
    else:
        show(found)
    if not found["agree"]:
        raise typer.Exit(1)


def compare(
    name: str, device: str, dtype: str, implementations: Sequence[str], reference: str
) -> Iterator[dict[str, Any]]:
    """Yield the largest difference of each implementation from the reference, over all statistics of a short trace."""
    from floatlens.lens import load

    lens = load(name, device_map=device, dtype=dtype)
    prompt = lens.prompt(QUESTION, PASSAGES)
    expected = lens.trace(prompt, max_new_tokens=4, implementation=reference)
    for implementation in implementations:
        about = {"model": name, "dtype": dtype, "implementation": implementation}
        try:
            found = lens.trace(prompt, max_new_tokens=4, implementation=implementation)
        except Exception as error:  # whatever a compiler or driver raises for the kernel is what the user wants to know
            if implementation != "kernel":
                raise
            yield about | {"agrees": False, "failed": f"{type(error).__name__}: {error}".splitlines()[0]}
            continue
        largest, worst, same = difference(found, expected)
        yield about | {"error": largest, "worst": worst, "same_tokens": same, "agrees": same and largest <= TOLERANCE}


def difference(found: Trace, exact: Trace) -> tuple[float, str, bool]:
    """The largest error relative to a statistic's largest value, the statistic, and whether the tokens are equal."""
    import numpy as np

    errors = {}
    for name in COMPARED:
        a, b = (trace.data[name].values.astype(np.float64) for trace in (found, exact))
        comparable = a.shape == b.shape and np.array_equal(np.isnan(a), np.isnan(b))
        scale = max(1e-30, float(np.nanmax(np.abs(b))))
        errors[name] = float(np.nanmax(np.abs(a - b))) / scale if comparable else float("inf")
    worst = max(errors, key=lambda name: errors[name])
    return errors[worst], worst, bool(np.array_equal(found.final_tokens, exact.final_tokens))


def cost(device: str, kernel: bool = False) -> dict[str, Any]:
    """Seconds of plain generation and of traces, medians of three alternating runs: 256 + 32 tokens in 8 steps."""
    import torch

    from floatlens.lens import load

    lens = load("tiny-mdm", device_map=device, dtype="float32" if device == "cpu" else "bfloat16")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(10, (lens.shape["vocabulary"] or 100) - 10, (256,), generator=generator).tolist()
    how: dict[str, Any] = {"max_new_tokens": 32, "steps": 8}
    runs: dict[str, Callable[[], Any]] = {
        "plain": lambda: lens.generate([ids], **how),
        "trace": lambda: lens.trace(ids, **how),
    }
    if kernel:
        runs["stream"] = lambda: lens.trace(ids, implementation="stream", **how)
        runs["kernel"] = lambda: lens.trace(ids, implementation="kernel", **how)
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(4):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            taken[name].append(time.perf_counter() - begin)
    seconds = {name: statistics.median(times[1:]) for name, times in taken.items()}
    return {"model": "tiny-mdm", "positions": 288, "steps": 8, **seconds, "ratio": seconds["trace"] / seconds["plain"]}


def show(found: dict[str, Any]) -> None:
    """Print a summary on one screen."""
    shared.print_lines(f"{name} {found['versions'].get(name, '')}" for name in SHOWN)
    checks = [
        check
        | {
            "largest error": f"{check.get('error', float('nan')):.1e}",
            "of": check.get("worst"),
            "tokens": "equal" if check.get("same_tokens") else "differ",
            "verdict": check.get("failed") or ("agrees" if check["agrees"] else "differs"),
        }
        for check in (*found["checks"], *found["kernel"])
    ]
    shared.print_records(checks, ("model", "dtype", "implementation", "largest error", "of", "tokens", "verdict"))
    cost = found["cost"]
    where = f"{cost['model']}, {cost['positions']} positions, {cost['steps']} steps"
    lines = [
        f"A trace takes {cost['ratio']:.2f} times plain generation ({where}).",
        AGREE if found["agree"] else DIFFER,
    ]
    if "kernel" in cost:
        ratios = ", ".join(f"{name} {cost[name] / cost['plain']:.2f}" for name in ("stream", "kernel"))
        lines.append(f"Over plain generation ({where}): {ratios}.")
    if found["kernel"]:
        lines.append(KERNEL_AGREES if all(check["agrees"] for check in found["kernel"]) else KERNEL_DIFFERS)
    shared.print_lines(lines)


def versions() -> dict[str, str]:
    """The versions of FloatLens, Python, the packages that results depend on, platform, device, threads."""
    import torch

    from floatlens.store import manifest
    from floatlens.store.engine import cores

    device = f"cpu: {platform.processor() or platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    if torch.cuda.is_available():
        gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
        names = [f"{gpu.name} ({gpu.total_memory >> 30} GiB, capability {gpu.major}.{gpu.minor})" for gpu in gpus]
        device = f"cuda {torch.version.cuda or torch.version.hip}: {', '.join(names)}"
    elif torch.backends.mps.is_available():
        device = "mps"
    wanted = os.environ.get("OMP_NUM_THREADS")
    threads = f"{torch.get_num_threads()} of {cores()} cores" + (f" (OMP_NUM_THREADS={wanted})" if wanted else "")
    found = manifest.versions((*manifest.PACKAGES, *EXTRAS)) | {"python": platform.python_version()}
    return found | {"platform": platform.platform(), "device": device, "threads": threads}
