"""Each intervention gives the logits of its definition, computed independently from full matrices, to 1e-5."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import floatlens as fl
from floatlens.anchors import find_anchors
from floatlens.data.prompt import Prompt, Region
from floatlens.decode.network import Passes
from tests.interventions.by_hand import Hand, Seen, by_hand
from tests.models import checkpoints

REGIONS = [Region("query", 1, 4), Region("doc1", 5, 9)]
PROMPTS = [
    Prompt("", [1, 5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45], REGIONS, gold=[0]),
    Prompt("", [1, 8, 3, 40, 22, 11, 9, 30, 4], REGIONS, gold=[0]),
]
NEW = 5


def anchors(seen: Seen, rule: str) -> list[int]:
    attention = "causal" if seen.causal else "bidirectional"
    return [int(j) for j in np.flatnonzero(find_anchors(seen.received_T, rule, attention))]


def mask_anchors(rule: str, layers: list[int], heads: list[int] | None = None, span: range | None = None) -> Hand:
    def hand(seen: Seen) -> None:
        if seen.layer in layers:
            seen.hide([j for j in anchors(seen, rule) if span is None or j in span], heads)

    return hand


def mask_positions(columns: list[int]) -> Hand:
    return lambda seen: seen.hide(columns)


def pin(rule: str, step: int) -> Hand:
    def hand(seen: Seen) -> None:
        if seen.step < step:
            return
        found, a = anchors(seen, rule), seen.received_T
        if "pinned" not in seen.memory:
            seen.memory["pinned"] = {j: a[j] for j in found}
            return
        held = seen.memory["pinned"]
        rest = [j for j in range(len(a)) if j not in held and j not in found]
        level = float(np.mean([a[j] for j in rest]))
        logs = {j: math.log(max(level, 1e-6) / max(a[j], 1e-6)) for j in found if j not in held}
        logs |= {j: math.log(max(share, 1e-6) / max(a[j], 1e-6)) for j, share in held.items()}
        seen.weigh(logs)

    return hand


def pin_over_layers(rule: str, first: int) -> Hand:
    def hand(seen: Seen) -> None:
        found, a = anchors(seen, rule), seen.received_T
        if seen.layer < first:
            return
        if seen.layer == first:
            shares[seen.memory["index"]] = {j: a[j] for j in found}
            return
        held = shares[seen.memory["index"]]
        rest = [j for j in range(len(a)) if j not in held and j not in found]
        level = float(np.mean([a[j] for j in rest]))
        wanted = {j: level for j in found} | held
        seen.weigh({j: math.log(max(share, 1e-6) / max(a[j], 1e-6)) for j, share in wanted.items()})

    shares: dict[int, dict[int, float]] = {}
    return hand


def move(rule: str, by: int, heads: list[int] | None = None) -> Hand:
    def hand(seen: Seen) -> None:
        found, a = anchors(seen, rule), seen.received_T
        taken = set(found)
        logs: dict[int, float] = {}
        for j in found:
            place = (j + by) % len(a)
            while place in taken and len(taken) < len(a):
                place = (place + 1) % len(a)
            if place in taken:
                continue
            taken.add(place)
            logs[j] = math.log(max(a[place], 1e-6) / max(a[j], 1e-6))
            logs[place] = math.log(max(a[j], 1e-6) / max(a[place], 1e-6))
        seen.weigh(logs, heads)

    return hand


def scale(factor: float, columns: list[int], heads: list[int]) -> Hand:
    return lambda seen: seen.weigh(dict.fromkeys(columns, math.log(factor)), heads)


def sharpen(factor: float, heads: list[int]) -> Hand:
    def hand(seen: Seen) -> None:
        seen.logits_HQT[heads] *= factor

    return hand


def cap(value: float) -> Hand:
    def hand(seen: Seen) -> None:
        seen.logits_HQT = torch.where(
            seen.logits_HQT > -math.inf, value * torch.tanh(seen.logits_HQT / value), seen.logits_HQT
        )

    return hand


def sink(score: float, heads: list[int]) -> Hand:
    def hand(seen: Seen) -> None:
        seen.sink_H = torch.full((seen.logits_HQT.shape[0],), -math.inf)
        seen.sink_H[heads] = score

    return hand


def zero(pairs: list[tuple[int, int]]) -> Hand:
    def hand(seen: Seen) -> None:
        seen.zeroed = [head for layer, head in pairs if layer == seen.layer]

    return hand


def both(*hands: Hand) -> Hand:
    def hand(seen: Seen) -> None:
        for one in hands:
            one(seen)

    return hand


CASES: dict[str, tuple[list[Any], Hand]] = {
    "mask-anchors": ([fl.MaskAnchors("sigma(1)")], mask_anchors("sigma(1)", [0, 1, 2])),
    "mask-anchors, some": (
        [fl.MaskAnchors("top(5)", layers=slice(1, 3), heads=[0, 3], regions="query")],
        mask_anchors("top(5)", [1, 2], [0, 3], range(1, 4)),
    ),
    "mask-anchors, first": ([fl.MaskAnchors("first", layers=0)], mask_anchors("first", [0])),
    "mask-anchors, share": ([fl.MaskAnchors("share(0.12)")], mask_anchors("share(0.12)", [0, 1, 2])),
    "mask-positions": ([fl.MaskPositions([0, 7])], mask_positions([0, 7])),
    "mask-positions, region": ([fl.MaskPositions(region="gold")], mask_positions([5, 6, 7, 8])),
    "mask-positions, start": ([fl.MaskPositions(slice(0, 4))], mask_positions([0, 1, 2, 3])),
    "pin-anchors": ([fl.PinAnchors(0, "sigma(1)")], pin("sigma(1)", 0)),
    "pin-anchors, later": ([fl.PinAnchors(2, "top(2)")], pin("top(2)", 2)),
    "pin-anchors, layers": ([fl.PinAnchors(rule="sigma(1)", across="layers")], pin_over_layers("sigma(1)", 0)),
    "pin-anchors, from the second layer": (
        [fl.PinAnchors(rule="top(3)", layers=slice(1, 3), across="layers")],
        pin_over_layers("top(3)", 1),
    ),
    "move-anchors": ([fl.MoveAnchors(3, "sigma(1)")], move("sigma(1)", 3)),
    "move-anchors, many": ([fl.MoveAnchors(1, "top(5)", heads=[1, 3])], move("top(5)", 1, [1, 3])),
    "scale-attention": ([fl.ScaleAttention(3.0, region="doc1", heads=[1, 2])], scale(3.0, [5, 6, 7, 8], [1, 2])),
    "scale-attention, all": ([fl.ScaleAttention(0.5)], sharpen(0.5, [0, 1, 2, 3])),
    "scale-attention, heads": ([fl.ScaleAttention(0.5, heads=2)], sharpen(0.5, [2])),
    "soft-cap": ([fl.SoftCap(1.5)], cap(1.5)),
    "add-sink": ([fl.AddSink(1.0)], sink(1.0, [0, 1, 2, 3])),
    "add-sink, heads": ([fl.AddSink(1.0, heads=[0, 2])], sink(1.0, [0, 2])),
    "ablate-heads": ([fl.AblateHeads([(0, 1), (2, 3)])], zero([(0, 1), (2, 3)])),
    "together": (
        [fl.SoftCap(3.0), fl.MaskPositions(0), fl.ScaleAttention(2.0, positions=3), fl.AddSink(0.5)],
        both(cap(3.0), mask_positions([0]), scale(2.0, [3], [0, 1, 2, 3]), sink(0.5, [0, 1, 2, 3])),
    ),
    "masks together": (
        [fl.MaskAnchors("top(2)"), fl.MaskPositions(1), fl.AblateHeads([(1, 0)])],
        both(mask_anchors("top(2)", [0, 1, 2]), mask_positions([1]), zero([(1, 0)])),
    ),
}
# Where the definition itself changes nothing: no position has that share; the pinned anchors have left the window.
QUIET = {("mask-anchors, share", "dream-gqa"), ("mask-anchors, share", "bert")}
QUIET |= {("pin-anchors", "mistral-window"), ("pin-anchors, later", "mistral-window")}
FAMILIES: dict[str, Callable[[Path], Path]] = {
    "llada": checkpoints.llada,
    "dream-gqa": checkpoints.dream,
    "llama-gqa": lambda folder: checkpoints.native(folder, "llama"),
    "mistral-window": lambda folder: checkpoints.native(folder, "mistral-window"),
    "bert": lambda folder: checkpoints.native(folder, "bert"),
}


@pytest.fixture(scope="module")
def lenses(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], fl.Lens]:
    made: dict[str, fl.Lens] = {}

    def lens(name: str) -> fl.Lens:
        if name not in made:
            made[name] = fl.load(str(FAMILIES[name](tmp_path_factory.mktemp(name))), dtype="float32")
            made[name].end_ids = ()  # every row writes all its tokens
        return made[name]

    return lens


def logits_of(
    lens: fl.Lens,
    prompts: list[Prompt],
    monkeypatch: pytest.MonkeyPatch,
    state: dict[str, Any] | None = None,
    **settings: Any,
) -> torch.Tensor:
    """Logits of all forward passes of a generation (step, row, position, vocabulary); `state` counts the steps."""
    seen: list[torch.Tensor] = []
    for name in ("logits", "extend"):
        call = getattr(Passes, name)

        def watch(self: Passes, *args: Any, call: Any = call) -> Any:
            made = call(self, *args)
            seen.append(made[:, -NEW:].clone())
            if state is not None:
                state["step"] += 1
            return made

        monkeypatch.setattr(Passes, name, watch)
    lens.generate(prompts, max_new_tokens=NEW, sampler=settings)
    monkeypatch.undo()
    return torch.stack(seen)


def by_definition(
    lens: fl.Lens, hand: Hand, prompts: list[Prompt], monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> torch.Tensor:
    """The same, computed by hand."""
    longest = max(len(p.ids) for p in prompts)
    with by_hand(lens.model, hand, [longest - len(p.ids) for p in prompts], len(prompts)) as state:
        return logits_of(lens, prompts, monkeypatch, state, **settings)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal to 1e-5 of the logits' size; they are not bounded by 1."""
    assert bool(found.isfinite().all())
    scale = max(1.0, float(wanted.abs().max()))
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), atol=1e-5 * scale, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", CASES)
def test_the_logits_are_those_of_the_definition(
    case: str, family: str, lenses: Callable[[str], fl.Lens], monkeypatch: pytest.MonkeyPatch
) -> None:
    lens = lenses(family)
    interventions, hand = CASES[case]
    plain = logits_of(lens, PROMPTS, monkeypatch)
    with lens.intervene(*interventions):
        found = logits_of(lens, PROMPTS, monkeypatch)
    wanted = by_definition(lens, hand, PROMPTS, monkeypatch)
    close(found, wanted)
    if (case, family) not in QUIET:
        assert float((found - plain).abs().max()) > 1e-3, "the intervention did nothing"


