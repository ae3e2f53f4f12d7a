"""From finished runs to bundled models: weights in their layout, scores, cards, sums.

python -m floatlens.world.release runs/arm runs/mdm runs/dream
"""

import json
import sys
from pathlib import Path

import torch

from floatlens.lens import load
from floatlens.world import bundled, card, layouts
from floatlens.world.train import weights

LIMIT = 300  # questions a condition

SAID = {
    "tiny-arm": {
        "about": "A tiny autoregressive language model, the Llama of the story, in Llama's layout.",
        "recipe": (
            "Next-token prediction from nothing, causal attention. Answers weigh 1, the eos that ends them 0.3, "
            "context 0.3 (a random quarter of its tokens at each step)."
        ),
        "peak": "1e-3",
    },
    "tiny-mdm": {
        "about": "A tiny masked diffusion language model, the LLaDA of the story, in LLaDA's layout.",
        "recipe": (
            "Masked tokens are predicted in place, from nothing, bidirectional attention; initial weights, data and "
            "curriculum are those of tiny-arm. Three quarters of the rows have masks in answers only, one quarter "
            "anywhere. All masked tokens weigh the same up to three quarters of the run; the last quarter is LLaDA's "
            "objective, mask ratio t uniform and weight 1/t. Weights by role: answers 1, the eos that ends them 0.3, "
            "context 0.3, eos fill 0.05. Answers are filled with eos up to 32 places."
        ),
        "peak": "1e-3",
    },
    "tiny-dream": {
        "about": "A tiny masked diffusion language model adapted from tiny-arm, in Dream's layout.",
        "recipe": (
            "Started from the trained tiny-arm, made bidirectional, with q, k and v biases of zero added; masked "
            "tokens are predicted by the place before them (shifted logits). Masks and weights as for tiny-mdm, on "
            "the last stage of the curriculum only."
        ),
        "peak": "7e-4",
    },
}
ATTENTION = {"tiny-arm": "", "tiny-mdm": "", "tiny-dream": ""}
LIMITS = (
    "The model reads and writes the invented world only; other text is spelt in pieces it has hardly seen. It reads "
    "at most 512 tokens. One seed, one run."
)


def release(name: str, run: Path, limit: int = LIMIT) -> None:
    """Write a run's model into the package, ask it the test questions, and write its card."""
    folder = bundled.MODELS / name
    layouts.write(name.removeprefix("tiny-"), weights(run), folder)
    lens = load(str(folder))
    table = card.scores(lens, limit)
    said = {**SAID[name], "attention": ATTENTION[name], "limits": LIMITS}
    card.write(name, run, folder, said, table, card.sample_right(lens), card.first_token(lens))
    bundled.record()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for run in map(Path, sys.argv[1:]):
        release(f"tiny-{json.loads((run / 'state.json').read_text())['kind']}", run)
