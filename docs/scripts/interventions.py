"""Draw docs/images/interventions/*.png: a small attention matrix before and after each intervention.

    python docs/scripts/interventions.py

The scores are random with two anchors; the interventions of the package are applied to them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.colors import PowerNorm

from floatlens.attention.hook import Inputs
from floatlens.attention.prompt_batch import PromptBatch
from floatlens.data.prompt import Prompt, Region
from floatlens.findings import style
from floatlens.interventions.ablate_heads import AblateHeads
from floatlens.interventions.attention_call import AttentionCall, DecodingState
from floatlens.interventions.intervention import parse_intervention
from floatlens.models.family import FAMILIES

T = 12
WORDS = ["<bos>", "Who", "wrote", "it", "?", "\\n", "Ada", "wrote", "it", ".", "<mask>", "<mask>"]
SPECS = {
    "mask-anchors": "mask-anchors(rule=top(2))",
    "mask-positions": "mask-positions(region=doc1)",
    "pin-anchors": "pin-anchors(step=0, rule=top(1))",
    "move-anchors": "move-anchors(by=2, rule=top(1))",
    "scale-attention": "scale-attention(factor=6, region=doc1)",
    "soft-cap": "soft-cap(cap=1)",
    "ablate-heads": "ablate-heads(heads=[0.0])",
    "add-sink": "add-sink(score=2.5)",
}


def scores(first: int, second: int, seed: int = 4) -> torch.Tensor:
    """Return random scores (Q, T) with two columns that are larger than the others."""
    made = torch.randn(T, T, generator=torch.Generator().manual_seed(seed)) * 0.6
    made += 1.2 * torch.eye(T)
    made[:, first] += 3.0
    made[:, second] += 2.0
    return made


def inputs_of(scores_QT: torch.Tensor) -> Inputs:
    """Return an attention call with these scores; its keys are unit vectors."""
    return Inputs(scores_QT[None, None], torch.eye(T)[None, None], torch.eye(T)[None, None], 1.0, None, False)


def weights(inputs: Inputs) -> np.ndarray[Any, Any]:
    """Return attention weights (Q, T), with a last column for a sink if there is one."""
    made = inputs.q_BHQD[0, 0] @ inputs.k_BKTD[0, 0].T
    if inputs.softcap is not None:
        made = inputs.softcap * torch.tanh(made / inputs.softcap)
    if inputs.mask is not None:
        made = made + inputs.mask[0, 0]
    if inputs.sinks_H is not None:
        made = torch.cat([made, inputs.sinks_H.expand(T, 1)], -1)
    return made.softmax(-1).numpy()


def before_and_after(spec: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]:
    """Return the weights without and with an intervention; None if it leaves the weights as they are."""
    ids = list(range(T - 2))
    batch = PromptBatch.of([Prompt("", ids, [Region("query", 1, 5), Region("doc1", 6, 10)])], 0, torch.device("cpu"))
    state = DecodingState(batch, 2, FAMILIES["llada"], lambda ids: [WORDS[i] for i in ids], torch.arange(T)[None])
    intervention = parse_intervention(spec)
    steps = [scores(0, 5), scores(6, 4)] if spec.startswith("pin") else [scores(0, 5)]
    if isinstance(intervention, AblateHeads):
        return weights(inputs_of(steps[0])), None
    for number, made in enumerate(steps):
        state.step = number
        state.begin_pass(state.tokens_BT)
        attention = AttentionCall(0, inputs_of(made), state)
        intervention.change(attention)
    return weights(inputs_of(steps[-1])), weights(attention.used())


def draw(name: str, spec: str, folder: Path) -> None:
    """Draw both matrices of an intervention."""
    before, after = before_and_after(spec)
    norm = PowerNorm(0.5, 0, float(before.max()))
    with style.sheet():
        figure = style.new_figure(2.05, width=4.3)
        left, right = figure.subplots(1, 2)
        for axes, matrix, title in ((left, before, "before"), (right, after, "after")):
            axes.set_title(title)
            if matrix is None:
                axes.set_axis_off()
                axes.text(
                    0.5, 0.5, "same weights;\nthe output of\nthe head is zero", ha="center", va="center", fontsize=8
                )
                continue
            axes.imshow(matrix, cmap=style.SEQUENTIAL, norm=norm, interpolation="nearest")
            labels = [*WORDS, "sink"][: matrix.shape[1]]
            axes.set_xticks(range(len(labels)), labels, rotation=90, fontsize=5.5)
            axes.set_yticks(range(T), WORDS, fontsize=5.5)
            axes.tick_params(length=0)
        left.set_ylabel("query")
        figure.supxlabel("key", fontsize=7)
        figure.suptitle(spec, fontsize=8, family="monospace")
        figure.savefig(folder / f"{name}.png", dpi=150, metadata={"Software": None})


def main() -> None:
    folder = Path(__file__).parents[1] / "images" / "interventions"
    folder.mkdir(parents=True, exist_ok=True)
    for name, spec in SPECS.items():
        draw(name, spec, folder)


if __name__ == "__main__":
    main()
