"""floatlens stress: how models answer when the passages get harder to use."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from floatlens.cli import options as common
from floatlens.cli.eval import check_retriever, check_settings, started
from floatlens.cli.loader import Loader
from floatlens.cli.numbers import numbers
from floatlens.cli.progress import bar
from floatlens.errors import FloatLensError
from floatlens.findings import style
from floatlens.findings.stress import stress as finding
from floatlens.findings.verdict import write_claims
from floatlens.runs.engines import registry as engines
from floatlens.tasks.comparison import open_sources
from floatlens.tasks.evaluate import Asking
from floatlens.tasks.plan import Plan
from floatlens.tasks.readers.columns import parse_names
from floatlens.tasks.retrieval import index_of
from floatlens.tasks.stress import curves, registry
from floatlens.tasks.stress.level import Options
from floatlens.tasks.stress.run import levels_of, run
from floatlens.tasks.template import DEFAULT, read


def command(
    name: Annotated[str, typer.Argument(metavar="STRESS", help="noise, position, layout, masks or query.")],
    models: Annotated[list[str], typer.Argument(help="Models: folders, hub ids or bundled names.")],
    data: Annotated[list[str], typer.Option("--data", help="A file, a hub data set, world or world:NAME; may repeat.")],
    levels: Annotated[
        str | None, typer.Option(help="Distractors, gold places, distances or masks, such as 0,1,2,4 or 0:20:5.")
    ] = None,
    distractors: Annotated[str, typer.Option(help="Noise: random, hard (retrieved) or own (the data's).")] = "random",
    passages: Annotated[int | None, typer.Option(help="Gold among so many passages.")] = None,
    retriever: Annotated[str | None, typer.Option(help="bm25: take hard distractors from --corpus.")] = None,
    corpus: Annotated[str | None, typer.Option(help="Passages for hard distractors.")] = None,
    score: Annotated[str, typer.Option(help="Score of the curve: accuracy, accuracy_words, f1 or em.")] = "accuracy",
    trace: Annotated[bool, typer.Option("--trace", help="Keep a trace of every answer in --out.")] = False,
    split: Annotated[str | None, typer.Option(help="train, validation or test.")] = None,
    limit: Annotated[int | None, typer.Option(help="So many questions: the first, or with --seed a fair draw.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every draw and of the sampler.")] = None,
    batch_size: Annotated[int, typer.Option(help="Questions decoded together.")] = 32,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens an answer may have.")] = 32,
    steps: Annotated[int | None, typer.Option(help="Denoising steps of a diffusion model.")] = None,
    block_length: Annotated[int | None, typer.Option(help="Block length of LLaDA's sampler.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    template: Annotated[Path | None, typer.Option(help="A text file with the slots {passages} and {question}.")] = None,
    columns: Annotated[str | None, typer.Option(help="Columns by role, such as question=ask,answers=target.")] = None,
    layout: Annotated[str | None, typer.Option(help="Layout of the data's records; else found out.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad line of the data.")] = False,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, …")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    out: Annotated[str | None, typer.Option(help="Run folder for answers and figures: a path, or a URL.")] = None,
    allow_pickle: common.AllowPickle = False,
    engine: common.Engine = "local",
    workers: common.Workers = None,
    address: common.Address = None,
    gpus_per_worker: common.GpusPerWorker = None,
    resume: common.Resume = False,
    retry_errors: common.RetryErrors = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
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
    if (resume or trace) and out is None:
        raise FloatLensError(f"{'--resume' if resume else '--trace'} needs --out: the folder of the run")
    check_retriever(retriever, corpus)
    asking = Asking(
        max_new_tokens=max_new_tokens,
        steps=steps,
        batch_size=batch_size,
        seed=seed or 0,
        template=read(template) if template else DEFAULT,
        sampler={"block_length": block_length, "temperature": temperature},
    )
    plan = Plan(
        models=tuple(dict.fromkeys(models)),
        data=tuple(dict.fromkeys(data)),
        asking=asking,
        split=split,
        limit=limit,
        seed=seed,
        passages=passages if all(each.startswith("world") for each in data) else None,
        layout=layout,
        names=parse_names(columns) if columns else None,
        strict=strict,
    )
    check_settings(plan)
    does = engines.engine(engine, workers=workers, address=address, gpus_per_worker=gpus_per_worker)
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
    also = {"stress": name, "corpus": corpus, "trace": trace, "dtype": dtype}
    also |= {key: value for key, value in asdict(options).items() if key != "index"}
    load = Loader(device, dtype, allow_pickle)
    with started(out, "stress", plan, also, resume) as folder:
        with bar("questions") as watch:
            answers = run(stress, plan.models, made, load, folder, watch, trace, engine=does, retry_errors=retry_errors)
        if answers["error"].notna().all():
            reason = answers["error"].iloc[0]
            raise FloatLensError(f"no question could be answered; the first failed because: {reason}")
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
        shown.add_row(row["model"], row["data"], str(row["level"]), f"{row['mean']:.3f}", interval, str(row["n"]))
    console.print(shown)
    for row in found["robustness"]:
        text = ", ".join(f"{key} {row[key]:+.3f}" for key in ("range", "slope", "loss") if row.get(key) is not None)
        console.print(f"{row['model']}, {row['data']}: {text}", markup=False, highlight=False)
    for claim in found["claims"]:
        console.print(f"{claim['claim']}: {claim['verdict']} ({claim['reason']})", markup=False, highlight=False)
    for label, what in found["problems"].items():
        Console(stderr=True).print(f"{label}: {what}", markup=False)
