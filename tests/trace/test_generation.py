"""The generation of a trace equals the result of generate."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import floatlens
from floatlens import keywords
from floatlens.trace.generation import Generation
from tests.models import checkpoints

IDS = list(range(3, 15))


@pytest.mark.parametrize("kind", ["llada", "dream", "causal"])
def test_a_trace_gives_the_generation_of_its_prompt(kind: str, tmp_path: Path) -> None:
    makers = {"llada": checkpoints.llada, "dream": checkpoints.dream}
    folder = makers[kind](tmp_path) if kind in makers else checkpoints.native(tmp_path, "llama")
    lens = floatlens.load(str(folder))
    for end in ((), lens.generate([IDS], max_new_tokens=8)[0].ids[3:4]):  # no end token, then one in the middle
        lens.end_ids = tuple(end)
        wanted = lens.generate([IDS], max_new_tokens=8)[0]
        found = Generation.from_trace(lens, lens.trace(IDS, max_new_tokens=8))
        assert (found.text, found.ids, found.steps, found.ended) == (
            wanted.text,
            wanted.ids,
            wanted.steps,
            wanted.ended,
        )
        assert found.confidence == pytest.approx(wanted.confidence, abs=1e-6)


def test_the_arguments_of_trace_are_named_in_its_signature() -> None:
    shared = {"max_new_tokens", "steps", "temperature", "seed", "block_length"}
    for method in (floatlens.Lens.generate, floatlens.Lens.trace, floatlens.Lens.traces, floatlens.Lens.watch):
        annotation = inspect.signature(method).parameters["options"].annotation
        assert shared <= getattr(keywords, annotation.removeprefix("Unpack[").removesuffix("]")).__annotations__.keys()
