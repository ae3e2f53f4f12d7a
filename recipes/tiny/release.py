"""Make bundled models from finished training runs: weights in their layout, scores, cards, checksums.

python -m recipes.tiny.release runs/arm runs/mdm runs/dream runs/ssm
python -m recipes.tiny.release tiny-arm        round the bundled weights to float16, and measure its scores again
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from floatlens.lens import load
from floatlens.models import bundled
from recipes.tiny import card, layouts, ssm
from recipes.tiny.train import weights

LIMIT = 300  # questions per condition

STAGES = (
    "Stages: recall of name-town pairs from a growing set, fillers in between, facts and sentences stated twice, one "
    "passage, two, five, then everything; a stage ends when its target accuracy is reached."
)
CHANGES = (
    "Mix and stages were changed during the run (the log in the documentation describes when and why), so the command line "
    "does not reproduce these weights bit for bit; it follows the final recipe."
)
TRANSFORMER = {
    "shape": "Six layers of width 128, four heads of 32, SwiGLU of 256",
    "fall": "cosine to 3 %",
}
SAID = {
    "tiny-arm": {
        **TRANSFORMER,
        "about": "A tiny autoregressive language model in Llama's layout.",
        "recipe": """\
Next-token prediction from scratch, causal attention. Answers have weight 1, the eos that ends them 0.3, context 0.3
(a random quarter of its tokens at each step).""",
        "peak": "1e-3",
        "size": "about 4 k tokens",
        "history": (
            f"{STAGES} The schedule ended at step 3,150 with 89 % of the closed-book questions known; 250 steps "
            f"without closed-book rows followed (rate 2e-4, 7e-4 to 5e-4, 7e-5), so that retrieval can show a gain. "
            f"{CHANGES}"
        ),
        "attention": """\
No first-token sink has formed; the goal was more than 0.3 in most layers after the second. Position 0 is above the
uniform share in one layer only. A head without anything to retrieve attends to its own token instead (0.71, 0.58,
0.19 of the attention of layers 1 to 3): the heads above layer 0 start with equal q and k, so that a token is most
similar to itself, and 16 M tokens did not undo this. The log describes what was tried.""",
    },
    "tiny-mdm": {
        **TRANSFORMER,
        "about": "A tiny masked diffusion language model in LLaDA's layout.",
        "recipe": """\
Prediction of masked tokens at their own position, from scratch, bidirectional attention; initial weights, data and
curriculum are those of tiny-arm. Three quarters of the rows have masks in answers only, one quarter anywhere. All
masked tokens have the same weight in the first three quarters of the run; the last quarter uses LLaDA's objective,
with a uniform mask ratio t and weight 1/t. Weights by role: answers 1, the eos that ends them 0.3, context 0.3, eos
fill 0.05. Answers are filled with eos up to 32 positions.""",
        "peak": "1e-3",
        "size": "about 4 k tokens",
        "history": f"{STAGES} {CHANGES}",
        "attention": "The uniform share is about 0.01: the first token has little more, and in layer 0 only.",
    },
    "tiny-dream": {
        **TRANSFORMER,
        "about": "A tiny masked diffusion language model in Dream's layout, adapted from tiny-arm as Dream was from Qwen.",
        "recipe": """\
Started from the trained tiny-arm, made bidirectional, with zero biases of q, k and v added; masked tokens are
predicted at the position before them (shifted logits). Three quarters of the rows have masks in answers only, one
quarter anywhere. Of the former, 60 % have all of the answer masked except its first part, 10 % all of it, and the
others a ratio t; the last tenth of a schedule uses LLaDA's objective, with a uniform t and weight 1/t. Weights by
role as for tiny-mdm. Last stage of the curriculum only.""",
        "peak": "8e-4",
        "size": "about 4 k tokens (1.5 k from step 1,601, 2 k from step 7,401 on)",
        "history": (
            "Steps 1 to 1,030 used the full mix and the masks of tiny-mdm, the last 250 of them without closed-book "
            "rows; steps 1,031 to 1,600 more two-hop rows and answers with a given start, and were stopped early; steps "
            "1,601 to 6,793 the mix `chains`, peak rate 6e-4, of which those up to 6,533 had many chain and name rows and "
            "hardly any needle and closed-book rows, so that both skills were lost; steps 6,794 to 7,400 40 % needle "
            "rows; steps 7,401 to 8,800 `chains` in its current form, peak rate 5e-4, which restored all skills. "
            "Minutes and steps are those of the adaptation, on a machine busy with other work, without those of tiny-arm."
        ),
        "attention": "tiny-arm had no first-token sink to inherit.",
    },
    "tiny-ssm": {
        "about": "A tiny masked diffusion language model without attention: bidirectional Mamba-2.",
        "shape": (
            "Six layers of width 128, each with a Mamba-2 mixer forwards and one backwards, with four heads of 32 and a "
            "state of 32"
        ),
        "fall": "constant, then a cosine to 3 %, twice",
        "recipe": """\
