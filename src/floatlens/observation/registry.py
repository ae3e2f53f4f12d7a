"""The statistics, by name, and those that a trace takes unless told otherwise."""

from __future__ import annotations

from floatlens.errors import FloatLensError
from floatlens.observation.statistic import Statistic
from floatlens.observation.statistics.entropy import Entropy
from floatlens.observation.statistics.evidence import Evidence
from floatlens.observation.statistics.flow import Flow
from floatlens.observation.statistics.matrices import Attention, Keys, MeanAttention, Queries
from floatlens.observation.statistics.qk import QK
from floatlens.observation.statistics.qk_cos import QKCos
from floatlens.observation.statistics.qk_norm import QKNorm
from floatlens.observation.statistics.query_mass import QueryMass
from floatlens.observation.statistics.received import Received
from floatlens.observation.statistics.received_writing import ReceivedWriting
from floatlens.observation.statistics.value_norm import ValueNorm

STATISTICS: dict[str, type[Statistic]] = {
    kind.name: kind
    for kind in (
        Received, Entropy, QK, QKNorm, QKCos, ValueNorm, Flow, Evidence, QueryMass,
        ReceivedWriting, Attention, MeanAttention, Queries, Keys,
    )
}  # fmt: skip
DEFAULT = (
    "received", "received_writing", "entropy", "qk", "qk_norm", "qk_cos", "value_norm", "flow", "evidence", "query_mass",
)  # fmt: skip
NEEDS_GOLD = ("evidence", "query_mass")
MATRICES = ("attention", "attention_mean", "queries", "keys")


def register(kind: type[Statistic]) -> type[Statistic]:
    """Add a statistic of one's own, as a class decorator; it is then recorded by its name."""
    for attribute in ("name", "dims"):
        if not hasattr(kind, attribute):
            raise FloatLensError(f"statistic {kind.__name__} has no {attribute!r}; see docs/statistics.md")
    STATISTICS[kind.name] = kind
    return kind


def statistic(name: str) -> type[Statistic]:
    """A statistic by its name."""
    if name not in STATISTICS:
        raise FloatLensError(f"statistic {name!r} is not known; use some of {', '.join(STATISTICS)}")
    return STATISTICS[name]
