"""One question under one condition: its row in `answers.parquet`, and what is measured of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import pandas as pd

from floatlens.data.metrics import normalise, score
from floatlens.data.prompt import Prompt
from floatlens.evaluation.ablate.condition import PLAIN
from floatlens.evaluation.evaluate import Row
from floatlens.lens import Generation

MEASURES = (
    "em",
    "accuracy",
    "accuracy_words",
    "f1",
    "agreement",
    "confidence",
    "kl",
    "gold_nll",
    "ended",
    "well_formed",
)


@dataclass
class Outcome(Row):
    """One question under one condition.

    agreement    1 if the answer is the un-intervened one, after normalisation
    kl           mean over the tokens of the un-intervened answer of KL(un-intervened ‖ this), in nats, each at the step
                 that committed it, along the un-intervened trajectory
    gold_nll     mean negative log probability of the gold answer's tokens, revealed from left to right, in nats
    ended        1 if an end token was written
    well_formed  1 if it ended, says something, holds no special token, and repeats no word three times in a row
    """

    intervention: str = ""
    role: str = PLAIN
    group: str = ""
    dose: float | None = None
    of: str = ""
    control_seed: int | None = None
    agreement: float | None = None
    kl: float | None = None
    gold_nll: float | None = None
    ended: float | None = None
    well_formed: float | None = None


@dataclass(frozen=True)
class Measured:
    """What one question came to under one condition."""

    answer: Generation
    agreement: float
    kl: float | None
    gold_nll: float | None


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """The rows as `answers.parquet` has them."""
    made = pd.DataFrame([asdict(row) for row in rows], columns=list(Outcome.__dataclass_fields__))
    for name in (*MEASURES, "dose", "recall", "answer_recall", "x"):
        made[name] = pd.to_numeric(made[name], errors="coerce").astype("float64")
    for name in ("steps", "control_seed"):
        made[name] = made[name].astype("Int64")
    made["error"] = made["error"].astype(object).where(made["error"].notna(), None)
    return made


def filled(row: Outcome, prompt: Prompt, measured: Measured, special: Sequence[int]) -> Outcome:
    """A row with its scores."""
    answer = measured.answer
    text = answer.text.strip()
    em, accuracy, accuracy_words, f1 = score(text, row.gold)
    return replace(
        row,
        answer=text,
        em=em,
        accuracy=accuracy,
        accuracy_words=accuracy_words,
        f1=f1,
        confidence=float(answer.confidence),
        steps=int(answer.steps),
        new_tokens=len(answer.ids),
        passages=len(prompt.passages),
        dropped=prompt.dropped,
        gold_at=list(prompt.gold),
        prompt_tokens=len(prompt.ids),
        agreement=measured.agreement,
        kl=measured.kl,
        gold_nll=measured.gold_nll,
        ended=float(answer.ended),
        well_formed=float(well_formed(answer, special)),
    )


def well_formed(answer: Generation, special: Sequence[int] = ()) -> bool:
    """Whether an answer ended, says something, holds no special token, and repeats no word three times in a row.

    >>> well_formed(Generation("in Paris", [5, 6], 2, 0.9, True)), well_formed(Generation("no no no", [7] * 3, 3, 0.9, True))
    (True, False)
    """
    words = normalise(answer.text).split()
    stutters = any(words[i] == words[i + 1] == words[i + 2] for i in range(len(words) - 2))
    return answer.ended and bool(words) and not stutters and not set(answer.ids) & set(special)
