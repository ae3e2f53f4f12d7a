"""floatlens eval: how well models answer, with and without passages (the paper's Table 1)."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console

from floatlens.cli import options as common
from floatlens.cli.grouped import grouped
from floatlens.cli.progress import bar
from floatlens.cli.start import check_answered, check_retriever, check_settings, started
from floatlens.errors import FloatLensError
from floatlens.evaluation import summary
from floatlens.evaluation.comparison import Outcome, open_sources, run
from floatlens.evaluation.evaluate import CLOSED, OPEN
from floatlens.evaluation.plan import Plan
from floatlens.evaluation.table import Table1, table1
from floatlens.findings import style
from floatlens.findings.knowledge import knowledge
from floatlens.findings.verdict import write_claims
from floatlens.runs.folder import RunFolder


@grouped
def command(
    models: common.Models,
    data: common.Data,
    closed_book: Annotated[bool, typer.Option("--closed-book", help="Ask without passages.")] = False,
    both: Annotated[bool, typer.Option("--both", help="Ask without and with passages: Table 1.")] = False,
    passages: Annotated[int | None, typer.Option(help="Gold among so many passages; 0 is closed book.")] = None,
    max_passages: common.MaxPassages = None,
    retriever: common.Retriever = None,
    corpus: common.Corpus = None,
    split: common.Split = None,
    limit: common.Limit = None,
    seed: common.Seed = None,
    sampling: common.Sampling = common.Sampling(),
    order: Annotated[str, typer.Option(help="Question last, first, or on both sides of the passages.")] = "last",
    records: common.Records = common.Records(),
    out: Annotated[str | None, typer.Option(help="Run folder for answers and tables: a path, or a URL.")] = None,
    running: common.Running = common.Running(),
    as_json: common.AsJson = False,
) -> None:
    """Answer the questions of data sets and score the answers, with intervals and paired tests.

    Examples:

        floatlens eval tiny-mdm tiny-arm --data world --both --limit 200 --out table1

        floatlens eval tiny-mdm --data nq.jsonl.gz --max-passages 5 --json

        floatlens eval tiny-arm --data questions.csv --retriever bm25 --corpus wiki.jsonl
    """
    if closed_book and both:
        raise FloatLensError("--closed-book and --both exclude each other; --both asks without and with passages")
    if running.resume and out is None:
        raise FloatLensError("--resume needs --out: the folder of the run to go on with")
    check_retriever(retriever, corpus)
    conditions = (CLOSED, OPEN) if both else (CLOSED,) if closed_book or passages == 0 else (OPEN,)
    plan = Plan(
        models=tuple(dict.fromkeys(models)),
        data=tuple(dict.fromkeys(data)),
        conditions=conditions,
        asking=common.asking(sampling, records, seed, order),
        split=split,
        limit=limit,
        seed=seed,
        passages=passages or None,
        max_passages=max_passages,
        corpus=corpus,
        **records.reading(),
    )
    check_settings(plan)
    engine = running.chosen_engine()
    sources = open_sources(plan)
    with started(out, "eval", plan, {"dtype": running.dtype}, running.resume) as folder:
        with bar("questions") as watch:
            outcome = run(
                plan, sources, running.loader(), folder, watch, engine=engine, retry_errors=running.retry_errors
            )
        found, table = told(plan, outcome, folder, both)
        if folder is not None:
            write(folder, found, table)
            folder.finish()
    show(found, table, outcome, as_json)


def told(plan: Plan, outcome: Outcome, folder: RunFolder | None, both: bool) -> tuple[dict[str, Any], Table1]:
    """What the answers come to: the object of --json, and Table 1; the figure and the claims go to the run folder."""
    entries, averages = summary.results(outcome.answers), summary.averages(outcome.answers)
    for entry in entries:
        took = outcome.seconds[entry["model"], entry["data"], entry["condition"]]
        entry["questions_per_second"] = round((entry["n"] + entry["errors"]) / took, 2) if took else None
    found = {
        "results": entries,
        "averages": averages,
        "comparisons": summary.comparisons(outcome.answers),
        "settings": plan.asking.recorded(),
        "claims": [],
        "problems": outcome.problems,
        "run": str(folder) if folder is not None else None,
    }
    table = table1(entries, averages)
    if both and any(entry["n"] for entry in entries):
        measured = knowledge.measure(outcome.answers)
        verdicts = [verdict for verdict in knowledge.claims(measured) if verdict.n]
        found["claims"] = [verdict.to_dict() for verdict in verdicts]
        if folder is not None:
            drawn, numbers = knowledge.figure(measured), knowledge.figure(measured, backend="none")
            style.save(drawn, numbers, folder.path / "figures" / "knowledge")
            write_claims(folder.path / "claims.json", verdicts)
    return found, table


def write(folder: RunFolder, found: dict[str, Any], table: Table1) -> None:
    """The numbers and Table 1 in its forms, beside answers.parquet."""
    folder.write_text("results.json", json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    for ending, text in (("md", table.markdown()), ("tex", table.latex()), ("csv", table.csv())):
        folder.write_text(f"table1.{ending}", text)


def show(found: dict[str, Any], table: Table1, outcome: Outcome, as_json: bool) -> None:
    """JSON alone, or the table and what a reader must know about it; an error if no question could be answered."""
    notes = Console(stderr=True)
    if as_json:
        sys.stdout.write(json.dumps(found, ensure_ascii=False) + "\n")
    else:
        console = Console()
        for part in table.terminal(console.width):
            console.print(part)
        for entry in found["results"]:
            if entry["errors"] or entry["truncated"]:
                where = f"{entry['model']}, {entry['data']}, {entry['condition']}"
                what = f"{entry['errors']} errors, {entry['truncated']} with passages dropped to fit"
                notes.print(f"{where}: {what}", markup=False)
    for claim in found["claims"]:
        notes.print(f"{claim['claim']}: {claim['verdict']} ({claim['reason']})", markup=False, highlight=False)
    for label, what in found["problems"].items():
        notes.print(f"{label}: {what}", markup=False)
    check_answered(outcome.answers)
