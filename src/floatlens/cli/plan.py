"""floatlens plan: estimate the cost of a run before it starts."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from floatlens.cli import options as common
from floatlens.errors import FloatLensError
from floatlens.options import Load

if TYPE_CHECKING:
    from floatlens.lens import Lens


def command(
    model: common.Model,
    gpus: Annotated[str, typer.Option("--gpus", help="Number and kind of GPUs, such as 8xA100.")],
    data: common.OneData = None,
    samples: Annotated[int | None, typer.Option(help="Number of samples, instead of counting --data.")] = None,
    prompt_tokens: Annotated[int | None, typer.Option(help="Tokens per prompt, instead of measuring --data.")] = None,
    passages: Annotated[int | None, typer.Option(help="Passages per question, including the gold one (world).")] = None,
    split: Annotated[str | None, typer.Option(help="Split of the data: train, validation or test.")] = None,
    limit: Annotated[int | None, typer.Option(help="Maximum number of questions.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="New tokens per sample.")] = 32,
    steps: Annotated[int | None, typer.Option(help="Denoising steps of a masked diffusion model (MDM).")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples decoded together; by default as many as fit.")] = None,
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = "bfloat16",
    trace_dtype: Annotated[str, typer.Option(help="Type of per-head data on disk.")] = "float16",
    family: Annotated[str | None, typer.Option(help="Family of the model.")] = None,
    trace: Annotated[bool, typer.Option("--trace/--no-trace", help="Record traces, or only generate answers.")] = True,
    as_json: common.AsJson = False,
) -> None:
    """Estimate time, memory and storage of a run from the model's shape; no weights are read.

    Examples:

        floatlens plan GSAI-ML/LLaDA-8B-Instruct --data nq.jsonl --gpus 8xA100

        floatlens plan tiny-mdm --data world:fresh --gpus 2xCPU --dtype float32 --no-trace
    """
    from rich.console import Console
    from rich.table import Table

    from floatlens.cli.inspect import size
    from floatlens.lens import Lens
    from floatlens.store.plan import Workload, assumptions, estimate, measure_model, parse_devices, to_dict

    count, device = parse_devices(gpus)
    if data is None and (samples is None or prompt_tokens is None):
        raise FloatLensError("pass --data, or both --samples and --prompt-tokens")
    for name, value in (("--samples", samples), ("--prompt-tokens", prompt_tokens), ("--batch-size", batch_size)):
        if value is not None and value < 1:
            raise FloatLensError(f"{name} {value} is not a positive number; use 1 or more")
    for name, given, known in (("--dtype", dtype, DTYPES), ("--trace-dtype", trace_dtype, ("float32", "float16"))):
        if given not in known:
            raise FloatLensError(f"{name} {given} is not known; use one of {', '.join(known)}")
    lens = Lens.find(model, Load(family=family))
    chosen = lens.settings(max_new_tokens=max_new_tokens, steps=steps)
    if data is not None:
        counted, measured = measure(lens, data, split, limit, passages, prompt_tokens)
        samples, prompt_tokens = samples or counted, prompt_tokens or measured
    assert samples is not None and prompt_tokens is not None
    work = Workload(samples, prompt_tokens, max_new_tokens, chosen.step_count, trace)
    itemsize = 2 if trace_dtype == "float16" else 4
    found = estimate(measure_model(lens.checkpoint, dtype), work, device, count, batch_size, itemsize)
    if as_json:
        print(json.dumps(to_dict(found)))
        return
    console = Console(highlight=False)
    table = Table(show_header=False, box=None, pad_edge=False)
    rows = {
        "samples": f"{work.samples:,} of {work.prompt} + {work.new} tokens, {work.steps} steps",
        "operations": f"{found.operations:.2e} FLOP, {found.observation_share:.0%} of the time for observation",
        "time": f"{duration(found.hours)} on {count} x {device.name}: {found.device_hours:.3g} GPU hours",
        "workers": f"{found.workers}, {found.devices_per_worker} GPU per worker, batch size {found.batch}",
        "memory": f"{size(round(found.memory_per_device))} per GPU, {size(round(found.host_memory))} RAM per worker",
        "storage": f"{size(round(found.storage))}: {size(round(found.stored_per_sample))} per sample",
    }
    for label, text in rows.items():
        table.add_row(f"[bold]{label}[/bold]", text)
    console.print(table)
    console.print("\nAssumptions:")
    for sentence in assumptions(found):
        console.print(f"- {sentence}", markup=False)


MEASURED = 64  # number of prompts that are measured
DTYPES = ("bfloat16", "float16", "float32")


def measure(
    lens: Lens, data: str, split: str | None, limit: int | None, passages: int | None, known: int | None
) -> tuple[int, int]:
    """The number of samples of a data set, and the mean length of the first prompts in tokens."""
    from floatlens.data.read import read

    stream = iter(read(data, split=split, limit=limit, passages=passages))
    first = list(islice(stream, MEASURED))
    if known is not None:
        return len(first) + sum(1 for _ in stream), known
    if lens.tokenizer is None:
        raise FloatLensError(
            f"{lens.name} has no tokenizer files, so the prompts of --data cannot be measured; "
            "pass their length with --prompt-tokens"
        )
    lengths = [len(lens.prompt(sample.question, sample.passages).ids) for sample in first]
    return len(first) + sum(1 for _ in stream), round(sum(lengths) / len(lengths))


def duration(hours: float) -> str:
    """Format a duration with a suitable unit.

    >>> duration(0.02), duration(30.2)
    ('1.2 minutes', '30.2 hours')
    """
    if hours < 1:
        return f"{hours * 60:.1f} minutes" if hours * 60 >= 1 else f"{hours * 3600:.1f} seconds"
    return f"{hours:.1f} hours" if hours < 72 else f"{hours / 24:.1f} days"
