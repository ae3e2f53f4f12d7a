"""floatlens trace: record a model's attention while it writes."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from floatlens.cli import options as common
from floatlens.cli.grouped import grouped
from floatlens.errors import FloatLensError


@grouped
def command(
    model: common.Model,
    out: Annotated[str, typer.Option("--out", help="Run folder for the traces: a path, or a URL such as s3://….")],
    prompt: Annotated[str | None, typer.Option(help="A question.")] = None,
    passage: Annotated[list[str] | None, typer.Option(help="A passage for --prompt; may repeat.")] = None,
    gold: Annotated[
        list[int] | None, typer.Option(help="Which --passage holds the answer, counted from 0; may repeat.")
    ] = None,
    answer: Annotated[list[str] | None, typer.Option(help="A gold answer to --prompt; may repeat.")] = None,
    intervention: Annotated[
        list[str] | None,
        typer.Option(help='Trace under an intervention, such as "mask-anchors(rule=top(1))"; may repeat.'),
    ] = None,
    data: common.OneData = None,
    split: common.Split = None,
    passages: Annotated[
        int | None, typer.Option(min=0, help="Gold among so many passages (world); 0 is closed book.")
    ] = None,
    max_passages: common.MaxPassages = None,
    limit: Annotated[int, typer.Option(help="So many questions of the data.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the sampler.")] = 0,
    sampling: common.Sampling = common.Sampling(batch_size=4),
    layers: Annotated[str | None, typer.Option(help="Layers to keep, such as 0,4-7 or 0:32:4.")] = None,
    heads: Annotated[str | None, typer.Option(help="Heads to keep.")] = None,
    record_steps: Annotated[str | None, typer.Option(help="Steps to keep.")] = None,
    matrices: Annotated[
        str | None, typer.Option(help="attention, attention_mean, queries, keys: full matrices.")
    ] = None,
    matrix_layers: Annotated[str | None, typer.Option(help="Layers of the matrices.")] = None,
    implementation: Annotated[str, typer.Option(help="stream, or exact for doubt.")] = "stream",
    trace_dtype: common.TraceDtype = "float32",
    revision: common.Revision = None,
    running: common.Running = common.Running(),
    as_json: common.AsJson = False,
) -> None:
    """Record a model's attention while it writes: one forward pass a step, every layer and head.

    Examples:

        floatlens trace tiny-mdm --prompt "Where was Ada Lovelace born?" --out run

        floatlens trace tiny-arm --data world:fresh --passages 5 --limit 16 --out run

        floatlens trace GSAI-ML/LLaDA-8B-Instruct --data nq.jsonl --max-passages 5 --device auto --dtype bfloat16 --out run
    """
    from rich.console import Console

    from floatlens.cli.numbers import numbers
    from floatlens.cli.progress import bar
    from floatlens.interventions import parse
    from floatlens.interventions.check import check
    from floatlens.lens import Lens
    from floatlens.models.checkpoint import find
    from floatlens.runs import manifest
    from floatlens.runs.folder import RunFolder
    from floatlens.tasks.template import DEFAULT
    from floatlens.tasks.tracing import Traces, traced
    from floatlens.trace import Trace

    if (prompt is None) == (data is None):
        raise FloatLensError("give either --prompt with a question or --data with a data set")
    given = {**locals(), **vars(sampling), "dtype": running.dtype}
    asked = {name: given[name] for name in ASKED}
    # Everything that can be refused is refused before the weights are read.
    engine = running.chosen_engine()
    checkpoint = find(model, revision=revision)
    lens = Lens(checkpoint)
    settings = sampling.settings(seed)
    lens.settings(**settings)
    options: dict[str, Any] = {
        "layers": numbers(layers, "--layers"),
        "heads": numbers(heads, "--heads"),
        "record_steps": numbers(record_steps, "--record-steps"),
        "matrices": tuple(filter(None, (matrices or "").split(","))),
        "matrix_layers": numbers(matrix_layers, "--matrix-layers"),
        "implementation": implementation,
    }
    lens.check_record(lens.settings(**settings), **options)
    check([parse(spec) for spec in intervention or ()], lens.shape, lens.config)
    room = (lens.context_length or 10**9) - sampling.max_new_tokens
    refused: dict[str, str] = {}
    if prompt is not None:
        one = lens.prompt(prompt, passage or (), gold=gold, answers=answer or ())
        lens.settings(**settings).fits(len(one.ids), lens.context_length)
        work = [("prompt", one)]
    else:
        assert data is not None
        work, refused = from_data(lens, data, split, limit, passages, max_passages, room)
    about = manifest.describe(
        "trace",
        asked,
        checkpoints=[checkpoint],
        data=[data] if data else [],
        template=DEFAULT.text,
        seeds={"seed": seed},
    )
    run = RunFolder.create(out, about, resume=running.resume)
    worker = Traces(
        running.loader(revision),
        model,
        run.place,
        {**options, **settings},
        trace_dtype,
        interventions=tuple(intervention or ()),
    )
    try:
        with bar("traces") as watch:
            found = traced(
                work,
                worker,
                run,
                batch_size=sampling.batch_size,
                engine=engine,
                done=watch(model, len(work)),
                refused=refused,
                retry_errors=running.retry_errors,
            )
        failed = {name: reason for name, reason in found.items() if reason}
        run.finish()
    finally:
        run.close()
    if len(failed) == len(found):
        raise FloatLensError(f"no sample could be traced; the first failed because: {next(iter(failed.values()))}")
    if as_json:
        entry = {"model": model, "data": data, "n": len(found) - len(failed), "errors": len(failed)}
        print(json.dumps({"results": [entry], "run": run.place}))
        return
    console = Console(highlight=False)
    if prompt is not None:
        with RunFolder.open(out) as made:
            console.print(str(Trace.open(made.samples()[0][1])), markup=False)
    also = f", {len(failed)} failed: see errors.jsonl" if failed else ""
    console.print(f"{len(found) - len(failed)} traces in {run.place}{also}", markup=False)


ASKED = (
    "model", "revision", "prompt", "passage", "gold", "answer", "intervention", "data", "split", "passages",
    "max_passages", "limit", "seed", "batch_size", "max_new_tokens", "steps", "block_length", "temperature", "layers",
    "heads", "record_steps", "matrices", "matrix_layers", "implementation", "trace_dtype", "dtype",
)  # fmt: skip


def from_data(
    lens: Any, data: str, split: str | None, limit: int, passages: int | None, max_passages: int | None, room: int
) -> tuple[list[tuple[str, Any]], dict[str, str]]:
    """The prompts of a data set, each with its sample's id, and the samples that cannot be asked, with the reason."""
    from floatlens.tasks.bounded import bounded
    from floatlens.tasks.prompt import fit
    from floatlens.tasks.readers.registry import read

    work: list[tuple[str, Any]] = []
    refused: dict[str, str] = {}
    if lens.tokenizer is None:
        raise FloatLensError(f"{lens.name} has no tokenizer, so it cannot be asked; add its tokenizer files")
    for sample in read(data, split=split, limit=limit, passages=passages):
        shown = sample.passages[:max_passages] if max_passages is not None else sample.passages
        shown = shown if passages != 0 else []
        try:
            shown = bounded(sample.question, shown, lens.context_length)
            made = lens.prompt(sample.question, shown, answers=sample.answers)
            work.append((sample.id, fit(made, lens.tokenizer, room)))
        except FloatLensError as error:
            refused[sample.id] = str(error)
    if not work and refused:
        raise FloatLensError(f"no sample of {data} can be asked; the first: {next(iter(refused.values()))}")
    if not work:
        raise FloatLensError(f"data {data!r} holds no question; name another data set or split")
    return work, refused
