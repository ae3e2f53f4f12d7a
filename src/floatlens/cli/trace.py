"""floatlens trace: record a model's attention while it writes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from floatlens.cli import options as common
from floatlens.cli import shared
from floatlens.errors import FloatLensError
from floatlens.options import Data, Load, Recording, Run, Sampling, option, recorded

if TYPE_CHECKING:
    from floatlens.data.prompt import Prompt
    from floatlens.lens import Lens


@dataclass(frozen=True)
class Asked:
    """What is traced besides a data set: one prompt, and an answer to replay after it."""

    panel: ClassVar[str] = "Input"

    prompt: str | None = option(None, "A question.")
    text: str | None = option(
        None,
        "Raw text to continue, such as a protein sequence, or with a [MASK] for each token that a masked model should "
        "write; regions are marked as [[name: its text]].",
    )
    ids: str | None = option(None, "Token ids to continue, such as 1,5,7.", rare=True)
    passage: list[str] | None = option(None, "A passage for --prompt; repeat for several.")
    gold: list[int] | None = option(None, "Index of a --passage with the answer, from 0; repeat for several.")
    answer: list[str] | None = option(None, "A gold answer to --prompt; repeat for several.", rare=True)
    replay: str | None = option(
        None, "Text to replay after --prompt, --text or --ids, revealed step by step instead of sampled."
    )
    order: str = option(
        "left-to-right",
        "Order of --replay: left-to-right, random, or indices such as 2,0,1+3 (+: together).",
        rare=True,
    )
    intervention: list[str] | None = option(
        None, 'Trace under an intervention, such as "mask-anchors(rule=top(1))"; repeat for several.'
    )


DEFAULTS = Asked()


def command(
    model: common.Model,
    out: Annotated[str, typer.Option("--out", help="Run folder for the traces: a path, or a URL such as s3://….")],
    asked: Asked = DEFAULTS,
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
    from floatlens.store.engine import make_engine

    given = {"--prompt": asked.prompt, "--text": asked.text, "--ids": asked.ids, "--data": data}
    if sum(value is not None for value in given.values()) != 1:
        raise FloatLensError(f"pass exactly one of {', '.join(given)}")
    if asked.replay is not None and data is not None:
        raise FloatLensError("--replay needs one prompt; pass it with --prompt, --text or --ids")
    ids, order = parse_ids(asked.ids), parse_order(asked.order)
    reading = replace(reading, seed=None)  # the questions are the first ones; the seed is only the sampler's
    interventions = [parse_intervention(spec) for spec in asked.intervention or ()]
    engine, names = make_engine(running), [data] if data else []
    sources = open_sources(names, reading, ())

    # Everything above is quick; from here on torch is needed.
    from floatlens.evaluation.loop import Experiment, Journal, ModelWorker, run_experiments
    from floatlens.interventions.intervention import check
    from floatlens.lens import Lens
    from floatlens.store.folder import RunFolder
    from floatlens.trace.recorder import check_recording
    from floatlens.trace.trace import Trace

    # Check everything that can be checked before the weights are read.
    shared.check_device(loading, running.engine)
    lens = Lens.find(model, loading)
    check(interventions, lens.shape, lens.config)
    if lens.tokenizer is None and ids is None:
        raise FloatLensError(
            f"{lens.name} has no tokenizer, so it cannot read text; add its tokenizer files or use --ids"
        )
    samples: list[Any] = [one for source in sources for one in with_gold_at(source.samples(), reading.gold_at)]
    prompts: list[Prompt] = []
    if data is None:
        with shared.noted_warnings():
            prompts = samples = [one_prompt(lens, asked, ids, order, reading, sampling.seed or 0)]
    settings = lens.settings_of(prompts, sampling)
    check_recording(recording, lens.shape, settings.step_count)
    for prompt in prompts:
        settings.fits(len(prompt.ids), lens.context_length)
    how: dict[str, Any] = {"recording": recording, "interventions": tuple(asked.intervention or ())}
    job = Experiment(model, "", "", samples, sampling, reading, running.batch_size, len(samples), **how)
    kept = {"data": names, "read": reading, "load": loading, "sampling": sampling, "recording": recording}
    kept |= recorded(asked)
    with shared.open_run(out, "trace", [model], kept, running.resume) as folder, shared.bar() as watch:
        records, _ = run_experiments([job], ModelWorker(loading), Journal(folder), engine=engine, watch=watch)
        failed = [record for record in records if record.error]
        count = len(records) - len(failed)
        found: dict[str, Any] = {"results": [{"model": model, "data": data, "n": count, "errors": len(failed)}]}
        shared.finish_run(folder, sampling, sources, found)
    notes = shared.problem_lines(found["problems"])
    if not count:
        shared.print_notes(notes)
        raise FloatLensError(f"no sample could be traced; the first failed because: {failed[0].error}")
    if as_json:
        return shared.print_json(found)
    console = shared.make_console()
    if data is None:
        with RunFolder.open(out) as made:
            console.print(str(Trace.open(made.samples()[0][1])), markup=False)
    also = f", {len(failed)} failed: see errors.jsonl" if failed else ""
    console.print(f"{count} {'trace' if count == 1 else 'traces'} in {found['run']}{also}", markup=False)
    shared.print_notes(notes)


def one_prompt(
    lens: Lens, asked: Asked, ids: list[int] | None, order: str | list[list[int]], reading: Data, seed: int
) -> Prompt:
    """Return the prompt of --prompt, --text or --ids, with the answer of --replay."""
    from floatlens.data.prompt import Prompt
    from floatlens.data.sequences import MARK, MARKS
    from floatlens.data.template import DEFAULT

    if asked.prompt is not None:
        how: dict[str, Any] = {"order": reading.order, "template": reading.template or DEFAULT, "chat": reading.chat}
        made = lens.prompt(asked.prompt, asked.passage or (), gold=asked.gold, **how)
    elif asked.text is None:
        made = Prompt.from_ids(ids or [])
    else:
        make = lens.infill_prompt if has_mask(lens, asked.text) else lens.text_prompt
        made = make(asked.text, MARKS if MARK.search(asked.text) else None)
    made = replace(made, answers=list(asked.answer or ()), sample_id="prompt")
    if asked.replay is None:
        return made
    return lens.with_answer(made, asked.replay, order, seed=seed, regions=MARKS if MARK.search(asked.replay) else None)


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
