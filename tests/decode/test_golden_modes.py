"""Every step history of Nemotron-Labs-Diffusion's published samplers, reproduced."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import floatlens as fl
from floatlens.decode.draws import Draws
from floatlens.decode.network import Network
from floatlens.decode.sampler import settings_for
from floatlens.decode.step import SpecialTokens, Step
from tests import golden_modes

pytestmark = pytest.mark.golden
MASK = golden_modes.SPECIAL["mask_token_id"]


def runs(*codes: str) -> list[Any]:
    return [
        pytest.param(name, run, id=f"{name}-{number}")
        for name in golden_modes.NAMES
        for number, run in enumerate(golden_modes.runs(name, *codes))
    ]


class Played(Draws):
    """Plays back the tokens that the published run drew: the first of each block, then those of its steps."""

    def __init__(self, run: dict[str, Any]) -> None:
        super().__init__([0])
        drawn = []
        for number, block in enumerate(run["blocks"]):
            drawn.append(block["initial"][:1])
            drawn += [one["draws"] for one in run["records"] if one["block"] == number]
        self.tokens = iter(drawn)

    def choose(self, row: int, weights_NV: torch.Tensor, count: int = 1, replacement: bool = True) -> torch.Tensor:
        return torch.tensor(next(self.tokens))[:, None]


def prompts(run: dict[str, Any]) -> list[list[int]]:
    index = run["prompt_index"]
    return [golden_modes.SPECIAL["prompts"][one] for one in (index if isinstance(index, list) else [index])]


def rows(run: dict[str, Any], value: Any) -> Any:
    """What the folder holds per row; it leaves out the rows of a run with one prompt."""
    return value if isinstance(run["prompt_index"], list) else [value]


def written(
    name: str, sampler: str, run: dict[str, Any], family: str, eos: int | None, draws: Draws | None = None
) -> list[Step]:
    settings = {key: value for key, value in run["settings"].items() if key != "eos_token_id"}
    chosen, network = settings_for(sampler, **settings), Network(golden_modes.lens(name, family).model)
    special = SpecialTokens(MASK, () if eos is None else (eos,))
    passes = chosen.passes(network, torch.tensor(prompts(run)), None, chosen, special=special, draws=draws)
    return list(chosen.sample(passes))


def end_of(name: str, run: dict[str, Any]) -> int | None:
    """The end token of a run: the hub's code takes that of the config, Megatron-Bridge none."""
    own = None if run["code"].startswith("mb") else golden_modes.SPECIAL["eos_token_id"][name]
    return run["settings"].get("eos_token_id", own)


@pytest.mark.parametrize(("name", "run"), runs("hf_generate"))
def test_generate(name: str, run: dict[str, Any]) -> None:
    draws = None if run["seed"] is None else Played(run)
    steps = written(name, "nemotron", run, "nemotron", end_of(name, run), draws)
    history = [rows(run, sequence) for sequence in run["history"]]
    found = [step.after_BT.tolist() for step in steps]
    if run["fragile"] and found != history:
        pytest.skip("the folder calls this run fragile: it comes near to a tie")
    if run["settings"]["block_length"] > 1:  # else a block has nothing to denoise, and the published code takes no step
        assert found == history
    assert [row[: len(final)] for row, final in zip(found[-1], rows(run, run["final"]), strict=True)] == rows(
        run, run["final"]
    )


@pytest.mark.parametrize(("name", "run"), runs("hf_generate"))
def test_every_token_is_committed_once(name: str, run: dict[str, Any]) -> None:
    draws = None if run["seed"] is None else Played(run)
    steps = written(name, "nemotron", run, "nemotron", end_of(name, run), draws)
    times = torch.zeros_like(steps[-1].after_BT)
    for step in steps:
        times[:, : step.committed_BT.shape[1]] += step.committed_BT
    length = len(prompts(run)[0])
    assert not bool(times[:, :length].any())
    assert torch.equal(times[:, length:] == 1, steps[-1].after_BT[:, length:] != MASK)


