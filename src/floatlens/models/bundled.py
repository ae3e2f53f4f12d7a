"""The bundled models: where they are, checked against their SHA-256."""

import hashlib
import json
from functools import cache
from pathlib import Path

from floatlens.errors import FloatLensError

BUNDLED = ("tiny-arm", "tiny-mdm", "tiny-dream")
MODELS = Path(__file__).parent / "checkpoints"
SUMS = MODELS / "sha256.json"
LOADED = (".json", ".safetensors")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def record() -> None:
    """Write the list of checksums; done once, when the models are made."""
    sums = {
        name: {file.name: sha256(file) for file in sorted((MODELS / name).iterdir()) if file.suffix in LOADED}
        for name in BUNDLED
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
        raise FloatLensError(f"there is no bundled model {name!r}; choose one of {', '.join(BUNDLED)}")
    for file, expected in json.loads(SUMS.read_text()).get(name, {"model.safetensors": ""}).items():
        if not (MODELS / name / file).is_file():
            raise FloatLensError(f"{file} of {name} is missing from the installation; install floatlens again")
        if sha256(MODELS / name / file) != expected:
            raise FloatLensError(f"{file} of {name} is not the file that was released; install floatlens again")
    return MODELS / name
