"""floatlens trace: record a model's attention while it writes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floatlens.cli import options as common
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
    ids: Annotated[str | None, typer.Option(help="Token ids to continue, such as 1,5,7.", hidden=True)] = None,
    passage: Annotated[list[str] | None, typer.Option(help="A passage for --prompt; repeat for several.")] = None,
    gold: Annotated[
        list[int] | None, typer.Option(help="Index of a --passage with the answer, from 0; repeat for several.")
    ] = None,
    answer: Annotated[
        list[str] | None, typer.Option(help="A gold answer to --prompt; repeat for several.", hidden=True)
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option(help="Text to replay after --prompt, --text or --ids, revealed step by step instead of sampled."),
    ] = None,
    order: Annotated[
        str,
        typer.Option(
            help="Order of --replay: left-to-right, random, or indices such as 2,0,1+3 (+: together).", hidden=True
        ),
    ] = "left-to-right",
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

        floatlens trace tiny-mdm --prompt "On which day was the ship Golden Otter launched?" --out run

        floatlens trace tiny-arm --data world:fresh --passages 5 --limit 16 --out run

        floatlens trace tiny-mdm --prompt "Where was Ada Tarn born?" --replay "Rusk" --out run

        floatlens trace GSAI-ML/LLaDA-8B-Base --text "The [MASK] of France is Paris." --out run

        floatlens trace facebook/esm2_t6_8M_UR50D --text MKTAYIAKQRQISFVKSHFSRQ --max-new-tokens 4 --out run

        floatlens trace GSAI-ML/LLaDA-8B-Instruct --data nq.jsonl --max-passages 5 --device auto --dtype bfloat16 --out run
    """
    from floatlens.data.template import DEFAULT
    from floatlens.evaluation.sources import open_sources, problems_of, with_gold_at, write_problems
    from floatlens.interventions.intervention import parse_intervention
    from floatlens.models.checkpoint import find

    given = {"--prompt": prompt, "--text": text, "--ids": ids, "--data": data}
    if sum(value is not None for value in given.values()) != 1:
        raise FloatLensError(f"pass exactly one of {', '.join(given)}")
    if replay is not None and data is not None:
        raise FloatLensError("--replay needs one prompt; pass it with --prompt, --text or --ids")
    sequence: dict[str, Any] = {
        "text": text,
        "ids": parse_ids(ids),
        "replay": replay,
        "order": parse_order(order),
    }
    reading = replace(reading, seed=None)  # the questions are the first ones; the seed is only the sampler's
    interventions = [parse_intervention(spec) for spec in intervention or ()]
    engine = common.make_engine(running)
    sources = open_sources([data] if data else [], reading, ())
    checkpoint = find(model, loading)

    # Everything above is quick; from here on torch is needed.
    from floatlens.cli.shared import (
        bar,
        check_device,
        make_console,
        noted_warnings,
        print_json,
        print_notes,
        problem_lines,
    )
    from floatlens.evaluation.loop import Experiment, Journal, run_experiments
    from floatlens.evaluation.worker import ModelWorker
    from floatlens.interventions.intervention import check
    from floatlens.lens import Lens
    from floatlens.store import manifest
    from floatlens.store.folder import RunFolder
    from floatlens.trace.recorder import check_recording
    from floatlens.trace.trace import Trace

    # Check everything that can be checked before the weights are read.
    check_device(loading, running)
    lens = Lens(checkpoint)
    check(interventions, lens.shape, lens.config)
    if lens.tokenizer is None and ids is None:
        raise FloatLensError(
            f"{lens.name} has no tokenizer, so it cannot read text; add its tokenizer files or use --ids"
        )
    asked: list[Any]
    if data is None:
        with noted_warnings():
            question: dict[str, Any] = {"passages": passage or (), "gold": gold, "answers": answer or ()}
            question |= {"template": reading.template or DEFAULT, "order": reading.order, "chat": reading.chat}
            asked = [one_prompt(lens, prompt, question, seed=sampling.seed or 0, **sequence)]
    else:
        asked = [sample for source in sources for sample in with_gold_at(source.samples(), reading.gold_at)]
    settings = lens.settings_of(asked if data is None else [], sampling)
    check_recording(recording, lens.shape, settings.step_count)
    for one in asked if data is None else ():
        settings.fits(len(one.ids), lens.context_length)
    about = manifest.describe(
        "trace",
        {
            "model": model,
            "data": data,
            "read": reading,
            "load": loading,
            "sampling": sampling,
            "recording": recording,
            "prompt": prompt,
            "text": text,
            "ids": ids,
            "replay": replay,
            "order": order,
            "passage": passage,
            "gold": gold,
            "answer": answer,
            "intervention": intervention,
        },
        checkpoints=[checkpoint],
        data=[*([data] if data else []), *([reading.corpus] if reading.corpus else [])],
    )
    job = Experiment(
        model,
        "",
        "",
        asked,
        sampling,
        reading,
        running.batch_size,
        len(asked),
        recording=recording,
        interventions=tuple(intervention or ()),
    )
    with RunFolder.create(out, about, resume=running.resume) as folder, bar() as watch:
        journal = Journal(folder, retry_errors=running.retry_errors)
        records, _ = run_experiments([job], ModelWorker(loading), journal, engine=engine, watch=watch)
        write_problems(folder, sources)
        folder.finish()
    problems = problems_of(sources)
    failed = [record for record in records if record.error]
    if len(failed) == len(records):
        print_notes(problem_lines(problems))
        raise FloatLensError(f"no sample could be traced; the first failed because: {failed[0].error}")
    if as_json:
        entry = {"model": model, "data": data, "n": len(records) - len(failed), "errors": len(failed)}
        entry |= {"gold_dropped": sum(source.gold_dropped for source in sources)}
        print_json({"results": [entry], "problems": problems, "run": folder.location})
        return
    console = make_console()
    if data is None:
        with RunFolder.open(out) as made:
            console.print(str(Trace.open(made.samples()[0][1])), markup=False)
    also = f", {len(failed)} failed: see errors.jsonl" if failed else ""
    count = len(records) - len(failed)
    console.print(f"{count} {'trace' if count == 1 else 'traces'} in {folder.location}{also}", markup=False)
    print_notes(problem_lines(problems))


