"""FloatLens: where language models anchor their attention while they write.

Names are imported when they are first used, so that the command line answers quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from floatlens.errors import FloatLensError
from floatlens.version import __version__

if TYPE_CHECKING:
    from floatlens.anchors import parse_rule
    from floatlens.findings.absorption import absorption
    from floatlens.findings.drift import drift
    from floatlens.findings.flow import flow
    from floatlens.findings.geometry import geometry
    from floatlens.findings.heads import heads
    from floatlens.findings.tokens import tokens
    from floatlens.interventions.ablate_heads import AblateHeads
    from floatlens.interventions.add_sink import AddSink
    from floatlens.interventions.mask_anchors import MaskAnchors
    from floatlens.interventions.mask_positions import MaskPositions
    from floatlens.interventions.pin_anchors import PinAnchors
    from floatlens.interventions.scale_attention import ScaleAttention
    from floatlens.interventions.soft_cap import SoftCap
    from floatlens.lens import Generation, Lens, load
    from floatlens.npz import import_npz
    from floatlens.observe.functions import observe
    from floatlens.observe.registry import register
    from floatlens.observe.statistic import Statistic
    from floatlens.tasks.prompt import Prompt, Region
    from floatlens.tasks.sample import Passage, Sample
    from floatlens.trace import Trace

# public name: where it lives
_PLACES = {
    "AblateHeads": "floatlens.interventions.ablate_heads",
    "AddSink": "floatlens.interventions.add_sink",
    "Generation": "floatlens.lens",
    "Lens": "floatlens.lens",
    "MaskAnchors": "floatlens.interventions.mask_anchors",
    "MaskPositions": "floatlens.interventions.mask_positions",
    "Passage": "floatlens.tasks.sample",
    "PinAnchors": "floatlens.interventions.pin_anchors",
    "Prompt": "floatlens.tasks.prompt",
    "Region": "floatlens.tasks.prompt",
    "Sample": "floatlens.tasks.sample",
    "ScaleAttention": "floatlens.interventions.scale_attention",
    "SoftCap": "floatlens.interventions.soft_cap",
    "Statistic": "floatlens.observe.statistic",
    "Trace": "floatlens.trace",
    "absorption": "floatlens.findings.absorption",
    "drift": "floatlens.findings.drift",
    "flow": "floatlens.findings.flow",
    "geometry": "floatlens.findings.geometry",
    "heads": "floatlens.findings.heads",
    "import_npz": "floatlens.npz",
    "load": "floatlens.lens",
    "observe": "floatlens.observe",
    "parse_rule": "floatlens.anchors",
    "register": "floatlens.observe.registry",
    "study": "floatlens.study",
    "tokens": "floatlens.findings.tokens",
}

__all__ = [
    "AblateHeads",
    "AddSink",
    "FloatLensError",
    "Generation",
    "Lens",
    "MaskAnchors",
    "MaskPositions",
    "Passage",
    "PinAnchors",
    "Prompt",
    "Region",
    "Sample",
    "ScaleAttention",
    "SoftCap",
    "Statistic",
    "Trace",
    "__version__",
    "absorption",
    "drift",
    "flow",
    "geometry",
    "heads",
    "import_npz",
    "load",
    "observe",
    "parse_rule",
    "register",
    "study",
    "tokens",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'floatlens' has no attribute {name!r}")
    module = import_module(_PLACES[name])
    # floatlens.observe and floatlens.study are packages and functions: the packages can be called.
    value = module if module.__name__ == f"floatlens.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
