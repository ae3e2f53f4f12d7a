"""floatlens inspect: describe a checkpoint from its config."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floatlens.cli import options as common
from floatlens.options import Load

if TYPE_CHECKING:
    from floatlens.models.checkpoint import Checkpoint

NEW = 32  # tokens that the estimated trace writes


@common.grouped
def command(
    checkpoint: common.Model,
    loading: Load = Load(),
    positions: Annotated[
        int, typer.Option(min=1, help="Length of the sequence for which the memory is computed.")
    ] = 512,
    as_json: common.AsJson = False,
) -> None:
    """Describe a checkpoint, its memory use, and the size of a trace per step. No weights are read.

    Examples:

        floatlens inspect tiny-mdm

        floatlens inspect GSAI-ML/LLaDA-8B-Instruct --dtype bfloat16

        floatlens inspect dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1 --family a2d-block

        floatlens inspect ./my-model --family masked
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from floatlens.models.checkpoint import find
    from floatlens.models.describe import describe

    model = find(checkpoint, loading)
    found = describe(model, dtype=str(loading.dtype), positions=positions)
    found |= trace_cost(model, found["dtype"], positions)
    if as_json:
        print(json.dumps(found))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    attention = f"{found['heads']} heads, {found['kv_heads']} key/value heads of {found['head_dim']}; "
    attention += found["attention"] + (f", blocks of {found['block_length']}" if found["block_length"] else "")
    rows = {
        "family": f"{found['family']}: {found['about']}",
        "decided by": found["family_reason"],
        "native class": found["class"],
        "layers": found["layers"],
        "attention": attention,
        "sampler": found["sampler"],
        "width": found["width"],
        "vocabulary": found["vocabulary"],
        "context": found["context"],
        "mask token": mask_of(found),
        "parameters": f"{found['parameters']:,}",
        "memory": f"{size(found['weight_bytes'])} for the weights in {found['dtype']}",
        "recorded": f"{size(found['record_bytes_per_step'])} per step at {positions} positions, all layers and heads",
        "a trace": f"takes {size(found['trace_memory_bytes'])} with the weights, and about "
        + " or ".join(f"{duration(each)} on one {device}" for device, each in found["trace_seconds"].items()),
    }
    if (lora := found["adapter"]) is not None:
        rows["adapter"] = (
            f"{lora['folder']}: LoRA of rank {lora['rank']}, made for {lora['made_for'] or 'an unnamed base'}"
        )
    for label, text in rows.items():
        table.add_row(f"[bold]{label}[/bold]", escape(str(text)))
    Console().print(table)


def trace_cost(model: Checkpoint, dtype: str, positions: int) -> dict[str, Any]:
    """Return the estimated memory and seconds of a trace whose last tokens are written one per step."""
    from floatlens.store.estimate import DEVICES, measure_model, memory, seconds

    shape, new = measure_model(model, dtype), min(NEW, positions)
    work = positions - new, new
    times = {name: sum(seconds(shape, device, *work, steps=new)) for name, device in DEVICES.items()}
    return {"trace_memory_bytes": round(memory(shape, *work)), "trace_seconds": times}


def duration(seconds: float) -> str:
    """Return a time in readable units.

    >>> duration(0.4), duration(90), duration(9000)
    ('0.4 s', '1.5 min', '2.5 h')
    """
    value, unit = seconds, "s"
    for larger in ("min", "h"):
        if value < 60:
            break
        value, unit = value / 60, larger
    return f"{value:.2g} {unit}"


def mask_of(found: dict[str, Any]) -> Any:
    """Return the mask token, or the reason why there is none."""
    if found["kind"] == "arm":
        return "none (autoregressive)"
    return "none" if found["mask_token_id"] is None else found["mask_token_id"]


def size(count: int) -> str:
    """Return a number of bytes in readable units.

    >>> size(6144000)
    '6.1 MB'
    """
    value, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}" if unit != "bytes" else f"{count} bytes"