def one_prompt(
    lens: Lens,
    prompt: str | None,
    question: dict[str, Any],
    *,
    text: str | None,
    ids: list[int] | None,
    replay: str | None,
    order: str | list[list[int]],
    seed: int,
) -> Prompt:
    """Return the prompt of --prompt, --text or --ids, with the answer of --replay."""
    from floatlens.data.prompt import Prompt
    from floatlens.data.sequences import MARK, MARKS

    if prompt is not None:
        made = lens.prompt(prompt, question.pop("passages"), **question)
    else:
        if text is None:
            made = Prompt.from_ids(ids or [])
        else:
            make = lens.infill_prompt if has_mask(lens, text) else lens.text_prompt
            made = make(text, MARKS if MARK.search(text) else None)
        made = replace(made, answers=list(question["answers"]))
    if replay is not None:
        made = lens.with_answer(made, replay, order, seed=seed, regions=MARKS if MARK.search(replay) else None)
    return replace(made, sample_id="prompt")


def has_mask(lens: Lens, text: str) -> bool:
    """Whether a text has a [MASK], or the model's own mask token, to be written."""
    from floatlens.data.sequences import MASK_MARK

    return MASK_MARK in text or (lens.has_mask and lens.token_strings([lens.mask_id])[str(lens.mask_id)] in text)


def parse_ids(text: str | None) -> list[int] | None:
    """Parse the token ids of the command line; None stays None.

    >>> parse_ids("1, 5,7")
    [1, 5, 7]
    """
    if text is None:
        return None
    try:
        return [int(word) for word in text.split(",")]
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
            f"--order {text!r} is not understood; write left-to-right, random, or indices such as 2,0,1+3"
        ) from None
