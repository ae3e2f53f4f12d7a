"""Statistics on request: drift of keys, values and states, step similarity, locality, massive activations, logit lens.

Each is compared with a closed form on a planted structure, with its definition from whole matrices, and with the model's
own hidden states and logits.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

import floatlens
from floatlens.attention.call import Call, Inputs, PositionLayout
from floatlens.attention.session import Session
from floatlens.attention.statistic import GROUPS, STATISTICS, expand
from floatlens.attention.statistics.locality import REACH
from floatlens.errors import FloatLensError
from floatlens.trace.trace import Trace
from tests.attention.test_stream_equals_exact import layout, prompts
from tests.models import checkpoints
from tests.models.test_bimamba import checkpoint as bimamba

OF_ATTENTION = ("key_change", "value_change", "step_similarity", *GROUPS["locality"])
ON_REQUEST = ("received", "cache_drift", "step_similarity", "locality", "massive", "lens_token")
LENGTH = 6


def step(session: Session, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
    session.begin()
    session.see(0, Inputs(q, k, v, 1.0, mask, False))
    return {name: layers[0] for name, layers in session.results.items() if layers}


def unpadded(length: int) -> PositionLayout:
    none = torch.zeros(1, length, dtype=torch.bool)
    return PositionLayout(None, none.long(), [["other"]], none, none)


def plane(angle: float, size: float = 1.0) -> torch.Tensor:
    """Keys (1, 1, LENGTH, 2) that all point into one direction."""
    return size * torch.tensor([math.cos(angle), math.sin(angle)]).expand(1, 1, LENGTH, 2)


@pytest.mark.parametrize("implementation", ["stream", "exact"])
def test_a_key_that_turns_by_a_known_angle_drifts_by_that_angle(implementation: Any) -> None:
    session = Session(["key_change", "value_change"], implementation=implementation)
    q = torch.ones(1, 1, LENGTH, 2)
    first = step(session, q, plane(0.2), plane(0.0))
    assert all(bool(value.isnan().all()) for value in first.values()), "the first step has none before it"
    found = step(session, q, plane(0.9), plane(0.0, 3.0))
    wanted = {"key_change": 2 * math.sin(0.35), "value_change": 2.0}
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], torch.full((1, LENGTH), value), msg=name)


@pytest.mark.parametrize("implementation", ["stream", "exact"])
def test_attention_that_moves_to_half_of_other_keys_is_half_alike(implementation: Any) -> None:
    session = Session(["step_similarity"], layout=unpadded(LENGTH), implementation=implementation)
    q = torch.zeros(1, 2, LENGTH, 4)  # attention is even over what the mask lets through
    k = torch.randn(1, 1, LENGTH, 4, generator=torch.Generator().manual_seed(0))

    def seeing(*keys: int) -> torch.Tensor:
        return torch.zeros(1, 1, LENGTH, LENGTH, dtype=torch.bool).index_fill_(3, torch.tensor(keys), True)

    assert bool(step(session, q, k, k, seeing(0, 1))["step_similarity"].isnan().all())
    for keys, wanted in (((0, 1), 1.0), ((1, 2), 0.5), ((3, 4), 0.0), ((3, 4, 5, 0), 0.5)):
        found = step(session, q, k, k, seeing(*keys))["step_similarity"]
        torch.testing.assert_close(found, torch.full((1, 2), wanted), msg=str(keys))


@pytest.mark.parametrize("implementation", ["stream", "exact"])
def test_a_band_matrix_has_the_reach_of_its_band(implementation: Any) -> None:
    T, width = 40, 4
    session = Session(["distance", "near", "near_uniform"], implementation=implementation)
    away = (torch.arange(T)[:, None] - torch.arange(T)[None]).abs()
    q, k = torch.zeros(1, 1, T, 4), torch.ones(1, 1, T, 4)
    found = step(session, q, k, k, (away <= width)[None, None])
    by_hand = [[d for d in row.tolist() if d <= width] for row in away]
    distance = np.mean([np.mean(row) for row in by_hand])
    assert found["distance"].item() == pytest.approx(distance, abs=1e-5)
    for at, reach in enumerate(REACH):
        share = np.mean([np.mean([d <= reach for d in row]) for row in by_hand])
        assert found["near"][0, 0, at].item() == pytest.approx(share, abs=1e-5)
    torch.testing.assert_close(found["near"], found["near_uniform"])  # even attention under the mask is the comparison
    assert found["near"][0, 0, REACH.index(width)].item() == pytest.approx(1.0, abs=1e-6)


def states(h_BQE: torch.Tensor, first: int = 0, memory: dict[Any, Any] | None = None) -> Call:
    """The states after layer 0 as a call."""
    h, end = h_BQE[:, None], first + h_BQE.shape[1]
    about = {"layers": (0,), "layout": unpadded(64), "length": end, "first_query": first, "starts_over": True}
    return Call(h, h, h, None, None, False, **about, memory={} if memory is None else memory)


def test_a_planted_massive_channel_is_found_at_its_position() -> None:
    h = torch.ones(1, 8, 32)
    h[0, 3, 17] = -5000.0
    ratio, channel = STATISTICS["massive_ratio"]().result(states(h)), STATISTICS["massive_channel"]().result(states(h))
    assert (ratio[0].argmax().item(), ratio[0, 3].item(), channel[0, 3].item()) == (3, 5000.0, 17.0)
    assert bool((ratio[0, [0, 1, 2, 4, 5, 6, 7]] == 1).all())
    norm = STATISTICS["hidden_norm"]().result(states(h))
    assert norm[0, 0].item() == pytest.approx(math.sqrt(32)) and norm[0, 3].item() == pytest.approx(5000, rel=1e-4)


def test_positions_in_a_cache_keep_the_numbers_of_the_step_that_computed_them() -> None:
    memory: dict[Any, Any] = {}
    first = STATISTICS["hidden_norm"]().result(states(torch.full((1, 3, 4), 2.0), memory=memory))
    then = STATISTICS["hidden_norm"]().result(states(torch.full((1, 1, 4), 5.0), first=3, memory=memory))
    assert first[0].tolist() == [4.0, 4.0, 4.0] and then[0].tolist() == [4.0, 4.0, 4.0, 10.0]


@st.composite
def situations(draw: st.DrawFn) -> dict[str, Any]:
    kv_heads = draw(st.sampled_from([1, 2]))
    return {
        "rows": draw(st.integers(1, 3)),
        "kv_heads": kv_heads,
        "heads": kv_heads * draw(st.sampled_from([1, 3])),
        "length": draw(st.integers(3, 14)),
        "causal": draw(st.booleans()),
        "window": draw(st.sampled_from([None, 3])),
        "padded": draw(st.booleans()),
        "sinks": draw(st.booleans()),
        "tile": draw(st.integers(1, 2000)),
        "layers": draw(st.integers(1, 2)),
        "seed": draw(st.integers(0, 2**31)),
    }


@settings(max_examples=40, deadline=None)
@given(situations())
def test_any_tile_size_gives_the_definition(s: dict[str, Any]) -> None:
    rows, length = s["rows"], s["length"]
    generator = torch.Generator().manual_seed(s["seed"])
    pads = torch.randint(0, length - 1, (rows,), generator=generator).tolist() if s["padded"] else [0] * rows
    place = layout(rows, length, pads, generator)
    at = torch.arange(length)
    seen = torch.ones(rows, 1, length, length, dtype=torch.bool)
    if s["causal"]:
        seen = seen & (at[None, :] <= at[:, None])
    if s["window"]:
        seen = seen & ((at[None, :] - at[:, None]).abs() < s["window"])
    seen = seen & (at[None, None, None, :] >= torch.tensor(pads)[:, None, None, None])
    names = [name for name in OF_ATTENTION if name != "mask_attention"]  # there are no tokens in a call by hand
    stream = Session(names, layout=place, tile=s["tile"])
    exact = Session(names, layout=place, implementation="exact")
    sinks = torch.randn(s["heads"], generator=generator) if s["sinks"] else None
    for number in range(3):
        for session in (stream, exact):
            session.begin()
        for layer in range(s["layers"]):
            q, k, v = (torch.randn(rows, h, length, 4, generator=generator) for h in (s["heads"], s["kv_heads"], 1))
            for session in (stream, exact):
                session.see(layer, Inputs(q, k, v, 0.5, seen, False, sinks_H=sinks))
        for name in names:
            for layer in range(s["layers"]):
                found, wanted = stream.results[name][layer], exact.results[name][layer]
                if "position" in stream.statistics[name].dims:
                    found, wanted = (torch.cat([x[row, pad:] for row, pad in enumerate(pads)]) for x in (found, wanted))
                assert number == 0 or bool(wanted.isfinite().any())
                torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-5, equal_nan=True, msg=f"{name} {number}")


MAKERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "llada": (checkpoints.llada, {}),
    "dream": (checkpoints.dream, {}),
    "llama": (lambda folder: checkpoints.native(folder, "llama"), {}),
    "gpt2": (lambda folder: checkpoints.native(folder, "gpt2"), {}),
    "sdar": (checkpoints.sdar, {}),
    "llada2": (checkpoints.llada2, {}),
    "llada2.1": (checkpoints.llada2, {"family": "llada2.1"}),
    "a2d-block": (checkpoints.a2d, {"family": "a2d-block", "block_length": 4}),
    "mamba": (lambda folder: bimamba(folder, "mamba"), {}),
    "mamba2": (lambda folder: bimamba(folder, "mamba2"), {}),
}


@pytest.fixture(scope="module", params=[*MAKERS])
def lens(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> floatlens.Lens:
    make, options = MAKERS[request.param]
    return floatlens.load(str(make(tmp_path_factory.mktemp("model"))), dtype="float32", **options)


def same(found: Trace, wanted: Trace, names: Any, atol: float = 2e-5) -> None:
    for name in names:
        a, b = found.data[name], wanted.data[name]
        scale = max(1.0, float(np.nanmax(np.abs(b.values), initial=0.0)))
        np.testing.assert_allclose(a.values, b.values, atol=atol * scale, rtol=0, err_msg=name)


def test_a_trace_equals_the_definition(lens: floatlens.Lens) -> None:
    names = ["received", *OF_ATTENTION]
    found = lens.traces(prompts(), max_new_tokens=6, record=names)
    wanted = lens.traces(prompts(), max_new_tokens=6, record=names, implementation="exact")
    for a, b in zip(found, wanted, strict=True):
        same(a, b, OF_ATTENTION)
    computed_again = lens.family.kind == "mdm"
    for name in ("key_change", "value_change", "step_similarity"):
        assert bool(np.isfinite(found[0].data[name]).any()) == computed_again, name


def test_a_padded_batch_gives_what_its_rows_give_alone(lens: floatlens.Lens) -> None:
    together = lens.traces(prompts(), max_new_tokens=6, record=ON_REQUEST)
    for prompt, trace in zip(prompts(), together, strict=True):
        alone = lens.trace(prompt, max_new_tokens=6, record=ON_REQUEST)
        np.testing.assert_array_equal(trace.final_tokens, alone.final_tokens)
        same(trace, alone, expand(ON_REQUEST), atol=1e-4)


@pytest.mark.parametrize(
    "lens", ["llada", "dream", "llama", "gpt2"], indirect=True
)  # a block model has a mask of its own: below
def test_states_norms_and_the_lens_are_those_of_the_model_itself(lens: floatlens.Lens) -> None:
    trace = lens.trace(prompts()[0], max_new_tokens=5, record=ON_REQUEST)
    model = lens.model
    before: Any = None
    for number in trace.data["step"].values:
        row = trace.data.sel(step=number)
        tokens = row["tokens"].values[row["tokens"].values >= 0]
        with torch.no_grad():
            out = model(torch.tensor(tokens)[None], output_hidden_states=True)
        base = model.base_model
        final_norm = getattr(base, "norm", None) or base.ln_f
        hidden = out.hidden_states[1:-1]  # the last one of the tuple is normed already
        for layer, state in enumerate(hidden):
            size = state[0].abs()
            np.testing.assert_allclose(
                row["hidden_norm"][layer, : len(tokens)], size.norm(dim=-1), rtol=1e-4, err_msg=f"step {number}"
            )
            ratio = size.amax(-1) / size.median(-1).values
            np.testing.assert_allclose(row["massive_ratio"][layer, : len(tokens)], ratio, rtol=1e-3)
            written = model.get_output_embeddings()(final_norm(state))[0].argmax(-1).numpy()
            said = row["lens_token"][layer].values
            there = np.flatnonzero(np.isfinite(said))
            assert len(there), "no row writes"
            np.testing.assert_array_equal(said[there], written[there])
        last = row["lens_token"][-1].values
        there = np.flatnonzero(np.isfinite(last))
        np.testing.assert_array_equal(last[there], out.logits[0].argmax(-1).numpy()[there])
        if before is not None and lens.family.kind == "mdm":
            for layer, (old, new) in enumerate(zip(before, hidden, strict=True)):
                change = (new - old)[0].norm(dim=-1) / old[0].norm(dim=-1)
                np.testing.assert_allclose(row["hidden_change"][layer], change, atol=1e-4)
        before = hidden


@pytest.mark.parametrize("lens", ["llada", "llama"], indirect=True)
def test_all_layers_of_a_step_go_through_the_output_embeddings_at_once(lens: floatlens.Lens) -> None:
    shapes: list[tuple[int, ...]] = []
    handle = lens.model.get_output_embeddings().register_forward_hook(lambda _, args, __: shapes.append(args[0].shape))
    try:
        trace = lens.trace(prompts()[0], max_new_tokens=3, record=["received", "lens_token"])
    finally:
        handle.remove()
    steps, layers = trace.data.sizes["step"], trace.data.sizes["layer"]
    assert len(shapes) == 2 * steps, "one call of the model itself and one of the lens for each step"
    assert all(rows % layers == 0 for _, rows, _ in shapes[1::2])


@pytest.mark.parametrize("lens", ["sdar", "llada2", "llada2.1", "a2d-block"], indirect=True)
def test_states_of_a_block_model_are_those_of_a_pass_under_its_mask(lens: floatlens.Lens) -> None:
    """Each step is computed again without a cache, over the whole text, under the mask of its blocks."""
    assert lens.block_length is not None
    trace = lens.trace(prompts()[0], max_new_tokens=8, record=ON_REQUEST)
    offset = trace.prompt_length if lens.family.name == "a2d-block" else 0  # where a block begins
    before: dict[int, Any] = {}
    for number in trace.data["step"].values:
        row = trace.data.sel(step=number)
        tokens = row["tokens"].values[np.isfinite(row["received"].values[0, 0])]
        blocks = (torch.arange(len(tokens)) - offset) // lens.block_length
        mask = (blocks[:, None] >= blocks[None])[None, None]
        with torch.no_grad():
            ids = torch.tensor(np.where(tokens < 0, lens.mask_id, tokens))[None]
            out = lens.model(ids, attention_mask=mask, output_hidden_states=True, use_cache=False)
        writing = np.flatnonzero(np.isfinite(row["lens_token"].values[-1]))
        assert len(writing) and (blocks[writing] == blocks[-1]).all()
        np.testing.assert_array_equal(row["lens_token"].values[-1][writing], out.logits[0].argmax(-1)[writing])
        for layer, state in enumerate(out.hidden_states[1:-1]):  # the last one of the tuple is normed already
            size = state[0].abs()
            np.testing.assert_allclose(row["hidden_norm"][layer, : len(tokens)], size.norm(dim=-1), rtol=1e-3)
            ratio = size.amax(-1) / size.median(-1).values
            np.testing.assert_allclose(row["massive_ratio"][layer, : len(tokens)], ratio, rtol=1e-2)
            compared = np.flatnonzero(np.isfinite(row["hidden_change"].values[layer]))
            if len(compared):
                old = before[layer][0, compared]
                change = (state[0, compared] - old).norm(dim=-1) / old.norm(dim=-1)
                np.testing.assert_allclose(row["hidden_change"][layer, compared], change, atol=2e-4)
            before[layer] = state


def test_diffusion_gemma_gives_the_numbers_of_attention_and_refuses_those_of_states(tmp_path: Path) -> None:
    """Encoder and decoder have a list of layers each; there are no masks that could draw attention."""
    lens = floatlens.load(str(checkpoints.diffusion_gemma(tmp_path)), dtype="float32")
    names = ["received", *OF_ATTENTION]
    found = lens.trace(prompts()[0], max_new_tokens=8, record=names)
    same(found, lens.trace(prompts()[0], max_new_tokens=8, record=names, implementation="exact"), OF_ATTENTION)
    for name in OF_ATTENTION:
        assert bool(np.isfinite(found.data[name]).any()) == (name != "mask_attention"), name
    for name in ("massive", "lens_token", "cache_drift"):
        with pytest.raises(
            FloatLensError, match="2 lists of 3 layers; .* leave out massive, lens_token and hidden_change"
        ):
            lens.trace(prompts()[0], max_new_tokens=8, record=[name])


def test_a_block_model_compares_its_block_with_itself(tmp_path: Path) -> None:
    lens = floatlens.load(str(checkpoints.sdar(tmp_path)), dtype="float32")
    trace = lens.trace(prompts()[0], max_new_tokens=8, record=ON_REQUEST)
    compared = np.isfinite(trace.data["key_change"].values).any(1)
    block = lens.block_length
    assert block is not None and compared.any()
    for number, row in enumerate(compared):
        places = np.flatnonzero(row)
        if len(places):
            assert places[-1] // block == places[0] // block, f"step {number} compares positions of two blocks"
    assert np.isfinite(trace.data["mask_attention"].values).any()


def test_masks_near_and_far_add_up_to_the_attention_on_masks(tmp_path: Path) -> None:
    lens = floatlens.load(str(checkpoints.llada(tmp_path)), dtype="float32")
    trace = lens.trace(prompts()[0], max_new_tokens=6, record=["received", "mask_attention"], matrices=["attention"])
    for number in trace.data["step"].values:
        row = trace.data.sel(step=number)
        masks = np.flatnonzero(row["tokens"].values == lens.mask_id)
        weights = row["attention"].values[:, :, masks][..., masks]
        away = np.abs(masks[:, None] - masks[None])
        for at, reach in enumerate(REACH):
            wanted = np.where(away > reach, weights, 0.0).sum(-1).mean(-1)
            np.testing.assert_allclose(row["mask_attention"].values[..., at], wanted, atol=1e-6)


def test_steps_that_are_not_kept_are_still_compared_with(tmp_path: Path) -> None:
    lens = floatlens.load(str(checkpoints.llada(tmp_path)), dtype="float32")
    whole = lens.trace(prompts()[0], max_new_tokens=6, record=ON_REQUEST)
    some = lens.trace(prompts()[0], max_new_tokens=6, record=ON_REQUEST, record_steps=[3])
    for name in ("key_change", "hidden_change", "step_similarity"):
        np.testing.assert_allclose(some.data[name].sel(step=3), whole.data[name].sel(step=3), atol=1e-6)


def test_token_ids_and_channels_survive_storage_in_float16(tmp_path: Path) -> None:
    lens = floatlens.load(str(checkpoints.llada(tmp_path / "model")), dtype="float32")
    trace = lens.trace(prompts()[0], max_new_tokens=4, record=["received", "massive", "lens_token"])
    trace.data["massive_channel"] += 4095
    stored = Trace.open(trace.save(tmp_path / "trace", dtype="float16"))
    assert '"data_type": "float16"' in (tmp_path / "trace" / "received" / "zarr.json").read_text()
    for name in ("massive_channel", "lens_token"):
        np.testing.assert_array_equal(stored.data[name], trace.data[name])


def test_a_model_whose_head_is_more_than_a_norm_has_no_logit_lens(tmp_path: Path) -> None:
    lens = floatlens.load(str(checkpoints.native(tmp_path, "bert")), dtype="float32")
    with pytest.raises(FloatLensError, match="logit lens does not apply"):
        lens.trace(prompts()[0], max_new_tokens=2, record=["lens_token"])
    assert np.isfinite(lens.trace(prompts()[0], max_new_tokens=2, record=["massive"]).data["hidden_norm"]).all()


def test_nothing_is_left_on_the_model_after_a_trace(tmp_path: Path) -> None:
    lens = floatlens.load(str(checkpoints.llada(tmp_path)), dtype="float32")
    lens.trace(prompts()[0], max_new_tokens=2, record=ON_REQUEST)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in lens.model.modules())
