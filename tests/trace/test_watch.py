"""A run that is watched step by step gives the same numbers, and leaves nothing behind when it is abandoned."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

import floatlens
from floatlens.errors import FloatLensError
from floatlens.lens import Lens
from tests.models.passes import counted

QUESTION = "Where does Ada Tarn live?"


@pytest.fixture(scope="module", params=["tiny-mdm", "tiny-dream", "tiny-arm"])
def lens(request: pytest.FixtureRequest) -> Lens:
    return floatlens.load(request.param)


def test_the_steps_seen_are_those_of_the_trace(lens: Lens) -> None:
    prompt = lens.prompt(QUESTION, ["Ada Tarn lives in Molen."], gold=0)
    watch = lens.watch([prompt], max_new_tokens=6)
    received, tokens = [], []
    for step, results in watch:
        received.append(torch.stack([results["received"][layer][0] for layer in sorted(results["received"])]).numpy())
        tokens.append(step.tokens_BT[0].numpy())
    [trace] = watch.traces()
    whole = lens.trace(prompt, max_new_tokens=6)
    assert trace.data.identical(whole.data) and len(received) == whole.data.sizes["step"]
    for index, (seen_LHT, ids_T) in enumerate(zip(received, tokens, strict=True)):
        T = len(ids_T)
        np.testing.assert_array_equal(whole.data["received"].values[index, ..., :T], seen_LHT)
        np.testing.assert_array_equal(whole.data["tokens"].values[index, :T], ids_T)


def test_a_run_that_is_given_up_leaves_the_model_as_it_was(lens: Lens) -> None:
    before = lens.model.config._attn_implementation
    answer = lens.generate(QUESTION, max_new_tokens=6)
    watch = lens.watch([QUESTION], max_new_tokens=6)
    with counted(lens.model) as passes:
        next(watch)
        assert passes.count == 1
    assert lens.model.config._attn_implementation == before
    with pytest.raises(FloatLensError, match="at step 1 and has not finished"):
        watch.traces()
    del watch
    assert lens.generate(QUESTION, max_new_tokens=6) == answer


def test_two_runs_of_one_model_may_take_turns(lens: Lens) -> None:
    questions = [QUESTION, "Who lives in Molen?"]
    alone = [lens.trace(question, max_new_tokens=4) for question in questions]
    watches = [lens.watch([question], max_new_tokens=4) for question in questions]
    while not all(watch.over for watch in watches):
        for watch in watches:
            next(watch, None)
    for watch, trace in zip(watches, alone, strict=True):
        np.testing.assert_array_equal(watch.traces()[0].data["received"], trace.data["received"])


def test_a_run_may_be_begun_in_one_thread_and_finished_in_another(lens: Lens) -> None:
    watch = lens.watch([QUESTION], max_new_tokens=4)
    next(watch)
    worker = threading.Thread(target=lambda: [None for _ in watch])
    worker.start()
    worker.join()
    np.testing.assert_array_equal(
        watch.traces()[0].data["received"], lens.trace(QUESTION, max_new_tokens=4).data["received"]
    )


def test_what_is_only_shown_is_not_kept(lens: Lens) -> None:
    watch = lens.watch([QUESTION], max_new_tokens=4, record=["received"], show=["attention_mean"])
    for step, results in watch:
        T = step.tokens_BT.shape[1]
        for layer, rows_BQT in results["attention_mean"].items():
            rows_QT = rows_BQT[0]
            assert rows_QT.shape[1] == T
            np.testing.assert_allclose(rows_QT.sum(-1), 1, atol=1e-5)
            if rows_QT.shape[0] == T:  # a pass over the whole sequence: its column mean is the received attention
                np.testing.assert_allclose(rows_QT.mean(0), results["received"][layer][0].mean(0), atol=1e-5)
    assert "attention_mean" not in watch.traces()[0].data