@pytest.mark.parametrize("case", CASES)
def test_guidance_changes_both_halves_of_its_batch(
    case: str, lenses: Callable[[str], fl.Lens], monkeypatch: pytest.MonkeyPatch
) -> None:
    lens = lenses("llada")
    interventions, hand = CASES[case]
    with lens.intervene(*interventions):
        found = logits_of(lens, PROMPTS, monkeypatch, cfg_scale=1.0)
    assert found.shape[1] == 2 * len(PROMPTS)
    close(found, by_definition(lens, hand, PROMPTS, monkeypatch, cfg_scale=1.0))


@pytest.mark.parametrize("family", ["llada", "llama-gqa", "mistral-window"])
@pytest.mark.parametrize("case", [*CASES, "control", "control of pinning", "control of moving", "kind"])
def test_a_batch_gives_what_its_rows_give_alone(
    case: str, family: str, lenses: Callable[[str], fl.Lens], monkeypatch: pytest.MonkeyPatch
) -> None:
    lens = lenses(family)
    more = {
        "control": [fl.MaskAnchors("top(2)", random=3)],
        "control of pinning": [fl.PinAnchors(0, "top(2)", random=3)],
        "control of moving": [fl.MoveAnchors(2, "top(2)", random=3)],
        "kind": [fl.MaskPositions(region="doc1", random=1)],
    }
    interventions = more[case] if case in more else CASES[case][0]
    with lens.intervene(*interventions):
        together = logits_of(lens, PROMPTS, monkeypatch)
        for row, prompt in enumerate(PROMPTS):
            alone = logits_of(lens, [prompt], monkeypatch)
            close(together[:, row : row + 1], alone)


def test_softcap_and_sinks_that_a_model_brings_itself_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lens = fl.load(str(checkpoints.native(tmp_path, "gemma2-softcap")), dtype="float32")
    lens.end_ids = ()
    with lens.intervene(fl.MaskAnchors("top(2)"), fl.AddSink(1.0)):
        found = logits_of(lens, PROMPTS, monkeypatch)
    hand = both(mask_anchors("top(2)", [0, 1, 2]), sink(1.0, [0, 1, 2, 3]))
    close(found, by_definition(lens, hand, PROMPTS, monkeypatch))
