"""floatlens trace: record a model's attention while it writes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floatlens.cli import options as common
from floatlens.cli import shared
from floatlens.data.sequences import MARK, MARKS, MASK_MARK
from floatlens.errors import FloatLensError
from floatlens.options import Data, Load, Recording, Run, Sampling

if TYPE_CHECKING:
    from floatlens.data.prompt import Prompt
    from floatlens.lens import Lens


def command(
    model: common.Model,
    out: Annotated[str, typer.Option("--out", help="Run folder for the traces: a path, or a URL such as s3://….")],
    prompt: Annotated[str | None, typer.Option(help="A question.")] = None,
    text: Annotated[
        str | None,
        typer.Option(
            help="Raw text to continue, such as a protein sequence, or with a [MASK] for each token that a masked model "
            "should write; regions are marked as [[name: its text]]."
        ),
    ] = None,
    ids: Annotated[str | None, typer.Option(help="Token ids to continue, such as 1,5,7.")] = None,
    passage: Annotated[list[str] | None, typer.Option(help="A passage for --prompt; repeat for several.")] = None,
    replay: Annotated[
        str | None,
        typer.Option(
            help="Text to replay after --prompt, --text or --ids, revealed step by step instead of sampled, from left to "
            "right or by --sampler-set order=random, or such as order=2,0,1+3 (+: together)."
        ),
    ] = None,
    intervention: Annotated[
        list[str] | None,
        typer.Option(help='Trace under an intervention, such as "mask-anchors(rule=top(1))"; repeat for several.'),
    ] = None,
    data: common.OneData = None,
    reading: Data = Data(limit=16),
    sampling: Sampling = Sampling(seed=0),
    recording: Recording = Recording(),
    loading: Load = Load(),
    running: Run = Run(),
    as_json: common.AsJson = False,
) -> None:
    """Record a model's attention while it writes: one forward pass per step, every layer and head.

    Examples:

        floatlens trace tiny-mdm --prompt "Where was Ada Tarn born?" --out run

        floatlens trace tiny-arm --data world:fresh --passages 5 --out run

        floatlens trace tiny-mdm --prompt "Where?" --replay "Rusk" --out run

        floatlens trace tiny-mdm --text "Ada Tarn was [MASK] in Rusk." --out run

        floatlens trace GSAI-ML/LLaDA-8B-Instruct --data nq.jsonl --out run
    """
    from floatlens.evaluation.sources import open_sources, with_gold_at
    from floatlens.interventions.intervention import parse_intervention

    if sum(value is not None for value in (prompt, text, ids, data)) != 1:
        raise FloatLensError("pass exactly one of --prompt, --text, --ids, --data")
    if replay is not None and data is not None:
        raise FloatLensError("--replay needs one prompt; pass it with --prompt, --text or --ids")
    settings = dict(sampling.sampler or {})
    order = parse_order(str(settings.pop("order", "left-to-right"))) if replay is not None else ""
    sampling = replace(sampling, sampler=settings or None)
    given_ids = parse_ids(ids)
    reading = replace(reading, seed=None)  # the questions are the first ones; the seed is only the sampler's
    interventions = [parse_intervention(spec) for spec in intervention or ()]
    shared.check_run(running, out)
    names = [data] if data else []
    sources = open_sources(names, reading, ())

    # Everything above is quick; from here on torch is needed.
    from floatlens.evaluation.loop import Experiment, run_experiments
    from floatlens.interventions.intervention import check
    from floatlens.lens import Lens
    from floatlens.store.folder import RunFolder
    from floatlens.trace.recorder import check_recording
    from floatlens.trace.trace import Trace

    # Check everything that can be checked before the weights are read.
    shared.check_device(loading, running.engine)
    lens = Lens.find(model, loading)
    check(interventions, lens.shape, lens.config)
    if lens.tokenizer is None and given_ids is None:
        raise FloatLensError(
            f"{lens.name} has no tokenizer, so it cannot read text; add its tokenizer files or use --ids"
        )
    samples: list[Any] = [one for source in sources for one in with_gold_at(source.samples(), reading.gold_at)]
    prompts: list[Prompt] = []
    if data is None:
        with warnings.catch_warnings(record=True, action="always", category=UserWarning) as found_warnings:
            made = one_prompt(lens, prompt, text, given_ids, passage or (), reading)
            if replay is not None:
                regions = MARKS if MARK.search(replay) else None
                made = lens.with_answer(made, replay, order, seed=sampling.seed or 0, regions=regions)
        shared.print_notes(f"warning: {each.message}" for each in found_warnings if each.category is UserWarning)
        prompts = samples = [made]
    chosen = lens.settings_of(prompts, sampling)
    check_recording(recording, lens.shape, chosen.step_count)
    for each in prompts:
        chosen.fits(len(each.ids), lens.context_length)
    how: dict[str, Any] = {"recording": recording, "interventions": tuple(intervention or ())}
    job = Experiment(model, "", "", samples, sampling, reading, running.batch_size, **how)
    options = reading, sampling, loading, running
    kept = {"data": names, "recording": recording, "order": order, "prompt": prompt, "text": text, "ids": ids}
    kept |= {"passage": passage, "replay": replay, "intervention": intervention}
    with shared.experiment("trace", [model], sources, out, options, **kept) as (found, folder, loop):
        records, _ = run_experiments([job], folder=folder, **loop)
        failed = [record for record in records if record.error]
        count = len(records) - len(failed)
        found["results"] = [{"model": model, "data": data, "n": count, "errors": len(failed)}]
    if not count:
        raise FloatLensError(f"no sample could be traced; the first failed because: {failed[0].error}")
    if as_json:
        return shared.print_json(found)
    if data is None:
        with RunFolder.open(out) as opened:
            shared.print_lines([str(Trace.open(opened.samples()[0][1]))])
    also = f", {len(failed)} failed: see errors.jsonl" if failed else ""
    shared.print_lines([f"{count} {'trace' if count == 1 else 'traces'} in {found['run']}{also}"])


def one_prompt(
    lens: Lens, question: str | None, text: str | None, ids: list[int] | None, passages: Sequence[str], reading: Data
) -> Prompt:
    """Return the prompt of --prompt, --text or --ids."""
    from floatlens.data.prompt import Prompt
    from floatlens.data.template import DEFAULT

    if question is not None:
        how: dict[str, Any] = {"order": reading.order, "template": reading.template or DEFAULT, "chat": reading.chat}
        gold = [position - 1 for position in reading.gold_at or ()]
        made = lens.prompt(question, passages, gold=gold, **how)
    elif text is None:
        made = Prompt.from_ids(ids or [])
    else:
        own_mask = lens.token_strings([lens.mask_id])[str(lens.mask_id)] if lens.has_mask else MASK_MARK
        masked = MASK_MARK in text or own_mask in text
        made = (lens.infill_prompt if masked else lens.text_prompt)(text, MARKS if MARK.search(text) else None)
    return replace(made, sample_id="prompt")


def parse_ids(text: str | None) -> list[int] | None:
    """Parse the token ids of the command line; None stays None.

    >>> parse_ids("1, 5,7")
    [1, 5, 7]
    """
    try:
        return None if text is None else [int(word) for word in text.split(",")]
    except ValueError:
        raise FloatLensError(f"--ids {text!r} is not understood; write token ids as 1,5,7") from None


def parse_order(text: str) -> str | list[list[int]]:
    """Parse an order of the command line; names stay as they are.

    >>> parse_order("2,0,1+3"), parse_order("random")
    ([[2], [0], [1, 3]], 'random')
    """
    if not text[:1].isdecimal():
        return text
    try:
        return [[int(index) for index in step.split("+")] for step in text.split(",")]
    except ValueError:
        raise FloatLensError(
            f"order={text} is not understood; write left-to-right, random, or indices such as 2,0,1+3"
        ) from None
