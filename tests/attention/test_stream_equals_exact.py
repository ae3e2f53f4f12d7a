"""The tiles give the same results as the full matrix, for every kind of attention and any tile size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

import floatlens
from floatlens.attention.call import Inputs, PositionLayout
from floatlens.attention.session import Session
from floatlens.attention.statistic import DEFAULT, MATRICES
from floatlens.data.prompt import Prompt, Region
from tests.models import checkpoints

NAMES = [*DEFAULT, *MATRICES]


def close(found: torch.Tensor, wanted: torch.Tensor, name: str) -> None:
    """Equal to 1e-5; scores and norms are not bounded by 1, so theirs is relative to their size."""
    scale = max(1.0, float(wanted.nan_to_num().abs().max())) if name.startswith(("qk", "value")) else 1.0
    if name not in ("evidence", "query_mass", "evidence_mass", "evidence_hit", "confidence", "received_writing"):
        assert bool(wanted.isfinite().any()), f"{name} is nowhere a number"
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), atol=1e-5 * scale, rtol=0, err_msg=name)


def layout(rows: int, length: int, pads: list[int], generator: torch.Generator) -> PositionLayout:
    region = torch.randint(0, 4, (rows, length), generator=generator)
    real = torch.arange(length)[None] >= torch.tensor(pads)[:, None]
    gold = (region == 2) & real
    writes = (torch.arange(length)[None] >= length - 3) & real
    names = [["other", "query", "doc1", "answer"]] * rows
    return PositionLayout(real if any(pads) else None, torch.where(real, region, -1), names, gold, writes)


@st.composite
def situations(draw: st.DrawFn) -> dict[str, Any]:
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    return {
        "rows": draw(st.integers(1, 3)),
        "kv_heads": kv_heads,
        "heads": kv_heads * draw(st.sampled_from([1, 2, 4])),
        "length": draw(st.integers(3, 24)),
        "causal": draw(st.booleans()),
        "window": draw(st.sampled_from([None, 2, 5])),
        "padded": draw(st.booleans()),
        "additive": draw(st.booleans()),
        "softcap": draw(st.sampled_from([None, 2.0])),
        "sinks": draw(st.booleans()),
        "tile": draw(st.integers(1, 4000)),
        "seed": draw(st.integers(0, 2**31)),
        "cached": draw(st.integers(0, 4)),
        "layers": draw(st.integers(1, 3)),
        "room": draw(st.sampled_from([0, 2000, 1 << 26])),
    }


def see(
    session: Session,
    s: dict[str, Any],
    tensors: dict[str, torch.Tensor],
    length: int,
    queries: int,
    pads: list[int],
    *,
    compute: bool = False,
) -> list[tuple[torch.Tensor | None, torch.Tensor]]:
    """One call per layer: the last `queries` of the first `length` positions, with the mask that a model would pass.

    Returns the outputs, where the session computed them, and which key each query may see (B, Q, T).
    """
    q = torch.arange(length - queries, length)[:, None]
    k = torch.arange(length)[None, :]
    visible = torch.ones(queries, length, dtype=torch.bool)
    if s["causal"] or s["cached"]:
        visible = visible & (k <= q)
    if s["window"]:
        visible = visible & (q - k < s["window"]) & (k - q < s["window"])
    seen = visible[None].expand(s["rows"], -1, -1)
    if s["padded"]:
        seen = seen & (k[None] >= torch.tensor(pads)[:, None, None])
    # A fully masked row is one of padding: kernels give it anything, and nothing of it is counted.
    plain = not (s["window"] or s["padded"])
    by_flag = plain and s["causal"] and not s["additive"] and queries == length
    mask = None if plain and (by_flag or bool(seen.all())) else seen[:, None]
    if mask is not None and s["additive"]:
        mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    session.begin()
    outputs = []
    for layer in range(s["layers"]):
        q = tensors["q"][layer, :, :, length - queries : length]
        k = tensors["k"][layer, :, :, :length]
        sinks = tensors["sinks"] if s["sinks"] else None
        inputs = Inputs(q, k, tensors["v"][layer, :, :, :length], 0.4, mask, by_flag, s["softcap"], sinks_H=sinks)
        output = session.see(layer, inputs, compute=compute)
        outputs.append((output, seen))
    return outputs


def make_tensors(s: dict[str, Any], total: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Random queries, keys and values of all layers; a zero query and a zero key have no angle."""
    shape = {"q": s["heads"], "k": s["kv_heads"], "v": s["kv_heads"]}
    tensors = {
        name: torch.randn(s["layers"], s["rows"], heads, total, 4, generator=generator) * 2
        for name, heads in shape.items()
    }
    tensors["q"][0, 0, 0, -1] = 0.0
    tensors["k"][0, 0, 0, 0] = 0.0
    return tensors | {"sinks": torch.randn(s["heads"], generator=generator)}


