"""How much is asked: `full` decides the claims and takes hours, `small` shows in minutes that everything works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ResultSizes:
    """Numbers of questions per data set; the traces of the small models come from three data sets."""

    traces: int
    questions: int
    causes: int
    robustness: int
    real: int
    deployed: int
    texts: int
    film: int


SIZES = {
    "full": ResultSizes(100, questions=500, causes=200, robustness=200, real=100, deployed=100, texts=200, film=32),
    "small": ResultSizes(2, questions=4, causes=2, robustness=4, real=2, deployed=4, texts=2, film=1),
}
