"""The interventions by name, and how they are read from text. A new one is a file in this folder and a line here."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from floatlens.errors import FloatLensError
from floatlens.interventions.ablate_heads import AblateHeads
from floatlens.interventions.add_sink import AddSink
from floatlens.interventions.intervention import Intervention
from floatlens.interventions.mask_anchors import MaskAnchors
from floatlens.interventions.mask_positions import MaskPositions
from floatlens.interventions.pin_anchors import PinAnchors
from floatlens.interventions.scale_attention import ScaleAttention
from floatlens.interventions.soft_cap import SoftCap
from floatlens.interventions.spec import read

INTERVENTIONS: dict[str, type[Intervention]] = {
    kind.name: kind for kind in (MaskAnchors, MaskPositions, PinAnchors, ScaleAttention, SoftCap, AblateHeads, AddSink)
}


def parse(spec: str | Intervention) -> Intervention:
    """An intervention from its text; settings by name or in order.

    >>> parse("mask-anchors(sigma(3), layers=0:4)")
    MaskAnchors(rule='sigma(k=3)', layers='0:4', heads=None, regions=None, random=None)
    >>> str(parse("ablate-heads(top(4))"))
    'ablate-heads(heads=top(4, by=retrieval))'
    """
    if isinstance(spec, Intervention):
        return spec
    if not isinstance(spec, str):
        raise FloatLensError(
            f"intervention {spec!r} is neither an intervention nor its text, such as mask-anchors(top(1))"
        )
    name, given = read(spec)
    if name not in INTERVENTIONS:
        raise FloatLensError(f"intervention {name!r} is not known; use one of {', '.join(INTERVENTIONS)}")
    kind: Any = INTERVENTIONS[name]
    known = [field.name for field in fields(kind)]
    settings: dict[str, str] = {}
    for place, (key, value) in enumerate(given):
        key = key or (known[place] if place < len(known) else "")
        if key not in known:
            said = key or value
            raise FloatLensError(f"intervention {spec!r}: {said!r} is not understood; {name} takes {', '.join(known)}")
        if key in settings:
            raise FloatLensError(f"intervention {spec!r}: {key} is given twice")
        settings[key] = value
    missing = [f.name for f in fields(kind) if f.name not in settings and f.default is MISSING]
    if missing:
        raise FloatLensError(f"intervention {spec!r} needs {missing[0]}; write {name}({missing[0]}=...)")
    found: Intervention = kind(**settings)
    return found
