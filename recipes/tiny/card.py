"""Write the card of a bundled model from measurements.

`measure` answers the questions of the test split with FloatLens and writes scores.json; `write` makes README.md from it,
with the curves of the training run.
"""

import csv
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from floatlens.data.sample import Sample
from floatlens.data.world import samples
from floatlens.evaluation.metrics import score

# data set, passages, new tokens
CONDITIONS = (
    ("fresh", 1, 16),
    ("fresh", 5, 16),
    ("fresh", 10, 16),
    ("fresh", 0, 16),
    ("common", 0, 16),
    ("common", 5, 16),
    ("hops", 5, 16),
    ("slots", 5, 16),
    ("needle", 20, 16),
    ("long", 5, 32),
)
SAMPLE = ("fresh", 5, 16, 100)  # questions by which the tests check an installation: data, passages, tokens, n
BATCH = 25
HEAD = """\
| data | passages | new tokens | n | exact match, % (95 %) | F1, % | ended, % |
|---|---|---|---|---|---|---|"""


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion.

    >>> [round(x, 3) for x in wilson(0.9, 100)]
    [0.826, 0.945]
    """
    z = 1.96
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5 / (1 + z * z / n)
    return middle - half, middle + half


def answer(lens: Any, questions: Iterable[Sample], new_tokens: int) -> list[dict]:
    """Answer each question with greedy or low-confidence decoding, and score the answers."""
    asked = list(questions)
    prompts = [
        lens.prompt(
            sample.question,
            passages=sample.passages,
        )
        for sample in asked
    ]
    answers = []
    for at in range(0, len(prompts), BATCH):
        answers += lens.generate(prompts[at : at + BATCH], max_new_tokens=new_tokens)
    scored = []
    for sample, said in zip(asked, answers, strict=True):
        right = score(said.text, sample.answers)
        scored.append({"id": sample.id, "answer": said.text, "ended": said.ended, "em": right["em"], "f1": right["f1"]})
    return scored


def scores(lens: Any, limit: int) -> list[dict]:
    """Return exact match, F1 and the share of ended answers on the test split, for every condition."""
    table = []
    for data, passages, new_tokens in CONDITIONS:
        scored = answer(lens, samples(data, "test", limit, passages=passages), new_tokens)
        means = {key: float(np.mean([one[key] for one in scored])) for key in ("em", "f1", "ended")}
        low, high = wilson(means["em"], len(scored))
        table.append(
            {
                "data": data,
                "passages": passages,
                "new_tokens": new_tokens,
                "n": len(scored),
                **{key: round(value, 4) for key, value in means.items()},
                "interval": [round(low, 4), round(high, 4)],
            }
        )
    return table


def sample_right(lens: Any) -> int:
    """Return the number of the fixed 100 questions that are answered exactly."""
    data, passages, new_tokens, n = SAMPLE
    return int(sum(one["em"] for one in answer(lens, samples(data, "test", n, passages=passages), new_tokens)))


def first_token(lens: Any, n: int = 20) -> list[float]:
    """Return received attention of position 0 by layer, mean over heads, steps and n questions with five passages."""
    shares = []
    for sample in samples("fresh", "test", n, passages=5):
        trace = lens.trace(sample.question, passages=[p.text for p in sample.passages], max_new_tokens=8)
        shares.append(trace.data["received"].isel(position=0).mean(("step", "head")).values)
    return [round(float(x), 4) for x in np.mean(shares, 0)]


def curves(run: Path, out: Path, title: str) -> None:
    """Draw the curves of a training run as a small SVG."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    plt.rcParams["svg.hashsalt"] = "floatlens"
    with (run / "curves.csv").open() as file:
        lines = list(csv.DictReader(file))
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8), layout="constrained")
    steps = [int(line["step"]) for line in lines]
    left.plot(steps, [float(line["loss"]) for line in lines], lw=1)
    left.set(xlabel="step", ylabel="loss", yscale="log", title=title)
    for name in ("five", "ten", "hops", "heart"):
        probed = [(int(line["step"]), float(line[name])) for line in lines if line[name]]
        right.plot(*zip(*probed, strict=True), lw=1, label=name)
    right.set(xlabel="step", ylabel="answer tokens right", ylim=(0, 1.02))
    right.legend(frameon=False, fontsize=8)
    figure.savefig(out, metadata={"Date": None})
    plt.close(figure)
    out.write_text(re.sub(r"(\d\d\.\d\d)\d+", r"\1", out.read_text()))  # hundredths of a point are enough