@pytest.mark.parametrize(("name", "run"), runs("hf_ar", "mb_ar"))
def test_the_same_weights_append_tokens(name: str, run: dict[str, Any]) -> None:
    if run["seed"] is not None:
        pytest.skip("the published code draws from the generator of torch, and the folder does not hold its tokens")
    eos = end_of(name, run)
    steps = written(name, "autoregressive", run, "nemotron-arm", eos)
    for prompt, found, final in zip(prompts(run), steps[-1].after_BT.tolist(), rows(run, run["final"]), strict=True):
        # The published code goes on with a row that has ended, unless all rows end in the same step.
        new = final[len(prompt) :]
        end = len(prompt) + (new.index(eos) + 1 if eos in new else len(new))
        assert found[:end] == final[:end]


@pytest.mark.parametrize(("name", "run"), runs("hf_linear_spec"))
def test_speculation_drafts_and_accepts_what_the_published_code_does(name: str, run: dict[str, Any]) -> None:
    if run["seed"] is not None:
        pytest.skip("the published code draws from the generator of torch, and the folder does not hold its tokens")
    if "max_thinking_tokens" in run["settings"]:
        pytest.skip("the published code writes the end of thinking into its cache, but not into the text")
    steps = written(name, "nemotron-spec", run, "nemotron", end_of(name, run))
    cycles, inputs = [], []
    for step in steps:
        assert step.active is not None
        start = step.active.start
        if bool(step.committed_BT[:, start + 1 :].any()):
            drafted = step.tokens_BT[0, start:].tolist()
            cycles.append({"start": start, "draft_inputs": inputs, "drafted": drafted})
            inputs = []
        else:
            inputs.append(step.tokens_BT[0, start:].tolist())
    wanted = [{key: cycle[key] for key in ("start", "draft_inputs", "drafted")} for cycle in run["cycles"]]
    if run["fragile"] and cycles != wanted:
        pytest.skip("the folder calls this run fragile: it comes near to a tie")
    assert cycles == wanted
    assert steps[-1].after_BT[0].tolist() == run["final"]


@pytest.mark.parametrize("name", golden_modes.NAMES)
def test_speculation_writes_the_text_of_the_autoregressive_model(name: str) -> None:
    prompt = golden_modes.SPECIAL["prompts"][2]
    options: dict[str, Any] = {"max_new_tokens": 12, "block_length": 4}
    spec = fl.load(str(golden_modes.MODES / "models" / name), dtype="float32", sampler="nemotron-spec")
    [drafted] = spec.generate([prompt], **options)
    [appended] = golden_modes.lens(name, "nemotron-arm").generate([prompt], max_new_tokens=12)
    if MASK in appended.ids:
        pytest.skip("these weights write the mask token itself, which a diffusion model leaves out of its answer")
    assert drafted.ids == appended.ids
    trace = spec.trace(prompt, **options)
    assert trace.written[: len(drafted.ids)] == drafted.ids


def test_prompts_of_different_lengths_are_written_one_at_a_time() -> None:
    lens = golden_modes.lens(golden_modes.NAMES[0])
    rows = [golden_modes.SPECIAL["prompts"][index] for index in (0, 4)]
    options: dict[str, Any] = {"max_new_tokens": 8, "block_length": 4}
    alone = [lens.generate([row], **options)[0] for row in rows]
    assert lens.generate(rows, **options) == alone
    batch = lens._batch(lens._prompts(rows))
    with pytest.raises(fl.FloatLensError, match="one prompt at a time"):
        next(lens.steps(batch, lens.settings(**options)))


@pytest.mark.parametrize(
    "settings", [{"steps": 6}, {"sampler": {"steps_per_block": 3}}, {"sampler": {"threshold": 0.9}}]
)
def test_a_block_takes_no_more_steps_than_are_asked_for(settings: dict[str, Any]) -> None:
    lens = fl.load(str(golden_modes.MODES / "models" / golden_modes.NAMES[0]), dtype="float32")
    lens.__dict__["end_ids"] = ()
    trace = lens.trace(golden_modes.SPECIAL["prompts"][0], max_new_tokens=16, block_length=8, **settings)
    assert trace.data.sizes["step"] == (16 - 2 if "threshold" in str(settings) else 6)
    assert MASK not in trace.written
