"""floatlens eval: how well models answer, with and without passages (the paper's Table 1)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from floatlens.cli.main import versions
from floatlens.cli.progress import bar
from floatlens.errors import FloatLensError
from floatlens.findings import style
from floatlens.findings.knowledge import knowledge
from floatlens.findings.verdict import write_claims
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
    out: Annotated[Path | None, typer.Option(help="Run folder for answers, tables and the manifest.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
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
    sources = open_sources(plan)
    folder = started(out, "eval", plan.recorded(), resume)
    with bar("questions") as watch:
        outcome = run(plan, sources, loader(device, dtype), folder, watch)
    entries, averages = summary.results(outcome.answers), summary.averages(outcome.answers)
    for entry in entries:
        took = outcome.seconds[entry["model"], entry["data"], entry["condition"]]
        entry["questions_per_second"] = round((entry["n"] + entry["errors"]) / took, 2) if took else None
    found = {
        "results": entries,
        "averages": averages,
        "comparisons": summary.comparisons(outcome.answers),
        "settings": asking.recorded(),
        "claims": [],
        "problems": outcome.problems,
        "run": str(out) if out else None,
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
    if folder is not None:
        write(folder.path, found, table)
    show(found, table, outcome, as_json)


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


def started(out: Path | None, command: str, asked: dict[str, Any], resume: bool) -> RunFolder | None:
    """The run folder, if one was asked for."""
    if out is None:
        return None
    about = {"command": command, "asked": asked, "versions": versions(), "machine": f"{os.cpu_count()} cores"}
    return RunFolder.create(out, about, resume=resume)


def loader(device: str | None, dtype: str) -> Any:
    """Loads a model by its name."""
    from floatlens.lens import load

    return lambda name: load(name, device_map=device, dtype=dtype)


def write(path: Path, found: dict[str, Any], table: Table1) -> None:
    """The numbers and Table 1 in its forms, beside answers.parquet."""
    (path / "results.json").write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for ending, text in (("md", table.markdown()), ("tex", table.latex()), ("csv", table.csv())):
        (path / f"table1.{ending}").write_text(text, encoding="utf-8")


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
