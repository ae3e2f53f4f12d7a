"""Nemotron-Labs-Diffusion: logits, states and attention of one set of weights in both modes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import floatlens as fl
from floatlens.attention.hook import observing
from floatlens.attention.session import Session
from floatlens.decode.network import Passes
from floatlens.decode.sampler import settings_for
from tests import golden_modes
from tests.models import checkpoints

pytestmark = pytest.mark.golden
CASES = [
    (name, int(key[4:].split("_")[0]))
    for name in golden_modes.NAMES
    for key in golden_modes.forward(name)
    if key.startswith("case") and key.endswith("_input_ids")
]


def states(lens: fl.Lens, ids: Any, causal: bool) -> tuple[Any, dict[str, np.ndarray]]:
    """A pass over a whole sequence with one of the two patterns, and its queries, keys and attention by layer."""
    ids_BT = torch.tensor(np.asarray(ids), dtype=torch.long)[None]
    mask = torch.ones(ids_BT.shape[1], ids_BT.shape[1], dtype=torch.bool)
    options = {"attention_mask": (mask.tril() if causal else mask)[None, None], "use_cache": False}
    session = Session(["attention", "queries", "keys"])
    with torch.no_grad():
        plain = lens.model(ids_BT, **options, output_hidden_states=True)
        with observing(lens.model, session):
            lens.model(ids_BT, **options)
    return plain, {
        name: np.stack([layers[n][0].numpy() for n in sorted(layers)]) for name, layers in session.results.items()
    }


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_pass_gives_the_published_numbers_in_both_modes(name: str, number: int) -> None:
    start = f"case{number}_"
    case = {
        key.removeprefix(start): value for key, value in golden_modes.forward(name).items() if key.startswith(start)
    }
    plain, found = states(golden_modes.lens(name), case["input_ids"], bool(case["causal"]))
    np.testing.assert_allclose(plain.logits[0].numpy(), case["logits"], atol=3e-5, rtol=0)
    np.testing.assert_allclose(torch.cat(plain.hidden_states).numpy(), case["hidden_states"], atol=3e-5, rtol=0)
    for key, expected in (("queries", "query_states"), ("keys", "key_states"), ("attention", "attention_heads")):
        np.testing.assert_allclose(found[key], case[expected], atol=1e-5, err_msg=key)
    if case["causal"]:
        arm = golden_modes.lens(name, "nemotron-arm")
        with torch.no_grad():
            logits = arm.model(torch.tensor(case["input_ids"], dtype=torch.long)[None]).logits[0]
        np.testing.assert_allclose(logits.numpy(), case["logits"], atol=3e-5, rtol=0)


@pytest.mark.parametrize("causal", [True, False], ids=["causal context", "bidirectional context"])
@pytest.mark.parametrize("name", golden_modes.NAMES)
def test_a_block_on_its_cache_gives_the_published_logits(name: str, causal: bool) -> None:
    arrays, lens = golden_modes.forward(name), golden_modes.lens(name)
    prefix, block = (torch.tensor(arrays[f"cached_{part}_ids"], dtype=torch.long)[None] for part in ("prefix", "block"))
    length = block.shape[1]
    given = {"max_new_tokens": length, "block_length": length, "causal_context": causal}
    settings = settings_for("nemotron", **given)
    passes = Passes(lens.model, lens.family, prefix, None, settings, special=lens.special_tokens)
    first, logits = passes(torch.cat([prefix, block], 1))
    expected = arrays["cached_block_logits" if causal else "cached_bidirectional_prefix_block_logits"]
    assert first == prefix.shape[1]
    np.testing.assert_allclose(logits[0].numpy(), expected, atol=3e-5, rtol=0)


@pytest.mark.parametrize("name", golden_modes.NAMES)
def test_a_trace_has_the_published_attention_of_every_step(name: str) -> None:
    arrays, lens = golden_modes.attention(name), golden_modes.lens(name)
    settings = json.loads(str(arrays["settings_json"]))
    tokens = settings.pop("max_new_tokens")
    block = settings.pop("block_length")
    prompt = golden_modes.SPECIAL["prompts"][int(arrays["prompt_index"])]
    trace = lens.trace(prompt, max_new_tokens=tokens, block_length=block, sampler=settings, matrices=["attention"])
    denoising = [index for index, (*_, kind) in enumerate(arrays["step_range"]) if kind == 1]
    assert trace.data.sizes["step"] == len(denoising)
    for step, index in enumerate(denoising):
        start, end, _ = arrays["step_range"][index]
        ids = trace.data["tokens"].sel(step=step).values[:end]
        np.testing.assert_array_equal(ids, arrays["step_input_ids"][index][:end])
        expected_LHBT = arrays["step_attention"][index][:, :, : end - start, :end]
        found = trace.data["attention"].sel(step=step).values[:, :, start:end, :end]
        np.testing.assert_allclose(found, expected_LHBT, atol=1e-5)
        received = trace.data["received"].sel(step=step).values[..., :end]
        np.testing.assert_allclose(received, expected_LHBT.mean(2), atol=1e-5)
    final = arrays["final_ids"]
    np.testing.assert_array_equal(trace.final_tokens[: len(final)], final)
    for causal, expected in ((True, "attention_heads"), (False, "attention_heads_bidirectional")):
        _, found_whole = states(lens, final, causal)
        np.testing.assert_allclose(found_whole["attention"], arrays[expected], atol=1e-5)


REFUSED = {
    "dlm_paradigm": ("sbd_block_diff", "'dlm_paradigm' is 'sbd_block_diff'"),
    "attention_bias": (True, "'attention_bias' is True"),
    "mlp_bias": (True, "'mlp_bias' is True"),
    "rope_parameters": ({"rope_type": "yarn", "short_factor": [1.0]}, "'rope_parameters' has 'short_factor'"),
    "block_size": (0, "'block_size' is 0"),
}


@pytest.mark.parametrize("field", REFUSED)
def test_a_config_that_the_native_class_does_not_support_is_refused_by_its_field(field: str, tmp_path: Path) -> None:
    value, reason = REFUSED[field]
    folder = tmp_path / "model"
    folder.mkdir()
    for file in (golden_modes.MODES / "models" / golden_modes.NAMES[0]).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    checkpoints.edit_config(folder, **{field: value})
    with pytest.raises(fl.FloatLensError, match=reason.replace("[", r"\[")):
        fl.load(str(folder))
