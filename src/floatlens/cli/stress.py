"""floatlens stress: evaluate models while the passages get harder to use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer

from floatlens.cli import options as common
from floatlens.cli import shared
from floatlens.errors import FloatLensError, check_known
from floatlens.options import Data, Load, Recording, Run, Sampling, option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from floatlens.evaluation.stress import StressLevel
    from floatlens.store.folder import RunFolder


@dataclass(frozen=True)
class Difficulty:
    """The levels of a stress test, and how its answers are scored and kept."""

    panel: ClassVar[str] = "Input"

    levels: str | None = option(
        None, "Numbers of distractors, gold positions, distances or masks, such as 0,1,2,4 or 0:20:5."
    )
    distractors: str = option("random", "Distractors of noise: random, hard (retrieved) or own (the data's).")
    intervention: list[str] | None = option(
        None,
        'Also ask under an intervention such as "pin-anchors(across=layers)" and its control; repeat for several.',
    )
    controls: str = option("0", "Seeds of the matched random controls, such as 0,1,2.")
    score: str = option("accuracy", "Score of the curve: accuracy, accuracy_words, f1 or em.")
    trace: bool = option(False, "Keep a trace of every answer in --out.")
    detail: Literal["full", "summary"] = option(
        "full", "What traces keep: full (every head) or summary (means over heads)."
    )


DEFAULTS = Difficulty()


def command(
    name: Annotated[str, typer.Argument(metavar="STRESS", help="noise, position, layout, masks, query or collection.")],
    models: common.Models,
    data: common.DataSets,
    how: Difficulty = DEFAULTS,
    reading: Data = Data(),
    sampling: Sampling = Sampling(),
    loading: Load = Load(),
    out: common.Out = None,
    running: Run = Run(),
    as_json: common.AsJson = False,
) -> None:
    """Ask the same questions at increasing difficulty, and draw the scores as a curve.

    Masked diffusion models (MDMs) and autoregressive models (ARMs) get the same questions. With --corpus, hard distractors
    are retrieved from it. `collection` asks at six stages of a document's life, while documents are added, replaced, copied,
    contradicted and withdrawn, with the passages that BM25 retrieves at that time; the collection has --corpus and the
    passages of the data that are not evidence.

    Examples:

        floatlens stress noise tiny-mdm tiny-arm --data world:fresh --out noise

        floatlens stress position tiny-mdm --data world:fresh --levels 0,4,9

        floatlens stress layout tiny-mdm --data world:hops --trace --out layout

        floatlens stress noise tiny-mdm --data world --intervention "pin-anchors"

        floatlens stress collection tiny-mdm --data world:fresh --out collection
    """
    from floatlens.data.read import named_data
    from floatlens.evaluation.collection import COLLECTION
    from floatlens.evaluation.metrics import SCORES
    from floatlens.evaluation.sources import open_sources
    from floatlens.evaluation.stress import STRESSES, StressOptions, stress_experiments
    from floatlens.store.engine import make_engine

    test = COLLECTION if name == COLLECTION.name else STRESSES[name]
    score, trace, intervention = how.score, how.trace, how.intervention
    check_known("score", score, SCORES)
    if trace and out is None:
        raise FloatLensError("--trace needs --out, the folder for the traces")
    record = ("received_writing",) if test is COLLECTION else ("default",)
    recording = Recording(record=record, detail=how.detail) if trace else None
    running.check_out(out)
    if reading.gold_at:
        raise FloatLensError("--gold-at is an option of trace, study and eval; use `stress position` with --levels")
    models = list(dict.fromkeys(models))
    generated = reading.passages if all(named_data(each) for each in data) else None  # other data has its own passages
    values = common.parse_numbers(how.levels, "--levels")
    seeds = common.parse_numbers(how.controls, "--controls") or []
    engine = make_engine(running)
    sources = open_sources(data, replace(reading, passages=generated, retriever=None, corpus=None))
    options = StressOptions(
        values=tuple(values) if values is not None else None,
        passages=reading.passages,
        distractors=how.distractors,
        seed=reading.seed or 0,
        index=open_index(reading.corpus),
    )
    made = {source.label: test.levels(list(source.samples()), options) for source in sources}

    # Everything above is quick; from here on torch is needed.
    from floatlens.cli.ablate import check_interventions
    from floatlens.evaluation import curves
    from floatlens.evaluation.conditions import Condition, conditions
    from floatlens.evaluation.loop import ModelWorker, answer_all
    from floatlens.findings.stress import stress as finding

    levels_of = [level.options(sampling, reading)[0] for several in made.values() for level in several]
    shared.check_device(loading, running.engine)
    shared.check_settings(models, loading, sampling, *levels_of)
    under = [Condition.plain()]
    if intervention:
        check_interventions(models, loading, intervention, None, seeds)
        under = conditions(intervention, None, seeds)
    asked: dict[str, Any] = {"data": data, "read": reading, "sampling": sampling, "load": loading, "run": running}
    asked |= {"stress": name, "levels": values, "distractors": how.distractors, "recording": recording}
    asked |= {"interventions": intervention, "controls": seeds} if intervention else {}
    with shared.open_run(out, "stress", models, asked, running.resume) as folder:
        with shared.bar() as watch:
            answers, _ = answer_all(
                stress_experiments(
                    test,
                    models,
                    made,
                    under,
                    sampling=sampling,
                    reading=reading,
                    batch_size=running.batch_size,
                    recording=recording,
                ),
                ModelWorker(loading),
                folder,
                engine=engine,
                watch=watch,
            )
        shared.check_answered(answers)
        found: dict[str, Any]
        if test is COLLECTION:
            found = collection_results(answers, made, folder, trace)
        else:
            found = {
                "results": curves.as_results(answers),
                "robustness": shared.records_of(curves.robustness(answers, score)),
                "effects": curves.effects(answers, score),
                "claims": shared.judge(finding, answers, folder, f"stress-{name}", score=score),
            }
        shared.finish_run(folder, sampling, sources, found)
    if as_json:
        shared.print_json(found)
    elif test is COLLECTION:
        show_collection(found)
    else:
        show(curves.curves(answers, score), found)


def collection_results(
    answers: pd.DataFrame, made: Mapping[str, Sequence[StressLevel]], folder: RunFolder | None, trace: bool
) -> dict[str, Any]:
    """Return the shares of right, outdated and misled answers by stage, and the attention to passages by their role."""
    from floatlens.evaluation import collection
    from floatlens.findings.flow import attention_by_role
    from floatlens.store.runs import RunTraces

    streams = {data: {level.name: level.samples for level in several} for data, several in made.items()}
    answers = collection.with_outcomes(answers, streams)
    found: dict[str, Any] = {"results": shared.records_of(collection.summary(answers)), "attention": []}
    if folder is not None:
        folder.write_table("answers", answers)
        if trace:
            looked = attention_by_role(RunTraces([folder]), streams)
            folder.write_table("attention", looked)
            means = looked.groupby(["model", "data", "stage", "role"], sort=False)[["share", "per_token"]]
            found["attention"] = shared.records_of(means.mean().reset_index())
    return found


def open_index(corpus: str | None) -> Any:
    """Return the index of a corpus, if there is one."""
    if corpus is None:
        return None
    from floatlens.data.retrieval import index_of

    return index_of(corpus)


def show_collection(found: dict[str, Any]) -> None:
    """Print one row per model and stage, and the attention by role."""

    console, named = shared.make_console(), ("model", "data", "stage")
    columns = {"accuracy_words": "right", "outdated": "outdated", "misled": "misled", "recall": "recall"}
    rows = [
        (
            *(row[name] for name in named),
            *("–" if row[column] is None else f"{row[column]:.3f}" for column in columns),
            row["n"],
        )
        for row in found["results"]
    ]
    shared.print_table(console, (*named, *columns.values(), "n"), rows)
    for row in found["attention"]:
        about = ", ".join(str(row[name]) for name in ("model", "data", "stage", "role"))
        console.print(f"attention of {about}: {row['share']:.3f}, per token {row['per_token']:.2f}", markup=False)
    shared.print_notes(shared.problem_lines(found["problems"]))


def show(table: pd.DataFrame, found: dict[str, Any]) -> None:
    """Print the curves, the robustness and the claims."""

    console = shared.make_console()
    named = ("model", "data", "level", "intervention") if found["effects"] else ("model", "data", "level")
    rows = [
        (*(row[name] for name in named), f"{row['mean']:.3f}", f"{row['low']:.3f} to {row['high']:.3f}", row["n"])
        for row in table.to_dict("records")
    ]
    shared.print_table(console, (*named, "score", "95 % interval", "n"), rows)
    for row in found["robustness"]:
        text = ", ".join(f"{key} {row[key]:+.3f}" for key in ("range", "slope", "loss") if row.get(key) is not None)
        about = ", ".join(row[name] for name in ("model", "data", "intervention") if row[name])
        console.print(f"{about}: {text}", markup=False)
    for row in found["effects"]:
        for number, difference in (row["beyond"] or row["change"]).items():
            low, high = difference["interval"]
            beside = "its control" if row["beyond"] else "no intervention"
            text = f"{number} {difference['value']:+.3f} [{low:+.3f}, {high:+.3f}] compared with {beside}"
            console.print(f"{row['model']}, {row['data']}, {row['intervention']}: {text}", markup=False)
    for line in shared.claim_lines(found["claims"]):
        console.print(line, markup=False)
    shared.print_notes(shared.problem_lines(found["problems"]))
