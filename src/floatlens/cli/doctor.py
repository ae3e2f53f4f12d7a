"""floatlens doctor: check observation on this machine, measure its cost, and recommend settings."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floatlens.cli import options as common

if TYPE_CHECKING:
    from collections.abc import Callable

    from floatlens.lens import Lens

MODELS = ("tiny-mdm", "tiny-arm")
EXTRAS = ("ray", "gguf", "datasets", "anywidget", "starlette")  # listed only if they are installed
QUESTION = "On which river does the town of Ada Tarn lie?"
PASSAGES = ["Ada Tarn lives in Molen.", "Molen lies on the river Aste."]
COMPARED = ("received", "entropy", "flow", "qk", "qk_norm", "qk_cos", "value_norm", "received_writing")
TOLERANCE = 1e-4  # relative to the largest value of a statistic
KERNEL_AGREES = "The GPU kernel agrees with stream. Switch it on with: --implementation kernel"
KERNEL_DIFFERS = (
    "The GPU kernel does not agree with stream: do not use it, and please open an issue with the output of "
    "floatlens doctor --json."
)
GIB = 2**30
# LLaDA-8B in bfloat16, and one prompt of 1,024 positions, most of which is three copies of its logits in float32.
WEIGHTS, PROMPT = 16 * GIB, 3 * 4 * 1024 * 126464


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
    from floatlens.attention.kernel import available

    chosen = choose_device(device)
    runs = [(name, chosen, dtype) for dtype in dtypes(chosen) for name in MODELS]
    checks = [check for run in runs for check in compare(*run)]
    by_kernel = [compare_kernel(*run) for run in runs] if available(chosen) else []
    found = {
        "versions": dict(line.split(" ", 1) for line in versions().splitlines()),
        "device": describe(chosen),
        "checks": checks,
        "kernel": by_kernel,
        "cost": cost(chosen, bool(by_kernel) and all("failed" not in check for check in by_kernel)),
        "advice": advise(chosen, free_memory(chosen)),
        "agree": all(check["agrees"] for check in checks),
    }
    if as_json:
        print(json.dumps(found))
    else:
        show(found)
    if not found["agree"]:
        raise typer.Exit(1)


def choose_device(name: str | None) -> str:
    """The device to check: the given one, or the first GPU, or the CPU."""
    import torch

    from floatlens.errors import FloatLensError

    if name in (None, "auto"):
        return "cuda" if torch.cuda.is_available() else "cpu"
    assert name is not None
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise FloatLensError(
            f"device {name!r} is not available: torch {torch.__version__} finds no NVIDIA GPU; use cpu"
        )
    return name


def dtypes(device: str) -> list[str]:
    """The dtypes to check on a device."""
    return ["float32", "bfloat16"] if device == "cpu" else ["float32", "bfloat16", "float16"]


def compare(name: str, device: str, dtype: str) -> list[dict[str, Any]]:
    """The largest difference of `fused` and `stream` from `exact`, over all statistics of a short trace."""
    lens = load(name, device, dtype)
    exact = trace_of(lens, "exact")
    names = ["fused", "stream"] if device == "cpu" and dtype == "float32" else ["stream"]
    return [check(name, dtype, way, trace_of(lens, way), exact) for way in names]


def compare_kernel(name: str, device: str, dtype: str) -> dict[str, Any]:
    """The largest difference of the GPU kernel from `stream`; a kernel that fails is reported with the reason."""
    lens = load(name, device, dtype)
    try:
        found = trace_of(lens, "kernel")
    except Exception as error:  # whatever a compiler or driver raises here is what the user wants to know
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return {"model": name, "dtype": dtype, "implementation": "kernel", "agrees": False, "failed": reason}
    return check(name, dtype, "kernel", found, trace_of(lens, "stream"))


def trace_of(lens: Lens, implementation: Any) -> Any:
    return lens.trace(lens.prompt(QUESTION, PASSAGES), max_new_tokens=4, implementation=implementation)


def check(name: str, dtype: str, implementation: str, found: Any, reference: Any) -> dict[str, Any]:
    """Compare two traces of one model."""
    error, worst, tokens = difference(found, reference)
    run = {"model": name, "dtype": dtype, "implementation": implementation}
    return run | {"error": error, "worst": worst, "same_tokens": tokens, "agrees": tokens and error <= TOLERANCE}


def difference(found: Any, exact: Any) -> tuple[float, str, bool]:
    """The largest error relative to a statistic's largest value, the statistic, and whether the tokens are equal."""
    import numpy as np

    errors = {}
    for name in COMPARED:
        a, b = (trace.data[name].values.astype(np.float64) for trace in (found, exact))
        if a.shape != b.shape or not np.array_equal(np.isnan(a), np.isnan(b)):
            errors[name] = float("inf")
            continue
        errors[name] = float(np.nanmax(np.abs(a - b)) / max(1e-30, float(np.nanmax(np.abs(b)))))
    worst = max(errors, key=lambda name: errors[name])
    return errors[worst], worst, bool(np.array_equal(found.final_tokens, exact.final_tokens))


