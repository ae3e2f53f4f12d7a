"""Interventions on models that write in blocks: logits equal the definitions, and ablations use them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache

import floatlens as fl
from floatlens.anchors import find_anchors
from floatlens.data.prompt import Prompt, Region
from floatlens.data.sample import Passage, Sample
from floatlens.decode.step import Step
from floatlens.errors import FloatLensError
from floatlens.evaluation.ablate import Baseline, ablate, divergence, gold_surprise, replay
from floatlens.options import Sampling
from tests.interventions.by_hand import Hand, Seen, by_hand
from tests.interventions.test_exact import cap, close, mask_positions, scale, sink, zero
from tests.models import checkpoints

BLOCK, NEW = 4, 9
PROMPT = Prompt("", [1, 5, 9, 13, 17, 21, 25, 29, 33, 37], [Region("query", 1, 4), Region("doc1", 5, 9)], gold=[0])
FAMILIES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "sdar": (checkpoints.sdar, {}, {"remasking_strategy": "low_confidence_static", "steps_per_block": 3}),
    "llada2": (checkpoints.llada2, {}, {"threshold": 0.3}),
    "llada2.1": (
        checkpoints.llada2,
        {"family": "llada2.1"},
        {"threshold": 0.1, "editing_threshold": 0.05, "max_post_steps": 2},
    ),
    "a2d-block": (checkpoints.a2d, {"family": "a2d-block", "block_length": BLOCK}, {"steps_per_block": 3}),
}


def mask_anchors(rule: str) -> Hand:
    """Hide the anchors of the rows of a pass: of a block at a step, of all finished rows where they are stored."""

    def hand(seen: Seen) -> None:
        rows_QT = seen.logits_HQT.softmax(-1).mean(0).double().numpy()
        if seen.memory["storing"]:
            before = seen.memory.get("sums", np.zeros(0))
            sums = rows_QT.sum(0) + np.pad(before, (0, rows_QT.shape[1] - len(before)))
            seen.memory["sums"], seen.memory["rows"] = sums, seen.memory.get("rows", 0) + len(rows_QT)
            received = sums / seen.memory["rows"]
        else:
            received = rows_QT.mean(0)
        seen.hide([int(j) for j in np.flatnonzero(find_anchors(received, rule, "block"))])

    return hand


CASES: dict[str, tuple[Any, Hand]] = {
    "mask-positions": (fl.MaskPositions([0, 7]), mask_positions([0, 7])),
    "mask-positions, region": (fl.MaskPositions(region="gold"), mask_positions([5, 6, 7, 8])),
    "scale-attention": (fl.ScaleAttention(3.0, region="doc1", heads=[1, 2]), scale(3.0, [5, 6, 7, 8], [1, 2])),
    "soft-cap": (fl.SoftCap(1.5), cap(1.5)),
    "add-sink": (fl.AddSink(1.0, heads=[0, 2]), sink(1.0, [0, 2])),
    "ablate-heads": (fl.AblateHeads([(0, 1), (1, 0)]), zero([(0, 1), (1, 0)])),
    "mask-anchors": (fl.MaskAnchors("top(2)"), mask_anchors("top(2)")),
}


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[fl.Lens, Any]:
    make, options, settings = FAMILIES[request.param]
    lens = fl.load(str(make(tmp_path_factory.mktemp("block") / "model")), dtype="float32", **options)
    lens.end_ids = ()
    return lens, lens.settings(max_new_tokens=NEW, sampler={"block_length": BLOCK, **settings})


def first_of(lens: fl.Lens, length: int) -> int:
    """Where the block begins that ends a sequence."""
    P = len(PROMPT.ids)
    return P + (length - P - 1) // BLOCK * BLOCK if lens.family.name == "a2d-block" else length - BLOCK


def passes_by_hand(lens: fl.Lens, hand: Hand, sequences: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Logits (L, V) of the block that ends each sequence: finished blocks on a cache, attention by hand."""
    shift = -len(PROMPT.ids) % BLOCK if lens.family.name == "a2d-block" else 0
    cache, stored = DynamicCache(), 0
    storing = False

    def told(seen: Seen) -> None:
        seen.memory["storing"] = storing
        seen.memory["length"] = seen.logits_HQT.shape[2]
        hand(seen)

    def run(ids_T: torch.Tensor, start: int) -> torch.Tensor:
        places = torch.arange(len(ids_T))
        number = (places + shift) // BLOCK
        mask_QT = number[start:, None] >= number[None]
        options = {"attention_mask": mask_QT[None, None], "position_ids": places[None, start:]}
        with torch.no_grad():
            return lens.model(ids_T[None, start:], past_key_values=cache, use_cache=True, **options).logits[0]

    with by_hand(lens.model, told, [0], 1):
        for x_1T in sequences:
            first = first_of(lens, x_1T.shape[1])
            if first > stored:
                storing = True
                run(x_1T[0, :first], stored)
                storing, stored = False, first
            logits_LV = run(x_1T[0], first)
            cache.crop(-len(logits_LV))
            yield logits_LV