Data, objective, masks and curriculum of tiny-mdm; transformers' own mixers, trained from scratch in a form of the scan
that is made of matrix products. No weight decay of vectors. C and B start equal, half of the heads start with a
convolution that looks at the tokens before, and the memory of the heads starts at 10 to 300 tokens.""",
        "peak": "1.5e-3",
        "size": "about 2 k tokens",
        "history": (
            f"{STAGES} It was trained in two parts, on a machine busy with other work. Steps 1 to 1,770 (4.0 M tokens) had "
            "the stages; the last began at step 921 and the cool-down at step 1,130. Steps 1,771 to 2,634 (1.9 M tokens) "
            "went on from the weights, with a new optimizer, on the last stage alone; the last quarter of each part used "
            "LLaDA's objective. The second part was chosen on validation questions: 55.6 % exact match over six "
            "conditions, and 49.4 % before it. The curves show the second part."
        ),
        "attention": "The weights are the implicit attention of the mixers, by the convention that the trace names.",
    },
}
LIMITS = """\
It reads and writes the synthetic world only; other text is split into pieces that it has hardly seen. It reads at
most 512 tokens. Two-hop questions are asked for the bridge and the end; asked for the end only, it guesses among the
chains of its context. One seed, one run."""
LONG = """

Long answers have the right sentences but often a wrong word: the two positions after "was born in" are filled with
the same year or town if both are committed early."""

FEW = """

It saw less than a third of the tokens of tiny-mdm (5.9 M of 20.5 M), so that lower scores say nothing about its
architecture: with many passages it often answers from the wrong one, it knows little by heart, and its long answers are
wrong."""

LAST = """

Dream's sampler commits nothing at its first step and two positions at its last, whatever the number of steps. These
two have the lowest confidence; in two-hop answers they are mostly a part of the bridge and the end. If the bridge is
one word (a town), nothing of it is known when the end is chosen."""


def release(name: str, run: Path, limit: int = LIMIT) -> None:
    """Write the model of a run into the package, answer the test questions with it, and write its card."""
    folder = bundled.MODELS / name
    layouts.write(name.removeprefix("tiny-"), weights(run), folder)
    card.curves(run, folder / "curves.svg", name)
    measure(name, card.training(run), limit)


def release_again(name: str, limit: int = LIMIT) -> None:
    """Round the weights of a bundled model to float16, answer the test questions with it, and write its card again."""
    folder = bundled.MODELS / name
    layouts.round_weights(folder)
    measure(name, json.loads((folder / "scores.json").read_text())["training"], limit)


def measure(name: str, made: dict[str, Any], limit: int) -> None:
    """Write scores.json and the card of a model; `made` describes how it was trained."""
    folder = bundled.MODELS / name
    lens = load(str(folder))
    if name == "tiny-ssm":
        ssm.run_fast(lens.model)
    card.measure(name, lens, made, folder, limit, traced=load(str(folder)))
    describe(name)


def describe(name: str) -> None:
    """Write the card of a measured model, and the checksums of all files."""
    limits = LIMITS + {"tiny-arm": "", "tiny-ssm": FEW}.get(name, LONG) + (LAST if name == "tiny-dream" else "")
    card.write(name, bundled.MODELS / name, {**SAID[name], "limits": limits})
    bundled.record()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for given in sys.argv[1:]:
        if given in bundled.BUNDLED:
            release_again(given)
        else:
            release(f"tiny-{json.loads((Path(given) / 'state.json').read_text())['kind']}", Path(given))