def cost(device: str, kernel: bool = False) -> dict[str, Any]:
    """Seconds of plain generation and of traces, medians of three alternating runs: 256 + 32 tokens in 8 steps."""
    import torch

    lens = load("tiny-mdm", device, "float32" if device == "cpu" else "bfloat16")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(10, (lens.shape["vocabulary"] or 100) - 10, (256,), generator=generator).tolist()
    runs: dict[str, Callable[[], Any]] = {
        "plain": lambda: lens.generate([ids], max_new_tokens=32, steps=8),
        "trace": lambda: lens.trace(ids, max_new_tokens=32, steps=8),
    }
    if kernel:
        runs["stream"] = lambda: lens.trace(ids, max_new_tokens=32, steps=8, implementation="stream")
        runs["kernel"] = lambda: lens.trace(ids, max_new_tokens=32, steps=8, implementation="kernel")
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(4):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            if turn:
                taken[name].append(time.perf_counter() - begin)
    seconds = {name: statistics.median(times) for name, times in taken.items()}
    return {"model": "tiny-mdm", "positions": 288, "steps": 8, **seconds, "ratio": seconds["trace"] / seconds["plain"]}


def load(name: str, device: str, dtype: str) -> Lens:
    from floatlens.lens import load as load_lens

    return load_lens(name, device_map=device, dtype=dtype)


def describe(device: str) -> dict[str, Any]:
    """The device's name and memory in GiB."""
    import torch

    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found: dict[str, Any] = {"name": device, "threads": torch.get_num_threads(), "memory": round(total / GIB, 1)}
    if device.startswith("cuda"):
        about = torch.cuda.get_device_properties(device)
        found |= {"gpu": about.name, "capability": f"{about.major}.{about.minor}"}
        found |= {"gpu_memory": round(about.total_memory / GIB, 1)}
    return found


def free_memory(device: str) -> int:
    """Free memory of a device in bytes."""
    import torch

    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def advise(device: str, free: int) -> dict[str, Any]:
    """Recommended settings for a model like LLaDA-8B: the largest dtype that fits, on a GPU bfloat16; None if none fits.

    >>> advise("cuda", 40 * 2**30)
    {'dtype': 'bfloat16', 'batch_size': 16, 'trace_dtype': 'float16'}
    >>> [advise("cpu", gigabytes * 2**30)["dtype"] for gigabytes in (64, 24, 8)]
    ['float32', 'bfloat16', None]
    """
    gpu = device.startswith("cuda")
    sizes = {"bfloat16": WEIGHTS} if gpu else {"float32": 2 * WEIGHTS, "bfloat16": WEIGHTS}
    dtype = next((name for name, size in sizes.items() if size + PROMPT <= free), None)
    batch = min(64, (free - WEIGHTS) // PROMPT) if gpu and dtype else 1
    return {"dtype": dtype, "batch_size": batch, "trace_dtype": "float16"}


def show(found: dict[str, Any]) -> None:
    """Print a summary on one screen."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for name in ("floatlens", "python", "torch", "transformers", "platform"):
        console.print(f"{name} {found['versions'].get(name, 'not installed')}", highlight=False)
    console.print("device " + ", ".join(f"{key} {value}" for key, value in found["device"].items()), highlight=False)
    table = Table("model", "dtype", "implementation", "largest error", "of", "tokens", "")
    for check in (*found["checks"], *found["kernel"]):
        verdict = "[green]agrees[/]" if check["agrees"] else "[red]differs[/]"
        run = (check["model"], check["dtype"], check["implementation"])
        if "failed" in check:
            table.add_row(*run, "", "", "", f"[red]failed[/]: {check['failed']}")
            continue
        tokens = "equal" if check["same_tokens"] else "differ"
        table.add_row(*run, f"{check['error']:.1e}", check["worst"], tokens, verdict)
    console.print(table)
    cost, advice = found["cost"], found["advice"]
    where = f"{cost['model']}, {cost['positions']} positions, {cost['steps']} steps"
    console.print(f"A trace takes {cost['ratio']:.2f} times plain generation ({where}).")
    if advice["dtype"] is None:
        needs = f"{(WEIGHTS + PROMPT) / GIB:.0f} GiB free"
        console.print(f"LLaDA-8B needs {needs} in bfloat16; with less, load it in 4 bit (docs/howto/large-models.md).")
    else:
        settings = f"--dtype {advice['dtype']}, --batch-size {advice['batch_size']}"
        console.print(f"For LLaDA-8B: {settings}, traces in {advice['trace_dtype']}.", highlight=False)
    differ = "[red]Some implementations differ: please open an issue with the output of floatlens doctor --json.[/]"
    console.print("All implementations agree." if found["agree"] else differ)
    if found["kernel"]:
        agrees = all(check["agrees"] for check in found["kernel"])
        if "kernel" in cost:
            ratios = (f"{name} {cost[name] / cost['plain']:.2f}" for name in ("stream", "kernel"))
            console.print(f"Over plain generation ({where}): {', '.join(ratios)}.", highlight=False)
        console.print(KERNEL_AGREES if agrees else KERNEL_DIFFERS, highlight=False)


def versions() -> str:
    """One line each: FloatLens, Python, the packages that results depend on, platform, device, threads."""
    from floatlens.store import manifest

    lines = manifest.versions((*manifest.PACKAGES, *EXTRAS)) | {"python": platform.python_version()}
    lines |= {"platform": platform.platform(), "device": accelerators(), "threads": threads()}
    return "\n".join(f"{name} {text}" for name, text in lines.items())


def accelerators() -> str:
    """The accelerators that torch finds, or otherwise the processor."""
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        return f"cuda {torch.version.cuda or torch.version.hip}: {', '.join(names)}"
    if torch.backends.mps.is_available():
        return "mps"
    return f"cpu: {platform.processor() or platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


def threads() -> str:
    """The number of threads that torch uses, and the number of cores that this process may use."""
    import torch

    from floatlens.store.engine import cores

    wanted = os.environ.get("OMP_NUM_THREADS")
    return f"{torch.get_num_threads()} of {cores()} cores" + (f" (OMP_NUM_THREADS={wanted})" if wanted else "")