def make_pads(s: dict[str, Any], generator: torch.Generator) -> list[int]:
    if not s["padded"]:
        return [0] * s["rows"]
    return [int(p) for p in torch.randint(0, s["length"] - 1, (s["rows"],), generator=generator)]


def compare(found_by: Session, exact: Session, layers: int, queries: int, pads: list[int]) -> None:
    """Every statistic of every layer, without the positions and queries of padding."""
    for layer, name in [(number, name) for number in range(layers) for name in found_by.plan(number).names]:
        found, wanted = found_by.results[name][layer], exact.results[name][layer]
        if name == "evidence":  # which of two equal weights is the largest is left open
            found, wanted = found[..., 0], wanted[..., 0]
        dims = found_by.statistics[name].dims
        for row, pad in enumerate(pads):
            cut = slice(pad, None) if "position" in dims else slice(None)
            a, b = found[row][..., cut], wanted[row][..., cut]
            if "query" in dims and queries > 1:
                axis = -1 if name == "evidence" else dims.index("query")
                a, b = (x.movedim(axis, 0)[pad:] for x in (a, b))
            close(a, b, name)


@settings(max_examples=150, deadline=None)
@given(situations())
def test_any_tile_size_gives_the_exact_statistics(s: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(s["seed"])
    total = s["length"] + s["cached"]
    pads = make_pads(s, generator)
    tensors = make_tensors(s, total, generator)
    place = layout(s["rows"], total, pads, generator)
    # Whole matrices are taken of one layer only, so that the others are looked at together.
    stream = Session(NAMES, layout=place, tile=s["tile"], room=s["room"], matrix_layers=[0])
    exact = Session(NAMES, layout=place, implementation="exact", matrix_layers=[0])
    for length in range(s["length"], total + 1):
        queries = length if length == s["length"] else 1
        for session in (stream, exact):
            see(session, s, tensors, length, queries, pads)
        compare(stream, exact, s["layers"], queries, pads)


def prompts() -> list[Prompt]:
    regions = [Region("query", 1, 4), Region("doc1", 5, 9)]
    first = Prompt("", [1, 5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45], regions, gold=[0])
    return [first, Prompt("", [1, 8, 3, 40, 22, 11, 9, 30, 4], regions, gold=[0])]


MAKERS = {name: lambda folder, name=name: checkpoints.native(folder, name) for name in checkpoints.NATIVE}
MAKERS |= {
    "llada": checkpoints.llada,
    "dream": checkpoints.dream,
    "a2d": checkpoints.a2d,
    "llada-moe": checkpoints.llada_moe,
}


@pytest.fixture(scope="module", params=[*MAKERS])
def lens(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> floatlens.Lens:
    folder = tmp_path_factory.mktemp("model") / request.param
    return floatlens.load(str(MAKERS[request.param](folder)), dtype="float32")


def test_a_trace_of_every_architecture_equals_the_exact_one(lens: floatlens.Lens) -> None:
    options = {"max_new_tokens": 4, "matrices": ["attention", "queries", "keys"]}
    stream = lens.traces(prompts(), **options)
    exact = lens.traces(prompts(), implementation="exact", **options)
    for a, b in zip(stream, exact, strict=True):
        assert set(a.data.data_vars) == set(b.data.data_vars)
        for name in a.data.data_vars:
            found, wanted = a.data[name], b.data[name]
            if found.dtype.kind == "f":
                close(torch.tensor(found.values), torch.tensor(wanted.values), str(name))
            else:
                np.testing.assert_array_equal(found, wanted)


def test_received_attention_sums_to_one(lens: floatlens.Lens) -> None:
    total = lens.trace(prompts()[0], max_new_tokens=4).data["received"].sum("position")
    if "oss" in lens.name:  # a learned sink takes a share that is no position's
        assert float(total.max()) < 1
    else:
        np.testing.assert_allclose(total, 1.0, atol=1e-5)


def test_the_writing_row_of_a_step_is_the_row_of_the_matrix_whose_logits_wrote(lens: floatlens.Lens) -> None:
    trace = lens.trace(prompts()[0], max_new_tokens=4, matrices=["attention"])
    committed = trace.data["committed_at"].values
    for step in np.unique(committed[committed >= 0]):  # Dream's sampler has steps that commit nothing
        rows = np.flatnonzero(committed == step) - int(lens.family.shifted)
        found = trace.data["received_writing"].sel(step=step)
        wanted = trace.data["attention"].sel(step=step).mean("head").isel(query=rows).mean("query")
        there = np.isfinite(found.values)
        assert there.any()
        np.testing.assert_allclose(found.values[there], wanted.values[there], atol=1e-5)


def test_observing_changes_logits_by_rounding_at_most_and_no_token(lens: floatlens.Lens) -> None:
    from floatlens.attention.hook import observing

    before = lens.model.config._attn_implementation
    ids = torch.tensor([prompts()[0].ids])
    names = ["received", "entropy", "qk"]
    with torch.no_grad():
        plain = lens.model(ids).logits
        with observing(lens.model, Session(names)):
            fused = lens.model(ids).logits
        with observing(lens.model, Session(names, implementation="stream")):
            seen = lens.model(ids).logits
    assert plain.equal(seen)
    torch.testing.assert_close(fused, plain, atol=3e-6 * float(plain.abs().max()), rtol=0)
    assert lens.model.config._attn_implementation == before
    alone = lens.generate(prompts(), max_new_tokens=4)
    traced = lens.traces(prompts(), max_new_tokens=4)
    for made, trace, prompt in zip(alone, traced, prompts(), strict=True):
        new = trace.final_tokens[len(prompt.ids) :].tolist()
        assert made.ids == new[: len(made.ids)]


def test_a_padded_batch_gives_what_its_rows_give_alone(lens: floatlens.Lens) -> None:
    together = lens.traces(prompts(), max_new_tokens=4)
    for prompt, trace in zip(prompts(), together, strict=True):
        alone = lens.trace(prompt, max_new_tokens=4)
        np.testing.assert_array_equal(trace.final_tokens, alone.final_tokens)
        scale = float(np.nanmax(np.abs(alone.data["qk"])))
        for name in ("received", "entropy", "qk_cos", "evidence_mass", "flow"):
            if name in alone.data:
                np.testing.assert_allclose(trace.data[name], alone.data[name], atol=2e-5, err_msg=name)
        np.testing.assert_allclose(trace.data["qk"], alone.data["qk"], atol=2e-5 * scale)


def test_the_implementation_is_restored_after_an_error(lens: floatlens.Lens) -> None:
    from floatlens.attention.hook import observing

    before = lens.model.config._attn_implementation
    with pytest.raises(ZeroDivisionError), observing(lens.model, Session(["received"])):
        raise ZeroDivisionError
    assert lens.model.config._attn_implementation == before


def test_a_model_in_bfloat16_is_measured_in_float32(tmp_path: Path) -> None:
    lens = floatlens.load(str(checkpoints.llada(tmp_path)), dtype="bfloat16")
    trace = lens.trace(prompts()[0], max_new_tokens=4)
    np.testing.assert_allclose(trace.data["received"].sum("position"), 1.0, atol=1e-6)
