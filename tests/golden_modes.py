"""The golden data of Nemotron-Labs-Diffusion as the tests use it: whatever the folder holds."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import floatlens as fl
from tests.golden_blocks import MODES, arrays
from tests.golden_data import read_json

NAMES = sorted(one.name for one in (MODES / "models").glob("nld_*"))
SPECIAL: dict[str, Any] = json.loads((MODES / "prompts.json").read_text())["nemotron_labs_diffusion"]


def all_runs(name: str) -> list[dict[str, Any]]:
    """The sampler runs of a model."""
    return read_json(MODES / f"samplers/{name}.json")


def runs(name: str, *codes: str) -> list[dict[str, Any]]:
    """Those that were made by one of these codes."""
    return [run for run in all_runs(name) if run["code"] in codes]


def forward(name: str) -> dict[str, Any]:
    return arrays(f"forward/{name}.npz")


def attention(name: str) -> dict[str, Any]:
    return arrays(f"attention/{name}.npz")


@lru_cache(maxsize=8)
def lens(name: str, family: str = "nemotron") -> fl.Lens:
    """The golden model, in float32, by default as a diffusion model."""
    return fl.load(str(MODES / "models" / name), dtype="float32", family=family)
