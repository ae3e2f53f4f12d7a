"""The stress tests by name. A new one is a file beside this one and a line here."""

from __future__ import annotations

from floatlens.errors import FloatLensError
from floatlens.evaluation.stress import layout, masks, noise, position, query
from floatlens.evaluation.stress.level import Stress

STRESSES = {module.STRESS.name: module.STRESS for module in (noise, position, layout, masks, query)}


def get(name: str) -> Stress:
    """The stress test of this name.

    >>> get("noise").axis
    'share of noise'
    """
    if name not in STRESSES:
        raise FloatLensError(f"there is no stress {name!r}; there are {', '.join(STRESSES)}")
    return STRESSES[name]
