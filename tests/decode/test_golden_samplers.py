"""Every step history of the published samplers, reproduced."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from floatlens.attention.hook import observing
from floatlens.attention.session import Session
from floatlens.decode.draws import Draws
from floatlens.decode.network import Passes
from floatlens.decode.sampler import settings_for
from floatlens.decode.step import SpecialTokens
from tests import golden_data

pytestmark = pytest.mark.golden
IGNORED = {
    "prompt_index",
    "batched",
    "input_ids",
    "attention_mask",
    "final",
    "history",
    "rand_draws",
    "sampled",
    "gen_length",
}
RUNS = [
    pytest.param(name, run, id=f"{name}-{number}")
    for name in golden_data.names("samplers")
    for number, run in enumerate(golden_data.read(f"samplers/{name}.json"))
    # Runs marked `sampled` depend on how torch.topk orders equal certainties, which it leaves open.
    if not run.get("sampled")
]


class Recorded(Draws):
    """Plays back the uniforms that the published run drew."""

    def __init__(self, seed: int, recorded: list[list[float]]) -> None:
        super().__init__([seed])
        self.recorded = iter(recorded)

    def uniform(self, row: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.tensor(next(self.recorded), dtype=dtype)


@pytest.mark.parametrize("observed", [False, True], ids=["plain", "observed"])
@pytest.mark.parametrize(("name", "run"), RUNS)
def test_each_step_leaves_the_sequence_that_the_published_code_left(
    name: str, run: dict[str, Any], observed: bool
) -> None:
    """Observed, attention is computed by FloatLens itself, and every token must still be the published one."""
    lens, special = golden_data.lens(name), golden_data.special()
    if run.get("batched"):
        ids = torch.tensor(run["input_ids"])
        real = torch.tensor(run["attention_mask"]).bool()
    else:
        ids, real = torch.tensor(special["prompts"][run["prompt_index"]])[None], None
    asked = {k: v for k, v in run.items() if k not in IGNORED and not k.startswith(("min_", "final_"))}
    if "gen_length" in run:
        asked["max_new_tokens"] = run["gen_length"]
    settings = settings_for(lens.family.sampler, **asked)
    draws = Recorded(run["seed"], run["rand_draws"]) if run.get("rand_draws") else None
    tokens = SpecialTokens(special["mask_token_id"], (special["eos_token_id"], special["eot_token_id"]))
    passes = Passes(lens.model, lens.family, ids, real, settings, special=tokens)
    passes.draws = draws or passes.draws
    steps = settings.sample(passes)
    session = Session(["received", "entropy"], implementation="fused")
    with observing(lens.model, session) if observed else nullcontext():
        history = [step.after_BT for step in steps]
    assert bool(session.observed) == observed
    expected = torch.tensor(run["history"]).reshape(len(run["history"]), len(ids), -1)
    assert len(history) == len(expected)
    for index, (found, wanted) in enumerate(zip(history, expected, strict=True)):
        assert found.equal(wanted), f"step {index}: {found.tolist()} is not {wanted.tolist()}"
    assert history[-1].equal(torch.tensor(run["final"]).reshape(history[-1].shape))
