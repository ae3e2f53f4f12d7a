"""Streaming equals the exact definition under block masks, for any blocks, padding and tile size."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import torch
from hypothesis import given, settings

from floatlens.attention.call import Inputs
from floatlens.attention.session import Session
from floatlens.attention.statistic import DEFAULT, MATRICES
from floatlens.decode.network import CURRENT, ForwardPass, count_blocks, visible
from tests.attention.test_stream_equals_exact import close, layout

NAMES = [*DEFAULT, *MATRICES]


@st.composite
def situations(draw: st.DrawFn) -> dict[str, Any]:
    kv_heads, block = draw(st.sampled_from([1, 2])), draw(st.integers(1, 5))
    return {
        "kv_heads": kv_heads,
        "heads": kv_heads * draw(st.sampled_from([1, 3])),
        "block": block,
        "blocks": draw(st.integers(1, 4)),
        "pads": draw(st.lists(st.integers(0, block - 1), min_size=1, max_size=2)),
        "cached": draw(st.booleans()),
        "passes": draw(st.integers(1, 2)),
        "layers": draw(st.integers(1, 2)),
        "tile": draw(st.integers(1, 2000)),
        "seed": draw(st.integers(0, 2**31)),
        "room": draw(st.sampled_from([0, 2000, 1 << 26])),
    }


@settings(max_examples=60, deadline=None)
@given(situations())
def test_stream_equals_exact_under_block_masks(s: dict[str, Any]) -> None:
    """Each block is denoised by some passes; its rows are final once the next block begins."""
    generator = torch.Generator().manual_seed(s["seed"])
    rows, block = len(s["pads"]), s["block"]
    total = block * s["blocks"] + max(s["pads"])
    real = torch.arange(total)[None] >= torch.tensor(s["pads"])[:, None]
    blocks_BT = count_blocks(real, block)[0]
    place = layout(rows, total, s["pads"], generator)
    stream = Session(NAMES, layout=place, tile=s["tile"], room=s["room"], matrix_layers=[0])
    exact = Session(NAMES, layout=place, implementation="exact", matrix_layers=[0])

    def draw(heads: int, length: int) -> torch.Tensor:
        return torch.randn(s["layers"], rows, heads, length, 4, generator=generator) * 2

    k, v = draw(s["kv_heads"], total), draw(s["kv_heads"], total)
    # Blocks of the batch as its first row has them: those of the others need not begin at the same columns.
    for first in range(s["pads"][0], total - block + 1, block):
        last = first + block
        done = range(max(0, first - block) if first > s["pads"][0] else 0, first)
        for number in range(s["passes"]):
            start = first if s["cached"] else 0
            final = range(0) if s["cached"] or number else done
            forwards = [ForwardPass(torch.zeros(rows, last), start, range(first, last), final)]
            if s["cached"] and done and not number:
                forwards.insert(0, ForwardPass(torch.zeros(rows, first), done.start, range(0), done))
            for session in (stream, exact):
                session.begin()
            for forward in forwards:
                end = forward.tokens_BT.shape[1]
                mask = visible(blocks_BT[:, :end], forward.start)[:, None]
                q = draw(s["heads"], end - forward.start)
                token = CURRENT.set(forward)
                for session in (stream, exact):
                    for layer in range(s["layers"]):
                        keys, values = k[layer, :, :, :end], v[layer, :, :, :end]
                        session.see(layer, Inputs(q[layer], keys, values, 0.5, mask, False))
                CURRENT.reset(token)
            compare(stream, exact, s["pads"], range(first, last))


def compare(stream: Session, exact: Session, pads: list[int], active: range) -> None:
    for name, layers in exact.results.items():
        dims = stream.statistics[name].dims
        for layer, wanted in layers.items():
            found = stream.results[name][layer]
            if name == "evidence":  # which of two equal weights is the largest is left open
                found, wanted = found[..., 0], wanted[..., 0]
            for row, pad in enumerate(pads):
                if active.stop <= pad or (pad > active.start and "query" in dims):
                    continue
                cut = slice(pad, None) if "position" in dims else slice(None)
                a, b = found[row][..., cut], wanted[row][..., cut]
                if bool(b.isfinite().any()):
                    close(a, b, name)
