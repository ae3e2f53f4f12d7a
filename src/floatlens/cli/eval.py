"""floatlens eval: score the answers of models, with and without passages (the paper's Table 1)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floatlens.cli import options as common
from floatlens.cli import shared
from floatlens.errors import FloatLensError
from floatlens.options import Data, Load, Run, Sampling

if TYPE_CHECKING:
    import pandas as pd

    from floatlens.evaluation.sources import Key
    from floatlens.evaluation.table import Table1
    from floatlens.store.folder import RunFolder


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

        floatlens eval tiny-arm --data my.csv --retriever bm25 --corpus wiki.jsonl
    """
    from floatlens.evaluation.sources import CLOSED, OPEN, open_sources, place_gold
    from floatlens.store.engine import make_engine

    if closed_book and both:
        raise FloatLensError("--closed-book and --both cannot be combined; --both asks without and with passages")
    running.check_out(out)
    conditions = (CLOSED, OPEN) if both else (CLOSED,) if closed_book or reading.closed_book else (OPEN,)
    models = list(dict.fromkeys(models))
    engine = make_engine(running)
    sources = open_sources(data, reading, conditions)

    # Everything above is quick; from here on torch is needed.
    from floatlens.evaluation.loop import Experiment, ModelWorker, answer_all

    shared.check_device(loading, running.engine)
    shared.check_settings(models, loading, sampling)
    size = running.batch_size

    def jobs() -> Iterator[Experiment]:
        for model in models:
            for source in sources:
                for condition in conditions:
                    positions = reading.gold_at if condition == OPEN else None
                    for position in positions or (None,):
                        samples, name = source.samples(), condition
                        if position is not None:
                            samples, name = map(place_gold, samples, repeat(position)), f"{OPEN} (gold at {position})"
                        yield Experiment(model, source.label, name, samples, sampling, reading, size, source.count)

    asked: dict[str, Any] = {"data": data, "conditions": conditions, "read": reading, "sampling": sampling}
    asked |= {"load": loading, "run": running}
    with shared.open_run(out, "eval", models, asked, running.resume) as folder:
        with shared.bar() as watch:
            answers, rates = answer_all(
                jobs(),
                ModelWorker(loading),
                folder,
                engine=engine,
                watch=watch,
            )
        found, table = summarise(answers, rates, folder, both)
        if folder is not None:
            for ending, text in (("md", table.markdown()), ("tex", table.latex()), ("csv", table.csv())):
                folder.write_text(f"table1.{ending}", text)
        shared.finish_run(folder, sampling, sources, found)
    show(found, table, answers, as_json)


def summarise(
    answers: pd.DataFrame, rates: dict[Key, float | None], folder: RunFolder | None, both: bool
) -> tuple[dict[str, Any], Table1]:
    """Return the object of --json, and Table 1; the figure and the claims are written to the run folder."""
    from floatlens.evaluation import summary
    from floatlens.evaluation.table import table1

    entries, averages = summary.results(answers), summary.averages(answers)
    for entry in entries:
        entry["questions_per_second"] = rates[entry["model"], entry["data"], entry["condition"]]
    found = {"results": entries, "averages": averages, "comparisons": summary.comparisons(answers), "claims": []}
    if both and any(entry["n"] for entry in entries):
        from floatlens.findings.knowledge import knowledge

        found["claims"] = shared.judge(knowledge, answers, folder, "knowledge")
    return found, table1(entries, averages)


def show(found: dict[str, Any], table: Table1, answers: pd.DataFrame, as_json: bool) -> None:
    """Print only JSON, or the table; raise an error if no question could be answered."""

    notes = []
    if as_json:
        shared.print_json(found)
    else:
        console = shared.make_console()
        for part in table.terminal():
            console.print(part)
        for entry in found["results"]:
            if entry["errors"] or entry["truncated"]:
                where = f"{entry['model']}, {entry['data']}, {entry['condition']}"
                notes.append(f"{where}: {entry['errors']} errors, {entry['truncated']} with passages dropped to fit")
    shared.print_notes([*notes, *shared.claim_lines(found["claims"]), *shared.problem_lines(found["problems"])])
    shared.check_answered(answers)
