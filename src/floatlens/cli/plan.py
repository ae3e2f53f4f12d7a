"""floatlens plan: what a run would cost, before it is paid for."""

from __future__ import annotations

import json
from itertools import islice
from typing import Annotated, Any

import typer

from floatlens.cli import options as common
from floatlens.errors import FloatLensError


def command(
    model: common.Model,
    gpus: Annotated[str, typer.Option("--gpus", help="How many of which kind, such as 8xA100.")],
    data: common.OneData = None,
    samples: Annotated[int | None, typer.Option(help="So many samples, instead of counting --data.")] = None,
    prompt_tokens: Annotated[int | None, typer.Option(help="Length of a prompt, instead of measuring --data.")] = None,
    passages: Annotated[int | None, typer.Option(help="Gold among so many passages (world).")] = None,
    split: common.Split = None,
    limit: Annotated[int | None, typer.Option(help="So many questions of the data.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens to write.")] = 32,
    steps: Annotated[int | None, typer.Option(help="Denoising steps of a diffusion model.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples decoded together; else what fits.")] = None,
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = "bfloat16",
    trace_dtype: common.TraceDtype = "float32",
    trace: Annotated[bool, typer.Option("--trace/--no-trace", help="Look while the model writes, or only ask.")] = True,
    as_json: common.AsJson = False,
) -> None:
    """Estimate time, memory and storage of a run from the model's shape; no weight is read.

    Examples:

        floatlens plan GSAI-ML/LLaDA-8B-Instruct --data nq.jsonl --gpus 8xA100

        floatlens plan tiny-mdm --data world:fresh --gpus 2xCPU --dtype float32 --no-trace
    """
    from rich.console import Console
    from rich.table import Table

    from floatlens.cli.inspect import size
    from floatlens.lens import Lens
    from floatlens.models.checkpoint import find
    from floatlens.runs.plan import Work, as_dict, assumptions, estimate, model_of, parse_devices

    count, device = parse_devices(gpus)
    if data is None and (samples is None or prompt_tokens is None):
        raise FloatLensError("give --data to count and measure, or both --samples and --prompt-tokens")
    for name, value in (("--samples", samples), ("--prompt-tokens", prompt_tokens), ("--batch-size", batch_size)):
        if value is not None and value < 1:
            raise FloatLensError(f"{name} {value} is not a positive number")
    for name, given, known in (("--dtype", dtype, DTYPES), ("--trace-dtype", trace_dtype, ("float32", "float16"))):
        if given not in known:
            raise FloatLensError(f"{name} {given} is not known; use one of {', '.join(known)}")
    lens = Lens(find(model))
    chosen = lens.settings(max_new_tokens=max_new_tokens, steps=steps)
    if data is not None:
        counted, measured = measure(lens, data, split, limit, passages, prompt_tokens)
        samples, prompt_tokens = samples or counted, prompt_tokens or measured
    assert samples is not None and prompt_tokens is not None
    work = Work(samples, prompt_tokens, max_new_tokens, chosen.step_count, trace)
    itemsize = 2 if trace_dtype == "float16" else 4
    found = estimate(model_of(lens.checkpoint, dtype), work, device, count, batch_size, itemsize)
    if as_json:
        print(json.dumps(as_dict(found)))
        return
    console = Console(highlight=False)
    table = Table(show_header=False, box=None, pad_edge=False)
    rows = {
        "samples": f"{work.samples:,} of {work.prompt} + {work.new} tokens, {work.steps} steps",
        "operations": f"{found.operations:.2e} FLOP, {found.looking_share:.0%} of the time for looking",
        "time": f"{duration(found.hours)} on {count} x {device.name}: {found.device_hours:.3g} GPU hours",
        "workers": f"{found.workers}, each on {found.devices_per_worker}, batch {found.batch}",
        "memory": f"{size(round(found.memory_per_device))} a GPU, {size(round(found.host_memory))} of main memory a worker",
        "storage": f"{size(round(found.storage))}: {size(round(found.stored_per_sample))} a sample",
    }
    for label, text in rows.items():
        table.add_row(f"[bold]{label}[/bold]", text)
    console.print(table)
    console.print("\nThis rests on:")
    for sentence in assumptions(found):
        console.print(f"- {sentence}", markup=False)


LOOKED_AT = 64
DTYPES = ("bfloat16", "float16", "float32")


def measure(
    lens: Any, data: str, split: str | None, limit: int | None, passages: int | None, known: int | None
) -> tuple[int, int]:
    """How many samples a data set has, and the mean length of the first prompts."""
    from floatlens.data.readers.registry import read

    stream = iter(read(data, split=split, limit=limit, passages=passages))
    first = list(islice(stream, LOOKED_AT))
    if known is not None:
        return len(first) + sum(1 for _ in stream), known
    if lens.tokenizer is None:
        raise FloatLensError(
            f"{lens.name} has no tokenizer files, so the prompts of --data cannot be measured; "
            "give their length with --prompt-tokens"
        )
    lengths = [len(lens.prompt(sample.question, sample.passages).ids) for sample in first]
    return len(first) + sum(1 for _ in stream), round(sum(lengths) / len(lengths))


def duration(hours: float) -> str:
    """
    >>> duration(0.02), duration(30.2)
    ('1.2 minutes', '30.2 hours')
    """
    if hours < 1:
        return f"{hours * 60:.1f} minutes" if hours * 60 >= 1 else f"{hours * 3600:.1f} seconds"
    return f"{hours:.1f} hours" if hours < 72 else f"{hours / 24:.1f} days"
