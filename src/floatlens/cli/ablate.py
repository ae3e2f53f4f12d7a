"""floatlens ablate: measure the effect of masking or pinning anchors, or of removing heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from floatlens.cli import options as common
from floatlens.cli import shared
from floatlens.errors import FloatLensError
from floatlens.options import Data, Load, Run, Sampling, option

MEASURED = {"agreement": "agrees", "kl": "KL", "gold_perplexity": "gold ppl", "well_formed": "formed"}


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

    shared.check_run(running, out)
    if reading.gold_at:
        raise FloatLensError("--gold-at is an option of trace, study and eval; leave it out")
    models, specs = list(dict.fromkeys(models)), changes.intervention
    doses = [float(n) for n in common.parse_numbers(changes.doses, "--doses") or ()] or None
    seeds = common.parse_numbers(changes.controls, "--controls") or []
    if specs:
        conditions(specs, doses, seeds)
    sources = open_sources(data, reading)
    samples = {source.label: list(source.samples()) for source in sources}

    # Everything above is quick; from here on torch is needed.
    from floatlens.evaluation.ablate import ablate, effects
    from floatlens.findings.causes import causes

    shared.check_settings(models, loading, running, sampling)
    check_interventions(models, loading, specs, doses, seeds)
    how: dict[str, Any] = {"doses": doses, "seeds": seeds, "sampling": sampling, "reading": reading, "run": running}
    asked = {"data": data, "read": reading, "sampling": sampling, "load": loading, "run": running}
    asked |= {"interventions": specs, "doses": doses, "controls": seeds}
    with shared.experiment("ablate", models, sources, out, asked) as (found, folder, loop):
        answers = ablate(models, samples, specs, folder=folder, **how, **loop)
        shared.check_answered(answers)
        found |= {"results": effects(answers), "claims": shared.judge(causes, answers, folder, "causes")}
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
