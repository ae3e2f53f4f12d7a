"""floatlens ablate: measure the effect of masking or pinning anchors, or of removing heads."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from floatlens.cli import options as common
from floatlens.cli import shared
from floatlens.errors import FloatLensError
from floatlens.options import Data, Load, Run, Sampling

MEASURED = {"agreement": "agrees", "kl": "KL", "gold_perplexity": "gold ppl", "well_formed": "formed"}


def command(
    models: common.Models,
    data: common.DataSets,
    intervention: Annotated[
        list[str] | None,
        typer.Option(
            help='Such as "mask-anchors(rule=top({n}))"; repeat for several. Default: those that the claims need.'
        ),
    ] = None,
    doses: Annotated[str | None, typer.Option(help="Values of {n} in the interventions, such as 1,2,4,8.")] = None,
    controls: Annotated[str, typer.Option(help="Seeds of the matched random controls, such as 0,1,2.")] = "0,1",
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
    from floatlens.evaluation.conditions import check_settings, conditions
    from floatlens.evaluation.sources import open_sources

    shared.check_run(running, out)
    if reading.gold_at:
        raise FloatLensError("--gold-at is an option of trace, study and eval; leave it out")
    values = [float(n) for n in common.parse_numbers(doses, "--doses") or ()] or None
    how: dict[str, Any] = {"doses": values, "seeds": common.parse_numbers(controls, "--controls") or []}
    conditions(intervention or (), **how)
    sources = open_sources(data, reading)
    samples = {source.label: list(source.samples()) for source in sources}

    # Everything above is quick; from here on torch is needed.
    from floatlens.evaluation.ablate import ablate, effects
    from floatlens.findings.causes import causes

    shared.check_device(loading, running.engine)
    check_settings(models, loading, [sampling], intervention, **how)
    options = reading, sampling, loading, running
    asked = {"data": data, "interventions": intervention, "doses": values, "controls": how["seeds"]}
    how |= {"sampling": sampling, "reading": reading, "run": running}
    with shared.experiment("ablate", models, sources, out, options, **asked) as (found, folder, loop):
        answers = ablate(models, samples, intervention, folder=folder, **how, **loop)
        shared.check_answered(answers)
        found |= {"results": effects(answers), "claims": shared.judge(causes, answers, folder, "causes")}
    if as_json:
        return shared.print_json(found)
    show(found)


def show(found: dict[str, Any]) -> None:
    """Print a table of the effects, and the verdicts."""
    rows = (
        (
            *(row.get(name) for name in ("model", "data", "condition", "n", "accuracy")),
            *(row[beside].get("accuracy") for beside in ("change", "beyond")),
            *(row.get(name) for name in MEASURED),
        )
        for row in found["results"]
    )
    columns = ("model", "data", "intervention", "n", "accuracy", "change", "beyond control", *MEASURED.values())
    shared.print_table(columns, rows)
    shared.print_claims(found["claims"])