CARD = """\
# {name}

{about}

It is part of FloatLens (`floatlens.load("{name}")`), needs no download, and is meant for the study of attention, not
for use: it only knows a synthetic world. {shape}, tied embeddings,
{parameters:,} parameters in {dtype}, at most 512 tokens.

## Data
The synthetic world of `floatlens.data.world`: invented people, towns, companies, ships and instruments in short
passages, with the questions of six data sets in FloatLens's default prompt. All text was written by this project.
Fresh entities of validation and test never occur in training; common people occur repeatedly with facts that never
change.

## Recipe
{recipe}

{steps:,} steps of {size}, {tokens:.1f} M tokens, {minutes:.0f} minutes on one thread of two shared cores, seed
{seed}. AdamW (0.9, 0.98), weight decay 0.05, clipping at 1.0, warm-up of 200 steps, peak rate {peak}, {fall}.
{history}

![curves](curves.svg)

Left: the loss. Right: the share of answer tokens predicted correctly in one step, on validation entities.

## Scores
Test split, greedy or low-confidence decoding, temperature 0, as many steps as new tokens. Numbers in brackets are 95
% intervals (Wilson). "Ended": the answer was ended by eos.

{table}

{right} of the fixed 100 questions (`fresh`, five passages, 16 new tokens) are answered exactly; the tests check this.

## Attention
Received attention of position 0 by layer (0 to 5), mean over heads, steps and 20 questions with five passages:
{first}. {attention}

## Limits
{limits}
"""


def training(run: Path) -> dict[str, Any]:
    """Return seed, steps, tokens and minutes of a training run."""
    state = json.loads((run / "state.json").read_text())
    return {key: state[key] for key in ("seed", "step", "tokens")} | {"minutes": round(state["seconds"] / 60, 1)}


def measure(name: str, lens: Any, made: dict[str, Any], folder: Path, limit: int, traced: Any) -> None:
    """Answer the test questions with a model, trace `traced`, which is the same model, and write scores.json.

    `made` describes how it was trained: see `training`.
    """
    data, passages, new_tokens, n = SAMPLE
    found = {
        "model": name,
        "training": made,
        "test": scores(lens, limit),
        "sample": {"data": data, "passages": passages, "new_tokens": new_tokens, "n": n, "right": sample_right(lens)},
        "first_token_by_layer": first_token(traced),
    }
    (folder / "scores.json").write_text(json.dumps(found, indent=1) + "\n")


def write(name: str, folder: Path, said: dict[str, str]) -> None:
    """Write README.md from scores.json; `said` has the texts of the card that are not measured."""
    found = json.loads((folder / "scores.json").read_text())
    lines = [
        f"| {row['data']} | {row['passages'] or 'closed book'} | {row['new_tokens']} | {row['n']} "
        f"| {100 * row['em']:.1f} ({100 * row['interval'][0] + 0.0:.0f} to {100 * row['interval'][1]:.0f}) "
        f"| {100 * row['f1']:.1f} | {100 * row['ended']:.1f} |"
        for row in found["test"]
    ]
    made = found["training"]
    weights = load_file(folder / "model.safetensors")
    text = CARD.format(
        name=name,
        dtype=str(next(iter(weights.values())).dtype).removeprefix("torch."),
        parameters=sum(tensor.numel() for tensor in weights.values()),
        steps=made["step"],
        tokens=made["tokens"] / 1e6,
        minutes=made["minutes"],
        seed=made["seed"],
        table="\n".join([HEAD, *lines]),
        right=found["sample"]["right"],
        first=" ".join(f"{share:.2f}" for share in found["first_token_by_layer"]),
        **said,
    )
    (folder / "README.md").write_text(text)
