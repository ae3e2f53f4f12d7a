"""FloatLens: where language models anchor their attention while they write."""

from floatlens.anchors import parse_rule as rule
from floatlens.errors import FloatLensError
from floatlens.lens import Generation, Lens, load
from floatlens.observe.functions import observe
from floatlens.observe.registry import register as statistic
from floatlens.observe.statistic import Statistic
from floatlens.tasks.prompt import Prompt, Region
from floatlens.tasks.sample import Passage, Sample
from floatlens.trace import Trace
from floatlens.version import __version__

__all__ = [
    "FloatLensError",
    "Generation",
    "Lens",
    "Passage",
    "Prompt",
    "Region",
    "Sample",
    "Statistic",
    "Trace",
    "__version__",
    "load",
    "observe",
    "rule",
    "statistic",
]
