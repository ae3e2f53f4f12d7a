"""floatlens ablate: measure the effect of masking or pinning anchors, or of removing heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from floatlens.cli import options as common
from floatlens.cli import shared
from floatlens.errors import FloatLensError
from floatlens.options import Data, Load, Run, Sampling, option


@dataclass(frozen=True)
class Changes:
    """The interventions, their doses and their controls."""

    panel: ClassVar[str] = "Decoding"

    intervention: list[str] | None = option(
        None, 'Such as "mask-anchors(rule=top({n}))"; repeat for several. Default: those that the claims need.'
    )
    doses: str | None = option(None, "Values of {n} in the interventions, such as 1,2,4,8.")
    controls: str = option("0,1", "Seeds of the matched random controls, such as 0,1,2.")


DEFAULTS = Changes()


def command(
    models: common.Models,
    data: common.DataSets,
    changes: Changes = DEFAULTS,
    reading: Data = Data(limit=100),
    sampling: Sampling = Sampling(max_new_tokens=16),
    loading: Load = Load(),
    running: Run = Run(),
    out: common.Out = None,
    as_json: common.AsJson = False,
) -> None:
    """Answer the same questions with and without interventions, each compared with its matched random control.

    Examples:

        floatlens ablate tiny-mdm tiny-arm --data world:fresh --limit 50 --out causes

        floatlens ablate tiny-mdm --data world --intervention "soft-cap({n})"

        floatlens ablate tiny-mdm --data world --intervention "mask-anchors" --json
    """
    from floatlens.evaluation.conditions import conditions
    from floatlens.evaluation.sources import open_sources
    from floatlens.store.engine import make_engine

    running.check_out(out)
    if reading.gold_at:
        raise FloatLensError("--gold-at is an option of trace, study and eval; leave it out")
    models = list(dict.fromkeys(models))
    chosen = [float(n) for n in common.parse_numbers(changes.doses, "--doses") or ()] or None
    seeds = common.parse_numbers(changes.controls, "--controls") or []
    intervention = changes.intervention
    if intervention:
        conditions(intervention, chosen, seeds)
    engine = make_engine(running)
    sources = open_sources(data, reading)
    samples = {source.label: list(source.samples()) for source in sources}

    # Everything above is quick; from here on torch is needed.
    from floatlens.evaluation.ablate import ablate, effects
    from floatlens.evaluation.loop import ModelWorker
    from floatlens.findings.causes import causes

    shared.check_device(loading, running.engine)
    shared.check_settings(models, loading, sampling)
    check_interventions(models, loading, intervention, chosen, seeds)
    asked: dict[str, Any] = {"data": data, "read": reading, "sampling": sampling, "load": loading, "run": running}
    asked |= {"interventions": intervention, "doses": chosen, "controls": seeds}
    with shared.open_run(out, "ablate", models, asked, running.resume) as folder:
        with shared.bar() as watch:
            answers = ablate(
                models,
                samples,
                intervention,
                doses=chosen,
                seeds=seeds,
                sampling=sampling,
                reading=reading,
                run=running,
                folder=folder,
                watch=watch,
                engine=engine,
                worker=ModelWorker(loading),
            )
        shared.check_answered(answers)
        found = {"results": effects(answers), "claims": shared.judge(causes, answers, folder, "causes")}
        shared.finish_run(folder, sampling, sources, found)
    if as_json:
        shared.print_json(found)
    else:
        show(found)


def check_interventions(
    models: Sequence[str],
    loading: Load,
    specs: Sequence[str] | None,
    doses: Sequence[float] | None,
    seeds: Sequence[int],
) -> None:
    """Raise an error for interventions on layers or heads that a model does not have, before any weight is read."""
    from floatlens.evaluation.conditions import conditions, standard
    from floatlens.interventions.intervention import check
    from floatlens.lens import Lens

    for model in models:
        lens = Lens.find(model, loading)
        for condition in conditions(specs or standard(lens.shape["layers"] or 1), doses, seeds):
            check(condition.interventions, lens.shape, lens.config)


def show(found: dict[str, Any]) -> None:
    """Print a table of the effects, and the verdicts."""
    from floatlens.findings.spelling import number

    console = shared.make_console()
    measured = {"agreement": "agrees", "kl": "KL", "gold_perplexity": "gold ppl", "well_formed": "formed"}
    rows = [
        (
            *(row[name] for name in ("model", "data", "condition", "n")),
            number(row.get("accuracy")),
            _difference(row["change"].get("accuracy")),
            _difference(row["beyond"].get("accuracy")),
            *(number(row.get(name)) for name in measured),
        )
        for row in found["results"]
    ]
    columns = ("model", "data", "intervention", "n", "accuracy", "change", "beyond control", *measured.values())
    shared.print_table(console, columns, rows)
    for line in shared.claim_lines(found["claims"]):
        console.print(line, markup=False)
    shared.print_notes(shared.problem_lines(found["problems"]))


def _difference(found: dict[str, Any] | None) -> str:
    if not found or found["value"] is None:
        return "–"
    value, low, high = (round(each, 2) + 0.0 for each in (found["value"], *found["interval"]))  # never -0.00
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"
