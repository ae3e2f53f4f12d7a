"""Runs on reference prompts: retrieval scores and mean outputs of heads.

Both come from runs without interventions and are cached with the lens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from floatlens.attention.attention import changing
from floatlens.attention.inputs import Inputs
from floatlens.data.prompt import Prompt
from floatlens.data.read import read
from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    from floatlens.lens import Lens, PromptLike

QUESTIONS, NEW_TOKENS, BATCH = 16, 16, 8
DATA = "world:fresh"
Array = np.ndarray[Any, Any]


def reference_prompts(lens: Lens, reference: Sequence[PromptLike] | None = None) -> list[Prompt]:
    """The given prompts, or by default questions of the bundled world with their passages."""
    if reference is not None:
        made = lens._prompts(reference)
        if not made:
            raise FloatLensError("reference has no prompts; pass at least one, or leave it out")
        return list(made)
    if lens.tokenizer is None:
        raise FloatLensError(
            f"{lens.name} has no tokenizer; pass prompts of token ids with lens.intervene(..., reference=)"
        )
    samples = read(DATA, split="validation", limit=QUESTIONS)
    return [lens.prompt(s.question, s.passages, answers=s.answers) for s in samples]


def head_scores(lens: Lens, reference: Sequence[PromptLike] | None = None) -> dict[str, Array]:
    """Retrieval, mass and query scores (layer, head) of each head: mean over the prompts that have evidence."""
    return _kept(lens, "scores", reference, _scores)


def _scores(lens: Lens, prompts: Sequence[Prompt]) -> dict[str, Array]:
    sums: dict[str, list[Array]] = {"evidence_hit": [], "evidence_mass": [], "query_mass": []}
    for start in range(0, len(prompts), BATCH):
        part = prompts[start : start + BATCH]
        for trace in lens.traces(part, record=("evidence", "query_mass"), max_new_tokens=NEW_TOKENS):
            data = trace.data
            if "evidence_count" in data and (count := data["evidence_count"].values).sum():
                weight = np.where(count > 0, count, 0)[:, None, None] / count.sum()
                for name in ("evidence_hit", "evidence_mass"):
                    values = data[name].transpose("step", "layer", "head").values
                    sums[name].append(np.where(weight > 0, values * weight, 0.0).sum(0))
            if "query_mass" in data:
                sums["query_mass"].append(data["query_mass"].isel(step=0).transpose("layer", "head").values)
    if not sums["evidence_hit"]:
        raise FloatLensError(
            f"{lens.name} copied no answer token from a gold document of the {len(prompts)} reference prompts, so its "
            f"heads cannot be ranked; pass prompts that it answers with lens.intervene(..., reference=prompts)"
        )
    hit, mass = (np.mean(sums[name], axis=0) for name in ("evidence_hit", "evidence_mass"))
    query = np.mean(sums["query_mass"], axis=0) if sums["query_mass"] else np.zeros_like(hit)
    return {"retrieval": hit + 1e-6 * mass, "mass": mass, "query": query}


def head_means(lens: Lens, reference: Sequence[PromptLike] | None = None) -> dict[int, torch.Tensor]:
    """Mean output (H, D) of each layer's heads over all real positions and steps."""
    return _kept(lens, "means", reference, _means)


def _means(lens: Lens, prompts: Sequence[Prompt]) -> dict[int, torch.Tensor]:
    sums: dict[int, torch.Tensor] = {}
    counts: dict[int, int] = {}

    def watch(layer: int, inputs: Inputs, base: Callable[[], Any]) -> tuple[Any, Inputs]:
        made = base()
        output_RQHD = made[0].float()
        sums[layer] = sums.get(layer, torch.zeros(())) + output_RQHD.sum((0, 1))
        counts[layer] = counts.get(layer, 0) + output_RQHD.shape[0] * output_RQHD.shape[1]
        return made, inputs

    for prompt in prompts:  # one by one, so that there is no padding
        with changing(lens.model, watch):
            lens.generate([prompt], max_new_tokens=NEW_TOKENS)
    return {layer: sums[layer] / counts[layer] for layer in sums}


def _kept(lens: Lens, what: str, reference: Sequence[PromptLike] | None, measure: Callable[..., Any]) -> Any:
    from floatlens.interventions.run import without

    prompts = reference_prompts(lens, reference)
    kept = lens.__dict__.setdefault("_reference", {})
    key = (what, tuple(tuple(prompt.ids) for prompt in prompts))
    if key not in kept:
        with without(lens):
            kept[key] = measure(lens, prompts)
    return kept[key]
