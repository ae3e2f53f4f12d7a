"""The interventions by name, and the parser of their text."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar

from floatlens.errors import FloatLensError
from floatlens.interventions.intervention import Intervention
from floatlens.registry import Registry
from floatlens.specs import parse_spec

MODULES = (
    "ablate_heads", "add_sink", "mask_anchors", "mask_positions", "move_anchors", "pin_anchors", "scale_attention",
    "soft_cap",
)  # fmt: skip
INTERVENTIONS: Registry[type[Intervention]] = Registry("intervention", "floatlens.interventions", MODULES)
EXAMPLE = "mask-anchors(rule=sigma(3))"

Class = TypeVar("Class", bound=type[Intervention])


def register_intervention(kind: Class) -> Class:
    """Register a subclass of `Intervention` under its `name`, as a class decorator above `@dataclass(frozen=True)`."""
    if not hasattr(kind, "name"):
        raise FloatLensError(f"intervention {kind.__name__} has no 'name'; see docs/howto/new-intervention.md")
    if "__dataclass_fields__" not in vars(kind) or not is_dataclass(kind):
        raise FloatLensError(f"intervention {kind.__name__} is not a dataclass; put @dataclass(frozen=True) above it")
    INTERVENTIONS.add(kind.name, kind)
    return kind


def parse_intervention(spec: str | Intervention) -> Intervention:
    """Parse an intervention from its text, with settings by name or in order.

    >>> parse_intervention("mask-anchors(sigma(3), layers=0:4)")
    MaskAnchors(rule='sigma(k=3)', layers='0:4', heads=None, regions=None, random=None)
    >>> str(parse_intervention("ablate-heads(top(4))"))
    'ablate-heads(heads=top(4, by=retrieval))'
    """
    if isinstance(spec, Intervention):
        return spec
    if not isinstance(spec, str):
        raise FloatLensError(f"intervention {spec!r} is neither an intervention nor a string such as {EXAMPLE}")
    found = parse_spec(spec, "intervention", EXAMPLE)
    kind: Any = INTERVENTIONS[found.name]
    settings = found.bind([field.name for field in fields(kind)])
    missing = [f.name for f in fields(kind) if f.name not in settings and f.default is MISSING]
    if missing:
        raise found.error(f"it needs {missing[0]}; write {found.name}({missing[0]}=...)")
    made: Intervention = kind(**settings)
    return made
