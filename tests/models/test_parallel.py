"""A model split by a tensor parallel plan over two processes gives the same tokens and traces as the whole model."""

from __future__ import annotations

import multiprocessing
import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import floatlens as fl
from floatlens.errors import FloatLensError
from floatlens.models import weights

NEW = 4


def traced(lens: fl.Lens) -> fl.Trace:
    passages = ["Ada Tarn lives in Molen.", "Ben Oder lives in Rusk."]
    return lens.trace("Where does Ada Tarn live?", passages, gold=0, max_new_tokens=NEW)


def part(rank: int, port: int, model: str, out: Path) -> None:
    """What each process of torchrun would do."""
    import torch

    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    lens = fl.load(model, tp_plan="auto")
    held = lens.model.model.layers[0].self_attn.q_proj.weight
    assert held.to_local().shape[0] * 2 == held.shape[0], "the layer is not split"
    with pytest.raises(FloatLensError, match="instead of tp_plan"):
        lens.intervene("soft-cap(3)")
    traced(lens).save(out / str(rank))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("model", ["tiny-mdm"])
def test_two_processes_trace_what_one_does(model: str, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    parts = [context.Process(target=part, args=(rank, port, model, tmp_path)) for rank in range(2)]
    for each in parts:
        each.start()
    for each in parts:
        each.join()
    assert [each.exitcode for each in parts] == [0, 0]
    whole = traced(fl.load(model)).data
    for rank in range(2):
        found = fl.Trace.open(tmp_path / str(rank)).data
        assert found.sizes == whole.sizes and found.attrs["output"] == whole.attrs["output"]
        for name in ("received", "entropy", "qk", "qk_norm", "qk_cos", "value_norm", "flow", "confidence"):
            np.testing.assert_allclose(found[name].values, whole[name].values, atol=2e-4, rtol=2e-3, err_msg=name)


def test_the_plan_reaches_transformers_and_what_cannot_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FloatLensError, match="needs several processes"):
        fl.load("tiny-mdm", tp_plan="auto")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(FloatLensError, match="leave out the device"):
        fl.load("tiny-mdm", tp_plan="auto", device_map="auto")
    told: dict[str, Any] = weights.parallel("auto")
    plan = told["distributed_config"].tp_plan if "distributed_config" in told else told["tp_plan"]
    assert plan == "auto"
