"""floatlens eval: how well models answer, with and without passages (the paper's Table 1)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from floatlens.cli import options as common
from floatlens.cli.loader import Loader
from floatlens.cli.progress import bar
from floatlens.errors import FloatLensError
from floatlens.findings import style
from floatlens.findings.knowledge import knowledge
from floatlens.findings.verdict import write_claims
from floatlens.runs import manifest
from floatlens.runs.engines import registry as engines
from floatlens.runs.folder import RunFolder
from floatlens.tasks import summary
from floatlens.tasks.comparison import Outcome, open_sources, run
from floatlens.tasks.evaluate import CLOSED, OPEN, Asking
from floatlens.tasks.plan import Plan
from floatlens.tasks.readers.columns import parse_names
from floatlens.tasks.table import Table1, table1
from floatlens.tasks.template import DEFAULT, read


def command(
    models: Annotated[list[str], typer.Argument(help="Models: folders, hub ids or bundled names.")],
    data: Annotated[list[str], typer.Option("--data", help="A file, a hub data set, world or world:NAME; may repeat.")],
    closed_book: Annotated[bool, typer.Option("--closed-book", help="Ask without passages.")] = False,
    both: Annotated[bool, typer.Option("--both", help="Ask without and with passages: Table 1.")] = False,
    passages: Annotated[int | None, typer.Option(help="Gold among so many passages; 0 is closed book.")] = None,
    max_passages: Annotated[int | None, typer.Option(help="At most the first so many of the data's passages.")] = None,
    retriever: Annotated[str | None, typer.Option(help="bm25: retrieve passages from --corpus.")] = None,
    corpus: Annotated[str | None, typer.Option(help="Passages to retrieve from: JSONL, CSV or parquet.")] = None,
    split: Annotated[str | None, typer.Option(help="train, validation or test.")] = None,
    limit: Annotated[int | None, typer.Option(help="So many questions: the first, or with --seed a fair draw.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the draw of questions and of the sampler.")] = None,
    batch_size: Annotated[int, typer.Option(help="Questions decoded together.")] = 32,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens an answer may have.")] = 32,
    steps: Annotated[int | None, typer.Option(help="Denoising steps of a diffusion model.")] = None,
    block_length: Annotated[int | None, typer.Option(help="Block length of LLaDA's sampler.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    order: Annotated[str, typer.Option(help="Question last, first, or on both sides of the passages.")] = "last",
    template: Annotated[Path | None, typer.Option(help="A text file with the slots {passages} and {question}.")] = None,
    columns: Annotated[str | None, typer.Option(help="Columns by role, such as question=ask,answers=target.")] = None,
    layout: Annotated[
        str | None, typer.Option(help="kilt, middle, hotpot, keyvalue or columns; else found out.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad line of the data.")] = False,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, …")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    out: Annotated[str | None, typer.Option(help="Run folder for answers and tables: a path, or a URL.")] = None,
    allow_pickle: common.AllowPickle = False,
    engine: common.Engine = "local",
    workers: common.Workers = None,
    address: common.Address = None,
    gpus_per_worker: common.GpusPerWorker = None,
    resume: common.Resume = False,
    retry_errors: common.RetryErrors = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Answer the questions of data sets and score the answers, with intervals and paired tests.

    Examples:

        floatlens eval tiny-mdm tiny-arm --data world --both --limit 200 --out table1

        floatlens eval tiny-mdm --data nq.jsonl.gz --max-passages 5 --json

        floatlens eval tiny-arm --data questions.csv --retriever bm25 --corpus wiki.jsonl
    """
    if closed_book and both:
        raise FloatLensError("--closed-book and --both exclude each other; --both asks without and with passages")
    if resume and out is None:
        raise FloatLensError("--resume needs --out: the folder of the run to go on with")
    check_retriever(retriever, corpus)
    conditions = (CLOSED, OPEN) if both else (CLOSED,) if closed_book or passages == 0 else (OPEN,)
    asking = Asking(
        max_new_tokens=max_new_tokens,
        steps=steps,
        batch_size=batch_size,
        seed=seed or 0,
        order=order,
        template=read(template) if template else DEFAULT,
        sampler={"block_length": block_length, "temperature": temperature},
    )
    plan = Plan(
        models=tuple(dict.fromkeys(models)),
        data=tuple(dict.fromkeys(data)),
        conditions=conditions,
        asking=asking,
        split=split,
        limit=limit,
        seed=seed,
        passages=passages or None,
        max_passages=max_passages,
        corpus=corpus,
        layout=layout,
        names=parse_names(columns) if columns else None,
        strict=strict,
    )
    check_settings(plan)
    does = engines.engine(engine, workers=workers, address=address, gpus_per_worker=gpus_per_worker)
    sources = open_sources(plan)
    load = Loader(device, dtype, allow_pickle)
    with started(out, "eval", plan, {"dtype": dtype}, resume) as folder:
        with bar("questions") as watch:
            outcome = run(plan, sources, load, folder, watch, engine=does, retry_errors=retry_errors)
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
        "run": folder.place if folder is not None else None,
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


def check_settings(plan: Plan, asking: Asking | None = None) -> None:
    """Refuse settings that cannot work for one of the models before any weight is read."""
    from floatlens.decode.registry import settings_for
    from floatlens.models.checkpoint import find

    for model in plan.models:
        settings_for(find(model).family.sampler, **(asking or plan.asking).generation())


def check_retriever(retriever: str | None, corpus: str | None) -> None:
    if retriever not in (None, "bm25"):
        raise FloatLensError(f"retriever {retriever!r} is not known; use bm25")
    if (retriever is None) != (corpus is None):
        raise FloatLensError("a retriever needs a corpus and a corpus a retriever: --retriever bm25 --corpus FILE")


@contextmanager
def started(
    out: str | None, command: str, plan: Plan, also: dict[str, Any], resume: bool
) -> Iterator[RunFolder | None]:
    """The run folder, if one was asked for, held until the block ends."""
    if out is None:
        yield None
        return
    from floatlens.models.checkpoint import find

    about = manifest.describe(
        command,
        {**plan.recorded(), **also},
        checkpoints=[find(model) for model in plan.models],
        data=[*plan.data, *([plan.corpus] if plan.corpus else [])],
        template=plan.asking.template.text,
        seeds={"seed": plan.asking.seed, "draw": plan.seed},
    )
    with RunFolder.create(out, about, resume=resume) as folder:
        yield folder


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
                notes.print(f"{where}: {entry['errors']} errors, {entry['truncated']} with passages dropped to fit")
    for claim in found["claims"]:
        notes.print(f"{claim['claim']}: {claim['verdict']} ({claim['reason']})", markup=False, highlight=False)
    for label, what in found["problems"].items():
        notes.print(f"{label}: {what}", markup=False)
    if not any(entry["n"] for entry in found["results"]):
        reason = outcome.answers["error"].dropna().iloc[0]
        raise FloatLensError(f"no question could be answered; the first failed because: {reason}")
