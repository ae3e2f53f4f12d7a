"""Numbers that must not change while the code gets smaller: traces, answers, verdicts, a stress test and an ablation.

`python -m tests.frozen.freeze` writes them anew. A number is only replaced together with the definition that it follows.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import floatlens as fl
from tests.commands import run

FOLDER = Path(__file__).parent
SHORT = "On which day was the ship Golden Otter launched?"
PASSAGES = [
    "The ship Silver Heron was launched on a Monday in Velmar.",
    "The ship Golden Otter was launched on a Tuesday. It belongs to Ada Tarn.",
    "Brim Oake lives in Rusk and keeps a bakery.",
]
# Variables of a trace by what is kept of them: all steps, or the mean over steps.
EVERY_STEP = ("received", "confidence")
MEAN_OVER_STEPS = ("entropy", "qk", "qk_norm", "qk_cos", "value_norm", "flow", "evidence_mass", "evidence_hit")
# Claims that were replaced or added: not frozen.
REPLACED = (
    "absorption.more", "geometry.turn", "drift.right", "drift.floats", "drift.fixed", "drift.moves", "drift.renewal",
    "drift.spread", "drift.layers_more", "drift.instruction", "tokens.structure", "heads.deep", "heads.deeper",
    "heads.prompt", "flow.gold_more", "flow.middle", "flow.query", "flow.recent",
)  # fmt: skip
FINDINGS = ("drift", "absorption", "geometry", "tokens", "heads", "flow")


def make_traces() -> dict[str, fl.Trace]:
    """Trace the bundled models: short questions, passages, infilling, replay, sampling, and an intervention."""
    lens = {name: fl.load(name) for name in ("tiny-mdm", "tiny-arm", "tiny-dream", "tiny-ssm")}
    few: dict[str, Any] = {"max_new_tokens": 8}
    made = {name: each.trace(SHORT, **few) for name, each in lens.items()}
    asked: dict[str, Any] = {"passages": PASSAGES, "gold": 1, "answers": ["Tuesday"]}
    made["mdm-passages"] = lens["tiny-mdm"].trace(SHORT, **asked, **few, steps=4)
    made["arm-passages"] = lens["tiny-arm"].trace(SHORT, **asked, **few)
    made["mdm-infill"] = lens["tiny-mdm"].infill("The ship [MASK] [MASK] was launched on a [MASK].")
    made["mdm-replay"] = lens["tiny-mdm"].replay(SHORT, "on a Tuesday in Velmar", order="random", seed=3)
    made["arm-replay"] = lens["tiny-arm"].replay(SHORT, "on a Tuesday in Velmar")
    made["mdm-sampled"] = lens["tiny-mdm"].trace(SHORT, **few, temperature=1.0, seed=5, layers=[0, 2])
    with lens["tiny-mdm"].intervene("mask-anchors(rule=top(1))"):
        made["mdm-masked"] = lens["tiny-mdm"].trace(SHORT, **few)
    return made


def numbers_of(traces: dict[str, fl.Trace]) -> dict[str, np.ndarray]:
    """Return tokens, commits and statistics (means over heads), by trace and variable."""
    found: dict[str, np.ndarray] = {}
    for name, trace in traces.items():
        data = trace.data
        for variable in ("tokens", "committed_at"):
            found[f"{name}/{variable}"] = data[variable].values
        for variable in (*EVERY_STEP, *MEAN_OVER_STEPS):
            if variable not in data:
                continue
            gone = {"head"} if variable in EVERY_STEP else {"head", "step"}
            kept = data[variable].astype("float64").mean([dim for dim in data[variable].dims if dim in gone])
            found[f"{name}/{variable}"] = kept.values.astype("float32")
    return found


def results_of(traces: dict[str, fl.Trace]) -> dict[str, Any]:
    """Return answers, verdicts, and the results of commands."""
    found: dict[str, Any] = {"texts": {name: trace.answer for name, trace in traces.items()}}
    found["verdicts"] = verdicts()
    found["answers"] = answers()
    with tempfile.TemporaryDirectory() as folder:
        common = ("--data", "world:fresh", "--limit", 6, "--json", "--max-new-tokens", 8, "--batch-size", 3)
        stress = run("stress", "noise", "tiny-mdm", "tiny-arm", *common, "--levels", "0,2", "--out", f"{folder}/stress")
        masked = ("--intervention", "mask-anchors(rule=top({n}))", "--doses", "1,2", "--controls", "0")
        ablate = run("ablate", "tiny-mdm", *common, "--passages", 3, *masked)
    for name, done in (("stress", stress), ("ablate", ablate)):
        rows = json.loads(done.stdout)["results"]
        gone = {"seconds", "beyond"}  # "beyond" compares with controls, which are now matched by moved attention
        found[name] = [{key: value for key, value in row.items() if not any(g in key for g in gone)} for row in rows]
    return found


def verdicts() -> list[dict[str, Any]]:
    """Return the verdicts of a few findings on traces of a diffusion model and its autoregressive twin."""
    samples = list(fl.read("world:fresh", limit=12, passages=3))
    traces = []
    for name in ("tiny-mdm", "tiny-arm"):
        lens = fl.load(name)
        prompts = [lens.prompt(s.question, s.passages, answers=s.answers) for s in samples]
        traces += lens.traces(prompts, sample_ids=[s.id for s in samples], max_new_tokens=8)
    rows = []
    for name in FINDINGS:
        for verdict in getattr(fl.findings, name).claims(traces):
            row = verdict.to_dict()
            if row["id"] in REPLACED:
                continue
            rows.append({key: row[key] for key in ("id", "models", "value", "interval", "verdict", "n")})
    return rows


def answers() -> list[dict[str, Any]]:
    """Return the answers of three models to questions of the world."""
    rows = []
    for name, options in (
        ("tiny-mdm", {}),
        ("tiny-arm", {}),
        ("tiny-dream", {}),
        ("tiny-mdm", {"closed_book": True}),
    ):
        table = fl.evaluate(fl.load(name), fl.read("world:common", limit=4), max_new_tokens=8, **options)
        kept = table[["id", "answer", "em", "accuracy", "f1", "confidence", "steps"]]
        rows += [{"model": name, **options, **row} for row in kept.to_dict("records")]
    return rows


def main() -> None:
    traces = make_traces()
    np.savez_compressed(FOLDER / "traces.npz", **numbers_of(traces))
    text = json.dumps(results_of(traces), indent=1, ensure_ascii=False)
    (FOLDER / "results.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
