"""Every step history of Nemotron-Labs-Diffusion's published samplers, reproduced."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import floatlens as fl
from floatlens.decode.autoregressive import Autoregressive
from floatlens.decode.draws import Draws
from floatlens.decode.nemotron import Nemotron
from floatlens.decode.nemotron_spec import Speculation
from floatlens.decode.network import Passes
from floatlens.decode.sampler import Sampler
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
    """Plays back what the published run drew: the first token of each block if it has one, then what its steps drew."""

    def __init__(self, run: dict[str, Any]) -> None:
        super().__init__([0])
        drawn = []
        for number, block in enumerate(run["blocks"]):
            drawn += [block["initial"][:1]] if block["initial"][0] != MASK else []
            steps = [one for one in run["records"] if one["block"] == number]
            drawn += [one["draws"] if "draws" in one else one["rand_draws"] for one in steps]
        self.drawn = iter(drawn)

    def choose(self, row: int, weights_NV: torch.Tensor, count: int = 1, replacement: bool = True) -> torch.Tensor:
        return torch.tensor(next(self.drawn))[:, None]

    def uniform(self, row: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.tensor(next(self.drawn), dtype=dtype)


@dataclass(frozen=True)
class Megatron(Nemotron):
    """Our sampler where `generate_dllm` of Megatron-Bridge differs: blocks begin with masks alone, row j - 1 may write
    position j, and masks may be ranked by entropy or at random."""

    threshold: float | None = None
    shift_logits: bool = True
    neg_entropy: bool = True
    remasking: str = "low_confidence"

    def begin_block(self, passes: Any, x_BT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        passes.store(x_BT, *self.place(passes, x_BT, x_BT.shape[1]))
        masks_BL = passes.append_masks(x_BT, self.block_length)[:, x_BT.shape[1] :]
        return masks_BL, torch.full(masks_BL.shape, torch.nan)

    def guess(self, passes: Any, logits_BLV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.shift_logits:
            logits_BLV = torch.cat([passes.before_B1V, logits_BLV[:, :-1]], 1)
        token_BL, confidence_BL = super().guess(passes, logits_BLV)
        if self.remasking == "random":
            confidence_BL = passes.draws.uniform(0, (self.block_length,))[None]
        elif self.neg_entropy:
            probs_BLV = logits_BLV.softmax(-1)
            confidence_BL = (probs_BLV * (probs_BLV + 1e-10).log()).sum(-1)
        return token_BL, confidence_BL


@dataclass(frozen=True)
class Budgeted(Speculation):
    """Our speculation with the published budget of thinking: once it is spent, later passes read the token that ends
    thinking in place of the last token, which stays in the text."""

    max_thinking_tokens: int = 0
    end_think_token_id: int = -1
    replaced: list[int] = field(default_factory=list)

    def begin_draft(self, passes: Any, x_BT: torch.Tensor) -> torch.Tensor:
        new = x_BT[0, passes.P :].tolist()
        if len(new) > max(self.max_thinking_tokens, 1) and self.end_think_token_id not in new:
            self.replaced.append(x_BT.shape[1] - 1)
        read_BT = x_BT.clone()
        read_BT[:, self.replaced] = self.end_think_token_id
        return super().begin_draft(passes, read_BT)


def prompts(run: dict[str, Any]) -> list[list[int]]:
    index = run["prompt_index"]
    return [golden_modes.SPECIAL["prompts"][one] for one in (index if isinstance(index, list) else [index])]


def rows(run: dict[str, Any], value: Any) -> Any:
    """What the folder holds per row; it leaves out the rows of a run with one prompt."""
    return value if isinstance(run["prompt_index"], list) else [value]


def written(
    name: str, kind: type[Sampler], run: dict[str, Any], family: str = "nemotron", draws: Draws | None = None
) -> list[Step]:
    """The steps of our own run. Without given draws, the seed of the published one is ours."""
    settings = {"seed": run["seed"] or 0} | run["settings"]
    eos = settings.pop("eos_token_id", None if run["code"].startswith("mb") else own_end(name))
    if "gen_length" in settings:
        settings["max_new_tokens"] = settings.pop("gen_length")
    chosen, lens = kind(**settings), golden_modes.lens(name, family)
    special = SpecialTokens(MASK, () if eos is None else (eos,))
    ids = torch.tensor(prompts(run))
    passes = Passes(lens.model, lens.family, ids, None, chosen, special=special)
    passes.draws = draws or passes.draws
    return list(chosen.sample(passes))


def own_end(name: str) -> int:
    """The end token of a model's config, which the hub's code takes; Megatron-Bridge takes none."""
    return golden_modes.SPECIAL["eos_token_id"][name]


def test_every_run_of_the_folder_is_compared() -> None:
    compared = {"hf_generate", "mb_dllm", "hf_ar", "mb_ar", "hf_linear_spec"}
    assert {run["code"] for name in golden_modes.NAMES for run in golden_modes.all_runs(name)} <= compared


@pytest.mark.parametrize(("name", "run"), runs("hf_generate", "mb_dllm"))
def test_generate(name: str, run: dict[str, Any]) -> None:
    kind = Nemotron if run["code"] == "hf_generate" else Megatron
    steps = written(name, kind, run, draws=None if run["seed"] is None else Played(run))
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
    steps = written(name, Nemotron, run, draws=None if run["seed"] is None else Played(run))
    times = torch.zeros_like(steps[-1].after_BT)
    for step in steps:
        times[:, : step.committed_BT.shape[1]] += step.committed_BT
    length = len(prompts(run)[0])
    assert not bool(times[:, :length].any())
    assert torch.equal(times[:, length:] == 1, steps[-1].after_BT[:, length:] != MASK)


@pytest.mark.parametrize(("name", "run"), runs("hf_ar", "mb_ar"))
def test_the_same_weights_append_tokens(name: str, run: dict[str, Any]) -> None:
    eos = run["settings"].get("eos_token_id", None if run["code"] == "mb_ar" else own_end(name))
    steps = written(name, Autoregressive, run, "nemotron-arm")
    for prompt, found, final in zip(prompts(run), steps[-1].after_BT.tolist(), rows(run, run["final"]), strict=True):
        # The published code goes on with a row that has ended, unless all rows end in the same step.
        new = final[len(prompt) :]
        end = len(prompt) + (new.index(eos) + 1 if eos in new else len(new))
        assert found[:end] == final[:end]


@pytest.mark.parametrize(("name", "run"), runs("hf_linear_spec"))
def test_speculation_drafts_and_accepts_what_the_published_code_does(name: str, run: dict[str, Any]) -> None:
    steps = written(name, Budgeted if "max_thinking_tokens" in run["settings"] else Speculation, run)
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
    if wanted:
        assert cycles == wanted
        assert steps[-1].after_BT[0].tolist() == run["final"]
    else:  # the first token ends the text; we draft one block nevertheless
        assert len(cycles) == 1
        assert steps[-1].after_BT[0, : len(run["final"])].tolist() == run["final"]


@pytest.mark.parametrize("name", golden_modes.NAMES)
def test_speculation_writes_the_text_of_the_autoregressive_model(name: str) -> None:
    prompt = golden_modes.SPECIAL["prompts"][2]
    options: dict[str, Any] = {"max_new_tokens": 12, "block_length": 4}
    spec = fl.load(str(golden_modes.MODES / "models" / name), dtype="float32", sampler="nemotron-spec")
    [drafted] = spec.generate([prompt], **options)
    [appended] = golden_modes.lens(name, "nemotron-arm").generate([prompt], max_new_tokens=12)
    # Some of these weights write the mask token itself, over which a draft writes, as published.
    end = appended.ids.index(MASK) + 1 if MASK in appended.ids else None
    assert drafted.ids[:end] == appended.ids[:end]
    trace = spec.trace(prompt, **options)
    assert trace.written[: len(drafted.ids)] == drafted.ids


def test_speculation_of_one_token_drafts_one_block() -> None:
    """The pass over the prompt writes the only token, but a trace has steps."""
    spec = fl.load(str(golden_modes.MODES / "models" / golden_modes.NAMES[0]), dtype="float32", sampler="nemotron-spec")
    prompt = golden_modes.SPECIAL["prompts"][2]
    [one], [two] = (spec.generate([prompt], max_new_tokens=count, block_length=4) for count in (1, 2))
    assert one.ids == two.ids[:1] and one.steps == 2
    assert spec.trace(prompt, max_new_tokens=1, block_length=4).data.sizes["step"] == 2


def test_prompts_of_different_lengths_are_written_one_at_a_time() -> None:
    lens = golden_modes.lens(golden_modes.NAMES[0])
    rows = [golden_modes.SPECIAL["prompts"][index] for index in (0, 4)]
    options: dict[str, Any] = {"max_new_tokens": 8, "block_length": 4}
    alone = [lens.generate([row], **options)[0] for row in rows]
    assert lens.generate(rows, **options) == alone
    batch = lens._batch(lens._prompts(rows))
    with pytest.raises(fl.FloatLensError, match="one such prompt at a time"):
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
