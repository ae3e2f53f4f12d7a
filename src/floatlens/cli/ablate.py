"""floatlens ablate: what breaks when anchors are masked or pinned, or heads taken out."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from floatlens.cli import options as common
from floatlens.cli.grouped import grouped
from floatlens.cli.numbers import numbers
from floatlens.cli.progress import bar
from floatlens.cli.start import check_answered, check_settings, started
from floatlens.errors import FloatLensError
from floatlens.evaluation.ablate import ablate
from floatlens.evaluation.ablate.condition import conditions, standard
from floatlens.evaluation.ablate.effects import results
from floatlens.evaluation.comparison import open_sources
from floatlens.evaluation.plan import Plan
from floatlens.findings import style
from floatlens.findings.causes import causes
from floatlens.findings.verdict import write_claims
from floatlens.interventions.check import check
from floatlens.lens import Lens
from floatlens.models.checkpoint import find


@grouped
def command(
    models: common.Models,
    data: common.Data,
    intervention: Annotated[
        list[str] | None,
        typer.Option(
            "--intervention", help='Such as "mask-anchors(rule=top({n}))"; may repeat. Default: what the claims need.'
        ),
    ] = None,
    doses: Annotated[str | None, typer.Option(help="Numbers to put in place of {n}, such as 1,2,4,8.")] = None,
    controls: Annotated[str, typer.Option(help="Seeds of the matched random controls, such as 0,1,2.")] = "0,1",
    passages: common.Passages = None,
    max_passages: common.MaxPassages = None,
    split: common.Split = None,
    limit: common.Limit = 100,
    seed: common.Seed = None,
    sampling: common.Sampling = common.Sampling(max_new_tokens=16),
    records: common.Records = common.Records(),
    running: common.Running = common.Running(),
    out: Annotated[str | None, typer.Option(help="Run folder for answers and figures: a path, or a URL.")] = None,
    as_json: common.AsJson = False,
) -> None:
    """Answer the same questions with and without interventions, each beside its matched random control.

    Examples:

        floatlens ablate tiny-mdm tiny-arm --data world:fresh --limit 50 --out causes

        floatlens ablate tiny-mdm --data world:fresh --intervention "mask-anchors(rule=top({n}))" --doses 1,2,4,8

        floatlens ablate tiny-mdm --data world:fresh --intervention "mask-positions(region=gold)" --json
    """
    if running.resume and out is None:
        raise FloatLensError("--resume needs --out: the folder of the run to go on with")
    asking = common.asking(sampling, records, seed)
    plan = Plan(
        models=tuple(dict.fromkeys(models)),
        data=tuple(dict.fromkeys(data)),
        asking=asking,
        split=split,
        limit=limit,
        seed=seed,
        passages=passages,
        max_passages=max_passages,
        **records.reading(),
    )
    check_settings(plan)
    chosen = [float(n) for n in numbers(doses, "--doses") or ()] or None
    seeds = numbers(controls, "--controls") or []
    check_interventions(plan.models, intervention, chosen, seeds)
    engine = running.chosen_engine()
    sources = open_sources(plan)
    also = {"interventions": intervention, "doses": chosen, "controls": seeds, "dtype": running.dtype}
    samples = {source.label: list(source.samples()) for source in sources}
    with started(out, "ablate", plan, also, running.resume) as folder:
        with bar("answers") as watch:
            answers = ablate(
                plan.models,
                samples,
                intervention,
                doses=chosen,
                seeds=seeds,
                asking=asking,
                folder=folder,
                watch=watch,
                load=running.loader(),
                engine=engine,
                retry_errors=running.retry_errors,
            )
        check_answered(answers)
        measured = causes.measure(answers)
        verdicts = [verdict for verdict in causes.claims(measured) if verdict.n]
        found: dict[str, Any] = {
            "results": results(answers),
            "claims": [verdict.to_dict() for verdict in verdicts],
            "problems": {source.label: source.problems for source in sources if source.problems},
            "settings": asking.recorded(),
            "run": str(folder) if folder is not None else None,
        }
        if folder is not None:
            folder.write_text("results.json", json.dumps(found, indent=2, ensure_ascii=False) + "\n")
            for view in causes.views:
                stem = "causes" if view == causes.views[0] else f"causes-{view}"
                numbers_ = causes.figure(measured, view=view, backend="none")
                style.save(causes.figure(measured, view=view), numbers_, folder.path / "figures" / stem)
            write_claims(folder.path / "claims.json", verdicts)
            folder.finish()
    if as_json:
        sys.stdout.write(json.dumps(found, ensure_ascii=False) + "\n")
    else:
        show(found)


def check_interventions(
    models: Sequence[str], specs: Sequence[str] | None, doses: Sequence[float] | None, seeds: Sequence[int]
) -> None:
    """Refuse what a model does not have before any weight is read."""
    for model in models:
        lens = Lens(find(model))
        for condition in conditions(specs or standard(lens.shape["layers"] or 1), doses, seeds):
            check(condition.interventions, lens.shape, lens.config)


def show(found: dict[str, Any]) -> None:
    """A table of what changed, and the verdicts."""
    console = Console()
    shown = Table("model", "intervention", "accuracy", "change", "beyond control", "agrees", "KL", "gold ppl", "formed")
    for row in found["results"]:
        shown.add_row(
            escape(row["model"]),
            escape(row["condition"]),
            _spell(row.get("accuracy")),
            _difference(row["change"].get("accuracy")),
            _difference(row["beyond"].get("accuracy")),
            _spell(row.get("agreement")),
            _spell(row.get("kl")),
            _spell(row.get("gold_perplexity")),
            _spell(row.get("well_formed")),
        )
    console.print(shown)
    for claim in found["claims"]:
        text = f"{', '.join(claim['models'])}: {claim['claim']}: {claim['verdict']} ({claim['reason']})"
        console.print(text, markup=False, highlight=False)
    for label, what in found["problems"].items():
        Console(stderr=True).print(f"{label}: {what}", markup=False)


def _spell(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _difference(found: dict[str, Any] | None) -> str:
    if not found or found["value"] is None:
        return "–"
    low, high = found["interval"]
    return escape(f"{found['value']:+.2f} [{low:+.2f}, {high:+.2f}]")
