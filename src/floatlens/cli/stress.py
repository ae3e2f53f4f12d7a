"""floatlens stress: evaluate models while the passages get harder to use."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floatlens.cli import options as common
from floatlens.cli import shared
from floatlens.errors import FloatLensError, check_known
from floatlens.evaluation.stress import StressOptions
from floatlens.options import Data, Load, Recording, Run, Sampling

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from floatlens.evaluation.stress import StressLevel
    from floatlens.store.folder import RunFolder

STAGES = ("model", "data", "stage", "accuracy_words", "outdated", "misled", "recall", "n")  # columns of collection


def command(
    name: Annotated[str, typer.Argument(metavar="STRESS", help="noise, position, layout, masks, query or collection.")],
    models: common.Models,
    data: common.DataSets,
    how: StressOptions = StressOptions(),
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
    from floatlens.data.retrieval import index_of
    from floatlens.evaluation.collection import COLLECTION
    from floatlens.evaluation.metrics import SCORES
    from floatlens.evaluation.sources import open_sources
    from floatlens.evaluation.stress import STRESSES, stress_experiments

    test = COLLECTION if name == COLLECTION.name else STRESSES[name]
    check_known("score", how.score, SCORES)
    shared.check_run(running, out, trace=how.trace)
    if reading.gold_at:
        raise FloatLensError("--gold-at is an option of trace, study and eval; use `stress position` with --levels")
    seeds = common.parse_numbers(how.controls, "--controls") or []
    generated = reading.passages if all(named_data(each) for each in data) else None  # other data has its own passages
    sources = open_sources(data, replace(reading, passages=generated, corpus=None))
    index = index_of(reading.corpus) if reading.corpus else None
    how = replace(how, passages=reading.passages, seed=reading.seed or 0, index=index)
    made = {source.label: test.levels(list(source.samples()), how) for source in sources}

    # Everything above is quick; from here on torch is needed.
    from floatlens.evaluation import curves, summary
    from floatlens.evaluation.conditions import check_settings, conditions
    from floatlens.evaluation.loop import answer_all
    from floatlens.findings.stress import stress as finding

    levels_of = [level.options(sampling, reading)[0] for several in made.values() for level in several]
    shared.check_device(loading, running.engine)
    check_settings(models, loading, [sampling, *levels_of], how.intervention or (), seeds=seeds)
    record = ("received_writing",) if test is COLLECTION else ("default",)
    recording = Recording(record, detail=how.detail) if how.trace else None
    under = conditions(how.intervention or (), None, seeds)
    options = reading, sampling, loading, running
    asked: dict[str, Any] = {"data": data, "stress": name, "levels": how.values, "distractors": how.distractors}
    asked |= {"recording": recording} | (
        {"interventions": how.intervention, "controls": seeds} if how.intervention else {}
    )
    ways: dict[str, Any] = {"sampling": sampling, "reading": reading, "batch_size": running.batch_size}
    with shared.experiment("stress", models, sources, out, options, **asked) as (found, folder, loop):
        jobs = stress_experiments(test, models, made, under, recording=recording, **ways)
        answers, _ = answer_all(jobs, folder=folder, **loop)
        shared.check_answered(answers)
        if test is COLLECTION:
            found |= collection_results(answers, made, folder, how.trace)
        else:
            found |= {
                "results": summary.results(answers, ("stress", "level", "x", "intervention")),
                "robustness": records_of(curves.robustness(answers, how.score)),
                "effects": curves.effects(answers, how.score),
                "claims": shared.judge(finding, answers, folder, f"stress-{name}", score=how.score),
            }
    if as_json:
        return shared.print_json(found)
    if test is COLLECTION:
        shared.print_records(found["results"], STAGES)
        return shared.print_records(found["attention"], ("model", "data", "stage", "role", "share", "per_token"))
    show(curves.curves(answers, how.score), found)


def records_of(table: pd.DataFrame) -> list[dict[Any, Any]]:
    """Return the rows of a table for JSON, with None instead of NaN."""
    return table.astype(object).where(table.notna(), None).to_dict("records")


def collection_results(
    answers: pd.DataFrame, made: Mapping[str, Sequence[StressLevel]], folder: RunFolder | None, trace: bool
) -> dict[str, Any]:
    """Return the shares of right, outdated and misled answers by stage, and the attention to passages by their role."""
    from floatlens.evaluation import collection
    from floatlens.findings.flow import attention_by_role
    from floatlens.store.runs import RunTraces

    streams = {data: {level.name: level.samples for level in several} for data, several in made.items()}
    answers = collection.with_outcomes(answers, streams)
    found = {"results": records_of(collection.summary(answers)), "attention": []}
    if folder is not None:
        folder.write_table("answers", answers)
        if trace:
            looked = attention_by_role(RunTraces([folder]), streams)
            folder.write_table("attention", looked)
            means = looked.groupby(["model", "data", "stage", "role"], sort=False)[["share", "per_token"]]
            found["attention"] = records_of(means.mean().reset_index())
    return found


def show(table: pd.DataFrame, found: dict[str, Any]) -> None:
    """Print the curves, the robustness, the effects of interventions and the claims."""
    under = ("intervention",) if found["effects"] else ()
    shared.print_records(table.to_dict("records"), ("model", "data", "level", *under, "mean", "low", "high", "n"))
    shared.print_records(found["robustness"], ("model", "data", *under, "range", "slope", "loss"))
    effects = [
        row | {"effect on": number, "compared with": what, "difference": difference}
        for row in found["effects"]
        for beside, what in (("change", "no intervention"), ("beyond", "its control"))
        for number, difference in row[beside].items()
    ]
    shared.print_records(effects, ("model", "data", "intervention", "effect on", "compared with", "difference"))
    shared.print_claims(found["claims"])