@pytest.mark.parametrize("name", CASES)
def test_a_generation_under_an_intervention_is_that_of_its_definition(case: Any, name: str) -> None:
    lens, settings = case
    intervention, hand = CASES[name]
    batch = lens._batch([PROMPT], settings)
    with lens.intervene(intervention):
        steps: list[Step] = list(lens.steps(batch, settings))
    by_definition = passes_by_hand(lens, hand, [step.tokens_BT for step in steps])
    compared = 0
    for step, logits_LV in zip(steps, by_definition, strict=True):
        first = first_of(lens, step.tokens_BT.shape[1])
        probs_LV = logits_LV.softmax(-1)
        for column in step.committed_BT[0].nonzero()[:, 0].tolist():
            token = int(step.after_BT[0, column])
            assert token == int(probs_LV[column - first].argmax())
            found = float(step.confidence_BT[0, column])
            assert found == pytest.approx(float(probs_LV[column - first, token]), abs=1e-5)
            compared += 1
    assert compared >= NEW


@pytest.mark.parametrize("name", CASES)
def test_an_ablation_measures_along_the_plain_run_by_the_definition(case: Any, name: str) -> None:
    lens, settings = case
    intervention, hand = CASES[name]
    batch = lens._batch([PROMPT], settings)
    sequences = [step.tokens_BT for step in lens.steps(batch, settings)]
    plain = [logits[0] for _, logits in replay(lens, batch, settings, sequences)]
    with lens.intervene(intervention):
        changed = list(replay(lens, batch, settings, sequences))
    moved = 0.0
    for x_1T, before, (first, logits_BLV), wanted in zip(
        sequences, plain, changed, passes_by_hand(lens, hand, sequences), strict=True
    ):
        assert first == first_of(lens, x_1T.shape[1])
        close(logits_BLV[0], wanted)
        moved = max(moved, float(divergence(before, logits_BLV[0]).max()))
    assert moved > 1e-5, "the intervention did nothing"


@pytest.mark.parametrize("name", [None, "mask-positions", "mask-anchors"])
def test_the_gold_answer_is_revealed_from_left_to_right_in_its_blocks(case: Any, name: str | None) -> None:
    lens, settings = case
    gold, P = [7, 11, 2, 40, 33, 8, 21], len(PROMPT.ids)
    intervention, hand = CASES[name] if name else (None, lambda seen: None)
    with lens.intervene(*([intervention] if intervention else [])):
        [found] = gold_surprise(lens, lens._batch([PROMPT], settings), settings, [gold])
    shift = -P % BLOCK if lens.family.name == "a2d-block" else 0
    sequences = []
    for count in range(len(gold)):
        end = ((P + count + shift) // BLOCK + 1) * BLOCK - shift
        end = min(end, P + NEW) if lens.family.name == "a2d-block" else end
        row = [*PROMPT.ids, *gold[:count], *[lens.mask_id] * (end - P - count)]
        sequences.append(torch.tensor([row]))
    total = 0.0
    for count, logits_LV in enumerate(passes_by_hand(lens, hand, sequences)):
        index = P + count - first_of(lens, sequences[count].shape[1])
        total -= float(logits_LV[index].double().log_softmax(-1)[gold[count]])
    assert found == pytest.approx(total / len(gold), abs=1e-5)
    assert math.isfinite(found)


def test_prompts_under_an_intervention_are_written_one_by_one(case: Any) -> None:
    """Rows that wait for each other would count their steps differently."""
    lens, settings = case
    prompts = [PROMPT, Prompt("", [3, 4, 5, 6, 7, 8, 9, 2, 1], [], gold=[])]
    spec = "mask-anchors(top(2), random=3)"
    options = {key: value for key, value in asdict(settings).items() if value is not None and key != "steps"}
    with lens.intervene(spec):
        together = lens.generate(prompts, sampler=options)
        alone = [lens.generate([prompt], sampler=options)[0] for prompt in prompts]
        assert [one.ids for one in together] == [one.ids for one in alone]
        if lens.rows_wait:
            with pytest.raises(FloatLensError, match="one such prompt at a time"):
                list(lens.steps(lens._batch(prompts, settings), settings))


@pytest.mark.parametrize(("kind", "options"), [("sdar", {}), ("a2d-llama", {"family": "a2d-block", "block_length": 8})])
def test_an_ablation_of_a_model_of_blocks(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    lens = fl.load(str(checkpoints.readable(tmp_path, kind)), dtype="float32", **options)
    samples = [Sample(str(n), f"What is {n}?", [f"n{n}"], [Passage(f"{n} is n{n}. " * n)]) for n in (1, 2, 3)]
    specs = ["scale-attention(1, positions=0)", "mask-positions(region=doc1)"]
    answers = ablate([lens], samples, specs, seeds=[0], sampling=Sampling(max_new_tokens=12))
    assert answers["error"].isna().all() or (answers["error"] == "").all()
    nothing = answers[answers["condition"] == "scale-attention(factor=1, positions=0)"]
    masked = answers[answers["condition"] == "mask-positions(region=doc1)"]
    assert len(nothing) == len(masked) == len(samples)
    assert (nothing["agreement"] == 1).all() and nothing["kl"].max() < 1e-6
    assert masked["kl"].min() > 1e-5 and masked["gold_nll"].notna().all()


def test_a_model_without_masks_is_refused(tmp_path: Path) -> None:
    lens = fl.load(str(checkpoints.diffusion_gemma(tmp_path)), dtype="float32")
    with pytest.raises(FloatLensError, match=r"has no masks.*use lens\.intervene"):
        Baseline(lens, [], Sampling(max_new_tokens=8))
