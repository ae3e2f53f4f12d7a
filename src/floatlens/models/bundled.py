"""The folders of the bundled models and adapters, checked against their SHA-256."""

import hashlib
import json
from functools import cache
from pathlib import Path

from floatlens.errors import FloatLensError, unknown_name

BUNDLED = ("tiny-arm", "tiny-mdm", "tiny-dream", "tiny-ssm")
# Adapters for SmolLM2-135M-Instruct (its weights come with the extra floatlens[smollm2]), with the resulting family.
ADAPTERS = {"smollm2-arm": "causal", "smollm2-canvas": "canvas", "smollm2-mdm": "a2d-shifted"}
MODELS = Path(__file__).parent / "checkpoints"
SUMS = MODELS / "sha256.json"
LOADED = (".json", ".safetensors")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def record() -> None:
    """Write the list of checksums; used once, when the models are released."""
    sums = {
        name: {file.name: sha256(file) for file in sorted((MODELS / name).iterdir()) if file.suffix in LOADED}
        for name in (*BUNDLED, *ADAPTERS)
        if (MODELS / name).is_dir()
    }
    SUMS.write_text(json.dumps(sums, indent=2) + "\n")


@cache
def path(name: str) -> Path:
    """The folder of a bundled model, every file of it checked against its SHA-256.

    >>> path("tiny-arm").name
    'tiny-arm'
    """
    if name not in BUNDLED:
        raise unknown_name("bundled model", name, BUNDLED)
    return _checked(name, "model.safetensors")


def available_adapters() -> list[str]:
    """Return the names of the adapters that this installation has."""
    return [name for name in ADAPTERS if (MODELS / name / "adapter_model.safetensors").is_file()]


@cache
def adapter_path(name: str) -> Path:
    """Return the folder of a bundled adapter, with every file checked against its SHA-256."""
    if name not in available_adapters():
        there = ", ".join((*BUNDLED, *available_adapters()))
        raise FloatLensError(f"model {name!r} is not part of this installation of floatlens; available: {there}")
    return _checked(name, "adapter_model.safetensors")


def _checked(name: str, weights: str) -> Path:
    for file, expected in json.loads(SUMS.read_text()).get(name, {weights: ""}).items():
        if not (MODELS / name / file).is_file():
            raise FloatLensError(f"{file} of {name} is missing from the installation; reinstall floatlens")
        if sha256(MODELS / name / file) != expected:
            raise FloatLensError(f"{file} of {name} does not match its published checksum; reinstall floatlens")
    return MODELS / name
