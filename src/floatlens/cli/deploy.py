"""floatlens deploy: evaluate models while the collection of passages changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from floatlens.cli import options as common
from floatlens.errors import FloatLensError
from floatlens.options import Data, Load, Recording, Run, Sampling

if TYPE_CHECKING:
    pass


@common.grouped
def command(
    models: common.Models,
    data: common.DataSets,
    reading: Data = Data(),
    trace: Annotated[
        bool,
        typer.Option(
            "--trace", help="Also measure attention by role of the passages, from a trace of every answer in --out."
        ),
    ] = False,
    sampling: Sampling = Sampling(max_new_tokens=16),
    loading: Load = Load(),
    out: common.Out = None,
    running: Run = Run(),
    as_json: common.AsJson = False,
) -> None:
    """Ask questions over a collection that changes: documents are added, replaced, copied, contradicted and withdrawn.

    Each question is asked at six stages of its document's life, with the passages that BM25 retrieves at that time. The
    collection consists of --corpus and the passages of the data that are not evidence.

    Examples:

        floatlens deploy tiny-mdm tiny-arm --data world:fresh --limit 100 --out deployment

        floatlens deploy smollm2 --data nq.jsonl.gz --corpus wiki.jsonl --passages 3 --trace --out deployment
    """
    from floatlens.data.readers.registry import named_data
    from floatlens.data.retrieval import index_of
    from floatlens.evaluation import deployment
    from floatlens.evaluation.sources import RETRIEVED, asking_of, open_sources, plan_of, problems_of

    if trace and out is None:
        raise FloatLensError("--trace needs --out, the folder for the traces")
    running.check_out(out)
    asking = asking_of(sampling, reading, running)
    generated = reading.passages if all(named_data(each) for each in data) else None
    plan = plan_of(models, data, reading, asking, passages=generated, corpus=None)
    engine = common.make_engine(running)
    sources = open_sources(plan)
    corpus = index_of(reading.corpus) if reading.corpus else ()
    streams = {}
    for source in sources:
        samples = list(source.samples())
        index = deployment.collection(samples, corpus)
        streams[source.label] = deployment.stream(
            samples, index, passages=reading.passages or RETRIEVED, seed=reading.seed or 0
        )

    # Everything above is quick; from here on torch is needed.
    from floatlens.cli.shared import bar, check_answered, check_settings, finish_run, open_run, print_json, records_of
    from floatlens.evaluation.loop import Experiment, ModelWorker, answer_all
    from floatlens.findings.flow import attention_by_role
    from floatlens.store.runs import RunTraces

    check_settings(plan, loading)
    recording = Recording(record=("received_writing",)) if trace else None
    jobs = (
        Experiment(model, label, stage, samples, asking, len(samples), recording=recording)
        for model in plan.models
        for label, stages in streams.items()
        for stage, samples in stages.items()
    )
    also = {"corpus": reading.corpus, "retrieved": reading.passages or RETRIEVED, "trace": trace}
    with open_run(out, "deploy", plan, loading, also, running.resume) as folder:
        with bar("questions") as watch:
            answers, _ = answer_all(
                jobs,
                ModelWorker(loading),
                folder,
                engine=engine,
                watch=watch,
                retry_errors=running.retry_errors,
            )
        check_answered(answers)
        answers = deployment.with_outcomes(answers, streams)
        table = deployment.summary(answers)
        found: dict[str, Any] = {
            "results": records_of(table),
            "attention": [],
            "problems": problems_of(sources),
            "settings": asking.recorded(),
            "run": out,
        }
        if folder is not None:
            folder.write_table("answers", answers)
            if trace:
                looked = attention_by_role(RunTraces([folder]), streams)
                folder.write_table("attention", looked)
                means = looked.groupby(["model", "data", "stage", "role"], sort=False)[["share", "per_token"]]
                found["attention"] = records_of(means.mean().reset_index())
        finish_run(folder, sources, found)
    if as_json:
        print_json(found)
    else:
        show(found)


def show(found: dict[str, Any]) -> None:
    """Print one row per model and stage, and the attention by role."""
    from rich.markup import escape
    from rich.table import Table

    from floatlens.cli.shared import make_console, print_notes, problem_lines

    console = make_console()
    shown = Table()
    columns = {"accuracy_words": "right", "outdated": "outdated", "misled": "misled", "recall": "recall"}
    for column in ("model", "data", "stage", *columns.values(), "n"):
        shown.add_column(column, overflow="fold")
    for row in found["results"]:
        names = (escape(str(row[name])) for name in ("model", "data", "stage"))
        shown.add_row(*names, *("–" if row[c] is None else f"{row[c]:.3f}" for c in columns), str(row["n"]))
    console.print(shown)
    for row in found["attention"]:
        about = ", ".join(str(row[name]) for name in ("model", "data", "stage", "role"))
        console.print(f"attention of {about}: {row['share']:.3f}, per token {row['per_token']:.2f}", markup=False)
    print_notes(problem_lines(found["problems"]))
