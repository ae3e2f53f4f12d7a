"""floatlens eval: score the answers of models, with and without passages (the paper's Table 1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floatlens.cli import options as common
from floatlens.cli import shared
from floatlens.errors import FloatLensError
from floatlens.options import Data, Load, Run, Sampling

if TYPE_CHECKING:
    from floatlens.evaluation.loop import Experiment


def command(
    models: common.Models,
    data: common.DataSets,
    closed_book: Annotated[bool, typer.Option("--closed-book", help="Ask without passages.")] = False,
    both: Annotated[bool, typer.Option("--both", help="Ask without and with passages (Table 1).")] = False,
    reading: Data = Data(),
    sampling: Sampling = Sampling(),
    loading: Load = Load(),
    out: common.Out = None,
    running: Run = Run(),
    as_json: common.AsJson = False,
) -> None:
    """Answer the questions of data sets and score the answers, with intervals and paired tests.

    Masked diffusion models (MDMs) and autoregressive models (ARMs) are asked in the same way.

    Examples:

        floatlens eval tiny-mdm tiny-arm --data world --both --out table1

        floatlens eval tiny-mdm --data nq.jsonl.gz --max-passages 5 --json

        floatlens eval tiny-arm --data my.csv --corpus wiki.jsonl
    """
    from floatlens.evaluation.sources import CLOSED, OPEN, open_sources, place_gold

    if closed_book and both:
        raise FloatLensError("--closed-book and --both cannot be combined; --both asks without and with passages")
    conditions = (CLOSED, OPEN) if both else (CLOSED,) if closed_book or reading.closed_book else (OPEN,)
    shared.check_run(running, out)
    sources = open_sources(data, reading, conditions)

    # Everything above is quick; from here on torch is needed.
    from floatlens.evaluation import summary
    from floatlens.evaluation.conditions import check_settings
    from floatlens.evaluation.loop import Experiment, answer_all
    from floatlens.evaluation.table import files, table1

    shared.check_device(loading, running.engine)
    check_settings(models, loading, [sampling])
    size = running.batch_size

    def jobs() -> Iterator[Experiment]:
        for model in models:
            for source in sources:
                for condition in conditions:
                    positions = reading.gold_at if condition == OPEN else None
                    for position in positions or (None,):
                        samples, name = source.samples(), condition
                        if position is not None:
                            samples = [place_gold(sample, position) for sample in samples]
                            name = f"{OPEN} (gold at {position})"
                        yield Experiment(model, source.label, name, samples, sampling, reading, size)

    options, asked = (reading, sampling, loading, running), {"data": data, "conditions": conditions}
    with shared.experiment("eval", models, sources, out, options, **asked) as (found, folder, loop):
        answers, rates = answer_all(jobs(), folder=folder, **loop)
        entries, averages = summary.results(answers), summary.averages(answers)
        for entry in entries:
            entry["questions_per_second"] = rates[entry["model"], entry["data"], entry["condition"]]
        found |= {"results": entries, "averages": averages, "comparisons": summary.comparisons(answers), "claims": []}
        if both and any(entry["n"] for entry in entries):
            from floatlens.findings.knowledge import knowledge

            found["claims"] = shared.judge(knowledge, answers, folder, "knowledge")
        table = table1(entries, averages)
        if folder is not None:
            for name, text in files(table).items():
                folder.write_text(name, text)
    if as_json:
        shared.print_json(found)
    else:
        show(found, table)
    shared.check_answered(answers)


def show(found: dict[str, Any], table: Any) -> None:
    """Print Table 1, and what is missing in it."""
    from floatlens.evaluation.table import terminal

    shared.make_console().print(*terminal(table))
    for entry in found["results"]:
        if entry["errors"] or entry["truncated"]:
            where = f"{entry['model']}, {entry['data']}, {entry['condition']}"
            problems = f"{entry['errors']} errors, {entry['truncated']} with passages dropped to fit"
            shared.print_notes([f"{where}: {problems}"])
    shared.print_claims(found["claims"])
