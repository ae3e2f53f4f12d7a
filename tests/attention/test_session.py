"""How calls are grouped: layers of the same kind are processed together, within the memory limit, and none is lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import floatlens
import floatlens.attention.statistics.received
from floatlens.attention.call import Call, Inputs, PositionLayout
from floatlens.attention.hook import observing
from floatlens.attention.prompt_batch import PromptBatch
from floatlens.attention.session import Session
from floatlens.data.prompt import Prompt
from floatlens.decode.network import CURRENT, ForwardPass
from tests.models import checkpoints

IDS = list(range(3, 27))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Every call that statistics were taken of, in order."""
    seen: list[Call] = []
    start = floatlens.attention.statistics.received.Received.start
    monkeypatch.setattr(
        floatlens.attention.statistics.received.Received,
        "start",
        lambda self, call: seen.append(call) or start(self, call),
    )
    return seen


def test_the_layers_of_a_step_are_one_call_after_a_second_pass(tmp_path: Path, looks: list[Call]) -> None:
    lens = floatlens.load(str(checkpoints.llada(tmp_path)), dtype="float32")
    lens.trace(IDS, max_new_tokens=4, steps=2, implementation="stream")
    assert [call.layers for call in looks] == [(0, 1, 2)] * 2
    assert all("pooled" in call.computed for call in looks)


def test_the_layers_of_a_step_are_one_call_whose_weights_have_passed(tmp_path: Path, looks: list[Call]) -> None:
    lens = floatlens.load(str(checkpoints.llada(tmp_path)), dtype="float32")
    lens.trace(IDS, max_new_tokens=4, steps=2)
    assert [call.layers for call in looks] == [(0, 1, 2)] * 2
    assert all("pooled" in call.computed for call in looks)


def test_a_cache_is_extended_in_the_group_that_the_prompt_formed(tmp_path: Path, looks: list[Call]) -> None:
    lens = floatlens.load(str(checkpoints.native(tmp_path, "qwen2")), dtype="float32")
    lens.end_ids = ()
    lens.trace(IDS, max_new_tokens=4)
    assert [(call.layers, call.Q) for call in looks] == [((0, 1, 2), len(IDS))] + [((0, 1, 2), 1)] * 3


def test_layers_that_do_not_fit_together_are_looked_at_one_by_one(tmp_path: Path, looks: list[Call]) -> None:
    lens = floatlens.load(str(checkpoints.llada(tmp_path)), dtype="float32")
    ids = torch.tensor([IDS])
    found = {}
    for room in (0, 1 << 26):
        with observing(lens.model, Session(["received", "entropy"], room=room)) as session, torch.no_grad():
            lens.model(ids)
            found[room] = {name: torch.stack([*by_layer.values()]) for name, by_layer in session.results.items()}
    assert [call.layers for call in looks] == [(0,), (1,), (2,), (0, 1, 2)]
    for name in ("received", "entropy"):
        torch.testing.assert_close(found[0][name], found[1 << 26][name], atol=1e-6, rtol=0)


def test_a_step_that_is_not_kept_still_counts_in_a_running_sum(tmp_path: Path) -> None:
    lens = floatlens.load(str(checkpoints.native(tmp_path, "llama")), dtype="float32")
    lens.end_ids = ()
    whole = lens.trace(IDS, max_new_tokens=4)
    last = lens.trace(IDS, max_new_tokens=4, record_steps=[3])
    np.testing.assert_array_equal(last.data["received"].sel(step=3), whole.data["received"].sel(step=3))


@pytest.mark.parametrize("visible", [True, False])
def test_keys_beyond_the_sequence_are_an_error_unless_the_mask_hides_them(visible: bool) -> None:
    """Learned keys after the positions have no received attention; those of a static cache are not yet written."""
    query, keys = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 6, 8)
    mask = torch.ones(1, 1, 4, 6, dtype=torch.bool)
    mask[..., 4:] = visible
    session = Session(["received"])
    token = CURRENT.set(ForwardPass.whole(torch.zeros(1, 4, dtype=torch.long)))
    try:
        if visible:
            with pytest.raises(
                floatlens.FloatLensError, match="6 keys at 4 positions: some of its keys are not positions"
            ):
                session.see(0, Inputs(query, keys, keys, None, mask, False))
        else:
            session.see(0, Inputs(query, keys, keys, None, mask, False))
            received = session.results["received"][0]
            weights = (query @ keys[:, :, :4].transpose(-1, -2) * 8**-0.5).softmax(-1)
            torch.testing.assert_close(received, weights.mean(-2), atol=1e-6, rtol=0)
    finally:
        CURRENT.reset(token)


def test_a_padded_batch_whose_window_has_left_the_padding_needs_no_mask() -> None:
    """The keys of a sliding window are then all real, so that no mask is passed, although the batch is padded."""
    names, T, window = ("received", "qk", "qk_cos", "qk_norm", "value_norm", "entropy"), 12, 8
    real = torch.arange(T)[None] >= torch.tensor([[0], [3]])
    nothing = torch.zeros(2, T, dtype=torch.bool)
    layout = PositionLayout(real, torch.where(real, 0, -1), [["other"]] * 2, nothing, nothing)
    q, k, v = torch.randn(3, 2, 4, T, 8, generator=torch.Generator().manual_seed(0))
    causal = torch.ones(T - 1, T - 1, dtype=torch.bool).tril() & real[:, None, None, : T - 1]
    sessions = {way: Session(names, layout=layout, implementation=way) for way in ("fused", "exact")}
    for session in sessions.values():
        for layer in range(2):
            session.see(layer, Inputs(*(x[:, :, : T - 1] for x in (q, k, v)), None, causal, False))
        session.begin()
        for layer in range(2):
            session.see(layer, Inputs(q[:, :, -1:], k[:, :, -window:], v[:, :, -window:], None, None, False))
    for name in names:
        fused, exact = (session.results[name][1] for session in sessions.values())
        torch.testing.assert_close(fused, exact, atol=1e-5, rtol=0, equal_nan=True)
        assert bool(fused[0].isfinite().all())


@pytest.mark.parametrize("shifted", [False, True])
def test_the_rows_that_may_write_are_as_many_as_the_new_tokens(shifted: bool) -> None:
    """In a shifted model, each token is written by the row before its own position, also behind padding."""
    prompts = [Prompt.from_ids(ids) for ids in ([5, 6, 7], [8])]
    layout = PromptBatch.of(prompts, 0, torch.device("cpu")).layout(2, shifted)
    for row in range(2):
        assert layout.writes_BN[row].nonzero()[:, 0].tolist() == [3 - shifted, 4 - shifted]
    assert layout.region_BN.tolist() == [[0, 0, 0, 1, 1], [-1, -1, 0, 1, 1]]
