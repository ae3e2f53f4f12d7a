"""Compare the paper's scripts with FloatLens on the same .npz files: make the table of docs/howto/paper-scripts.md.

    python docs/scripts/compare_scripts.py [FOLDER]

FOLDER holds inputs of the scripts' own functions and what they returned (default: tests/golden/analysis). Each input is
written as an .npz file in the layout of the scripts, imported as `floatlens import` does, and measured. The table replaces
the text between the two comments `<!-- scripts -->` of the page.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from floatlens.anchors import parse_rule
from floatlens.evaluation.metrics import score
from floatlens.findings.absorption import absorb
from floatlens.findings.definitions import rollout_while_rows_differ
from floatlens.trace.npz import import_npz
from floatlens.trace.trace import Trace

PAGE = Path(__file__).parents[1] / "howto" / "paper-scripts.md"
GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "analysis"
BLOCK = re.compile(r"(<!-- scripts -->\n).*?(<!-- scripts -->)", re.DOTALL)
Row = tuple[str, str, str, str, str]  # script, quantity, theirs, ours, why they differ


def main() -> None:
    made = table(Path(sys.argv[1]) if sys.argv[1:] else GOLDEN)
    if not sys.argv[1:]:
        PAGE.write_text(BLOCK.sub(lambda match: f"{match[1]}{made}\n{match[2]}", PAGE.read_text()))
    print(made)


def table(golden: Path) -> str:
    """Return the comparison as a table in Markdown."""
    head = "| script | number | theirs | FloatLens | why they differ |\n|---|---|---|---|---|"
    parts: list[Callable[[Path], list[Row]]] = [temporal, absorption, geometry, flow, answers]
    return "\n".join([head, *(f"| {' | '.join(row)} |" for part in parts for row in part(golden))])


def imported(**arrays: Any) -> Trace:
    """Return the trace of an .npz file with these arrays."""
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "theirs.npz", **arrays)
        return import_npz(Path(folder) / "theirs.npz")


def temporal(golden: Path) -> list[Row]:
    steps_SLTT = np.load(golden / "temporal_inputs.npz")["step_attention_avg"]
    steps = [
        {"step": s, "sequence": np.zeros(len(one_LTT[0]), np.int64)}
        | {f"layer_{n}_attention_avg": layer for n, layer in enumerate(one_LTT)}
        for s, one_LTT in enumerate(steps_SLTT)
    ]
    trace = imported(step_attention_data=np.array(steps, dtype=object), input_length=0)
    received = trace.data["received"].values[:, :, 0].astype(np.float64)
    same = count = 0
    for record in json.loads((golden / "temporal.json").read_text()):
        a_ST = received.mean(1) if record.get("average_layers") else received[:, record["layer_idx"]]
        rule = parse_rule(f"sigma({record['epsilon']})")
        for a, expected in zip(a_ST, record["floating_sets"], strict=True):
            same += np.flatnonzero(rule(a)).tolist() == expected
            count += 1
    cell = f"{same} of {count} equal"
    return [("`create_temporal.py`", "anchors of a step, by `sigma(eps)`", f"{count} sets", cell, "")]


def absorption(golden: Path) -> list[Row]:
    inputs = np.load(golden / "absorption_inputs.npz")
    records = {record["matrix"]: record for record in json.loads((golden / "absorption.json").read_text())}
    longest = max(len(inputs[name]) for name in records)
    names = [name for name in records if len(inputs[name]) == longest]
    trace = imported(**{f"layer_{n}_full_attention": inputs[name] for n, name in enumerate(names)})
    profiles = trace.data["received"].values[0, :, 0].astype(np.float64)
    theirs = [next(run for run in records[name]["paper_method"] if run["epsilon"] == 3.0) for name in names]

    def ours(rule: str) -> str:
        return listed([absorb(a, parse_rule(rule)(a)) for a in profiles])

    largest = listed([run["sink_percentage"] for run in theirs])
    first = listed([records[name]["bos_percentage"] for name in names])
    script = "`absorption_comparison.py`"
    constant = "its test adds 3 to means below 1, never fires, and falls back to the largest column"
    return [
        (script, "MDM, percent per layer", largest, f"{ours('top(1)')} by `top(1)`", ""),
        (script, "the same, by the default rule", largest, f"{ours('sigma(3)')} by `sigma(3)`", constant),
        (script, "ARM, percent per layer", first, f"{ours('first')} by `first`", ""),
    ]


def geometry(golden: Path) -> list[Row]:
    data = np.load(golden / "qk_decomposition.npz")
    trace = imported(
        layer_0_full_attention=data["attention_heads"].mean(0),
        layer_0_full_attention_heads=data["attention_heads"],
        layer_0_query_states=data["query_states"],
        layer_0_key_states=data["key_states"],
    )
    ours_HT = trace.data["qk"].values[0, 0]
    theirs_HT = np.stack([data[f"refmod_head{h}_qk"].mean(0) for h in range(len(ours_HT))])
    right_HT = np.stack([data[f"head{h}_qk"].mean(0) for h in range(len(ours_HT))])
    off = [h for h in range(len(ours_HT)) if np.abs(ours_HT[h] - theirs_HT[h]).max() > 1e-4]
    heads, keys = len(data["query_states"]), len(data["key_states"])
    why = f"{heads} heads share {keys} key heads; the script reads key head h % {keys}, the model uses h // {heads // keys}"
    at = int(np.argmax(np.abs(ours_HT - theirs_HT).max(-1)))
    j = int(np.argmax(np.abs(ours_HT[at] - theirs_HT[at])))
    return [
        (
            "`QK_decomposition.py`",
            f"mean q·k with key {j}, head {at}",
            f"{theirs_HT[at, j]:.3f}",
            f"{ours_HT[at, j]:.3f}",
            f"{why}: heads {', '.join(map(str, off))} differ, the others are equal",
        ),
        (
            "`QK_decomposition.py`",
            "all heads, with the right key head",
            "",
            f"equal to {np.abs(ours_HT - right_HT).max():.0e}",
            "",
        ),
    ]


def flow(golden: Path) -> list[Row]:
    data = np.load(golden / "regions_rollout.npz")
    about = json.loads((golden / "regions.json").read_text())["custom_regions"]
    trace = imported(**{f"layer_{n}_full_attention": layer for n, layer in enumerate(data["attention"])})
    layers_LTT = trace.data["attention"].values[0, :, 0]
    spans = [(region["start"], region["end"]) for region in about]
    inside_RT = np.array(
        [(start <= (at := np.arange(layers_LTT.shape[-1]))) & (at < end) for start, end in spans], float
    )
    pooled_LRR = inside_RT @ layers_LTT @ inside_RT.T
    pooled_LRR /= np.maximum(pooled_LRR.sum(axis=-1, keepdims=True), 1e-12)  # an empty region has no row
    ours, _ = rollout_while_rows_differ(pooled_LRR, least=0.0)
    theirs = data["rollout_residual_custom"]
    names = [region["name"] for region in about]
    answer, doc = names.index("Answer"), names.index("Doc3")
    length = spans[doc][1] - spans[doc][0]
    return [
        (
            "`attention_rollout.py`",
            "rollout from Answer to Doc3, all layers",
            f"{theirs[answer, doc]:.4f}",
            f"{ours[answer, doc]:.4f}",
            "",
        ),
        (
            "`attention_rollout.py`",
            "the same per token of Doc3",
            "",
            f"{ours[answer, doc] / length:.4f}",
            "a sum over a region favours long ones, so FloatLens reports both",
        ),
    ]


def answers(golden: Path) -> list[Row]:
    cases = json.loads((golden / "qa_metrics.json").read_text())["compute_metrics"]
    ours = [score(case["prediction"], case["ground_truths"]) for case in cases]
    same = sum((o["accuracy"], o["f1"]) == (c["accuracy"], c["f1"]) for o, c in zip(ours, cases, strict=True))
    cell = f"{same} of {len(cases)} equal"
    return [("`evaluate_*.py`", "accuracy and F1 of an answer", f"{len(cases)} answers", cell, "")]


def listed(values: list[Any]) -> str:
    return ", ".join(f"{float(value):.1f}" for value in values)


if __name__ == "__main__":
    main()
