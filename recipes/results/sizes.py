"""Sizes of the results: `full` decides the claims and takes hours, `small` shows in minutes that everything works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ResultSizes:
    """Numbers of questions per data set. Fields that begin with `real` are those of SmolLM2 and its adapters.

    The traces of the small models come from three data sets.
    """

    traces: int
    questions: int
    causes: int
    links: int
    robustness: int
    deployed: int
    texts: int
    film: int
    real: int
    real_answers: int
    real_nq: int
    real_causes: int
    real_deployed: int
    real_texts: int


SIZES = {
    "full": ResultSizes(
        traces=70,
        questions=500,
        causes=50,
        links=100,
        robustness=200,
        deployed=100,
        texts=200,
        film=32,
        real=100,
        real_answers=100,
        real_nq=200,
        real_causes=40,
        real_deployed=40,
        real_texts=40,
    ),
    "small": ResultSizes(
        traces=2,
        questions=4,
        causes=2,
        links=2,
        robustness=4,
        deployed=4,
        texts=2,
        film=1,
        real=2,
        real_answers=2,
        real_nq=2,
        real_causes=2,
        real_deployed=2,
        real_texts=1,
    ),
}
