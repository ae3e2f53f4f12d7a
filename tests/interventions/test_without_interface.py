"""Interventions on models whose attention does not use transformers' interface."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch

from tests.models.every_class import IDS, build, lens_of

# falcon calls scaled_dot_product_attention; the others a softmax between two products
MODELS = [
    ("causal", "falcon", "sdpa"),
    ("causal", "falcon", "eager"),
    ("causal", "gptj", "eager"),
    ("causal", "xglm", "eager"),
    ("masked", "mpnet", "eager"),
    ("masked", "deberta-v2", "eager"),
]


def certainty(model: Any, ids: list[int], visible: list[bool], row: int) -> float:
    """Probability of the most likely token of a row, when the model's own attention mask hides keys."""
    options: dict[str, Any] = {"attention_mask": torch.tensor([visible]).long()}
    accepted = inspect.signature(model.forward).parameters
    if "past_key_values" in accepted and "position_ids" in accepted:  # else the mask would move the positions
        options["position_ids"] = torch.arange(len(ids))[None]
    with torch.no_grad():
        return float(model(torch.tensor([ids]), **options).logits[0, row].softmax(-1).max())


@pytest.mark.parametrize(("kind", "model_type", "implementation"), MODELS)
def test_hiding_a_position_does_what_the_models_own_mask_does(kind: str, model_type: str, implementation: str) -> None:
    model, place = build(kind, model_type, implementation), 3
    lens = lens_of(kind, model)
    with lens.intervene(f"mask-positions({place})"):
        changed = lens.trace(IDS, max_new_tokens=1, record=("received",))
    ids = [int(i) for i in changed.data["tokens"].isel(step=0).values if i >= 0]
    row = len(IDS) - (kind == "causal")
    wanted = certainty(model, ids, [j != place for j in range(len(ids))], row)
    plain = certainty(model, ids, [True] * len(ids), row)
    found = float(changed.data["confidence"].isel(step=0).values[len(IDS)])
    assert abs(wanted - plain) > 1e-5
    assert abs(found - wanted) < 1e-7
    assert float(np.abs(changed.data["received"].isel(step=0, position=place)).max()) == 0.0


def test_a_head_without_output_is_a_head_whose_values_are_zero() -> None:
    """GPT-J keeps the values of a head together in `v_proj`: without them, the head gives nothing."""
    model = build("causal", "gptj")
    lens = lens_of("causal", model)
    with lens.intervene("ablate-heads([0.1])"):
        changed = lens.trace(IDS, max_new_tokens=1, record=("received",))
    size = model.config.n_embd // model.config.n_head
    with torch.no_grad():
        model.transformer.h[0].attn.v_proj.weight[size : 2 * size] = 0.0
    wanted = lens.trace(IDS, max_new_tokens=1, record=("received",))
    np.testing.assert_allclose(changed.data["confidence"], wanted.data["confidence"], atol=1e-6)
    np.testing.assert_allclose(changed.data["received"], wanted.data["received"], atol=1e-6)
