"""floatlens stress: how models answer when the passages get harder to use."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated, Any

import pandas as pd
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from floatlens.cli import options as common
from floatlens.cli.grouped import grouped
from floatlens.cli.numbers import numbers
from floatlens.cli.progress import bar
from floatlens.cli.start import check_answered, check_retriever, check_settings, started
from floatlens.data.retrieval import index_of
from floatlens.errors import FloatLensError
from floatlens.evaluation.comparison import open_sources
from floatlens.evaluation.plan import Plan
from floatlens.evaluation.stress import curves, registry
from floatlens.evaluation.stress.level import Options
from floatlens.evaluation.stress.run import levels_of, run
from floatlens.findings import style
from floatlens.findings.stress import stress as finding
from floatlens.findings.verdict import write_claims


@grouped
def command(
    name: Annotated[str, typer.Argument(metavar="STRESS", help="noise, position, layout, masks or query.")],
    models: common.Models,
    data: common.Data,
    levels: Annotated[
        str | None, typer.Option(help="Distractors, gold places, distances or masks, such as 0,1,2,4 or 0:20:5.")
    ] = None,
    distractors: Annotated[str, typer.Option(help="Noise: random, hard (retrieved) or own (the data's).")] = "random",
    passages: common.Passages = None,
    retriever: Annotated[str | None, typer.Option(help="bm25: take hard distractors from --corpus.")] = None,
    corpus: Annotated[str | None, typer.Option(help="Passages for hard distractors.")] = None,
    score: Annotated[str, typer.Option(help="Score of the curve: accuracy, accuracy_words, f1 or em.")] = "accuracy",
    trace: Annotated[bool, typer.Option("--trace", help="Keep a trace of every answer in --out.")] = False,
    split: common.Split = None,
    limit: common.Limit = None,
    seed: common.Seed = None,
    sampling: common.Sampling = common.Sampling(),
    records: common.Records = common.Records(),
    out: Annotated[str | None, typer.Option(help="Run folder for answers and figures: a path, or a URL.")] = None,
    running: common.Running = common.Running(),
    as_json: common.AsJson = False,
) -> None:
    """Ask the same questions ever harder, and draw how the scores fall.

    Examples:

        floatlens stress noise tiny-mdm tiny-arm --data world:fresh --limit 200 --out noise

        floatlens stress position tiny-mdm tiny-arm --data world:fresh --passages 10 --levels 0,4,9

        floatlens stress layout tiny-mdm tiny-arm --data world:hops --trace --limit 20 --out layout
    """
    stress = registry.get(name)
    if score not in SCORES:
        raise FloatLensError(f"score {score!r} is not known; use one of {', '.join(SCORES)}")
    if (running.resume or trace) and out is None:
        raise FloatLensError(f"{'--resume' if running.resume else '--trace'} needs --out: the folder of the run")
    check_retriever(retriever, corpus)
    asking = common.asking(sampling, records, seed)
    plan = Plan(
        models=tuple(dict.fromkeys(models)),
        data=tuple(dict.fromkeys(data)),
        asking=asking,
        split=split,
        limit=limit,
        seed=seed,
        passages=passages if all(each.startswith("world") for each in data) else None,
        **records.reading(),
    )
    check_settings(plan)
    engine = running.chosen_engine()
    chosen = numbers(levels, "--levels")
    options = Options(
        values=tuple(chosen) if chosen is not None else None,
        passages=passages,
        distractors=distractors,
        seed=seed or 0,
        index=index_of(corpus) if corpus else None,
    )
    sources = open_sources(plan)
    made = levels_of(stress, sources, asking, options)
    for level in (level for several in made.values() for level in several):
        check_settings(plan, level.asking)
    also = {"stress": name, "corpus": corpus, "trace": trace, "dtype": running.dtype}
    also |= {key: value for key, value in asdict(options).items() if key != "index"}
    with started(out, "stress", plan, also, running.resume) as folder:
        with bar("questions") as watch:
            answers = run(
                stress,
                plan.models,
                made,
                running.loader(),
                folder,
                watch,
                trace,
                engine=engine,
                retry_errors=running.retry_errors,
            )
        check_answered(answers)
        measured = finding.measure(answers, score=score)
        # What this stress and these models cannot decide is left out.
        verdicts = [v for v in finding.claims(measured) if v.n]
        found: dict[str, Any] = {
            "results": curves.as_results(answers),
            "robustness": _records(curves.robustness(answers, score)),
            "claims": [verdict.to_dict() for verdict in verdicts],
            "problems": {source.label: source.problems for source in sources if source.problems},
            "settings": asking.recorded(),
            "run": out,
        }
        if folder is not None:
            folder.write_text("results.json", json.dumps(found, indent=2, ensure_ascii=False) + "\n")
            drawn, numbers_ = finding.figure(measured), finding.figure(measured, backend="none")
            style.save(drawn, numbers_, folder.path / "figures" / f"stress-{name}")
            write_claims(folder.path / "claims.json", verdicts)
            folder.finish()
    if as_json:
        sys.stdout.write(json.dumps(found, ensure_ascii=False) + "\n")
    else:
        _show(curves.curves(answers, score), found)


SCORES = ("accuracy", "accuracy_words", "f1", "em")


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    rows = table.to_dict("records")
    return [{str(k): None if isinstance(v, float) and v != v else v for k, v in row.items()} for row in rows]


def _show(table: pd.DataFrame, found: dict[str, Any]) -> None:
    console = Console()
    shown = Table("model", "data", "level", "score", "95 % interval", "n")
    for row in table.to_dict("records"):
        interval = f"{row['low']:.3f} to {row['high']:.3f}"
        names = (escape(str(row[name])) for name in ("model", "data", "level"))
        shown.add_row(*names, f"{row['mean']:.3f}", interval, str(row["n"]))
    console.print(shown)
    for row in found["robustness"]:
        text = ", ".join(f"{key} {row[key]:+.3f}" for key in ("range", "slope", "loss") if row.get(key) is not None)
        console.print(f"{row['model']}, {row['data']}: {text}", markup=False, highlight=False)
    for claim in found["claims"]:
        console.print(f"{claim['claim']}: {claim['verdict']} ({claim['reason']})", markup=False, highlight=False)
    for label, what in found["problems"].items():
        Console(stderr=True).print(f"{label}: {what}", markup=False)
