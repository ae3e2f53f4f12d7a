"""Answers: the result of one question under one condition, the table of all, and the tables of earlier runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pandas as pd

from floatlens import untrusted
from floatlens.errors import FloatLensError
from floatlens.evaluation.metrics import SCORES, score
from floatlens.evaluation.sources import OPEN, WITHOUT_PASSAGES, Key
from floatlens.store.storage import hash_bytes
from floatlens.trace.generation import Generation

if TYPE_CHECKING:
    from floatlens.data.prompt import Prompt
    from floatlens.data.sample import Sample

Answers = pd.DataFrame | str | Path | Iterable[str | Path]
NEEDED = ("id", "model", "data", "condition", "accuracy", "kind")
MEASURES = (*SCORES, "agreement", "confidence", "kl", "gold_nll", "ended", "well_formed")  # see ablate.py
NUMBERS = (*MEASURES, "recall", "answer_recall", "x", "dose")  # columns that are floats
COUNTS = ("steps", "control_seed")  # columns of integers that may be missing
COLUMN_TYPES = (
    dict.fromkeys(NUMBERS, (int, float, None)) | dict.fromkeys(COUNTS, (int, None)) | {"role": str, "group": str}
)
OTHER_TYPES = (str, int, float, bool, None, [(int, float, None)])  # of a text


@dataclass
class AnswerRecord:
    """One question under one condition: question, answer and scores. Without an answer, `error` has the reason.

    `intervention` is the intervention that was active; `of` is the same, or for a control the one it is matched to. `prompt`
    is the hash of the prompt that is answered, and `numbers` has the further columns of an ablation or of a text.
    """

    id: str
    question: str
    gold: list[str]
    model: str = ""
    data: str = ""
    condition: str = OPEN
    answer: str = ""
    em: float | None = None
    accuracy: float | None = None
    accuracy_words: float | None = None
    f1: float | None = None
    confidence: float | None = None
    steps: int | None = None
    error: str | None = None
    passages: int = 0
    dropped: int = 0
    gold_at: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    new_tokens: int = 0
    recall: float | None = None
    answer_recall: float | None = None
    kind: str = ""
    stress: str = ""
    level: str = ""
    x: float | None = None
    intervention: str = ""
    of: str = ""
    prompt: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def before(cls, sample: Sample, prompt: Prompt | None, error: str | None, **columns: Any) -> Self:
        """Return the record of a question before it is answered; without a prompt, `error` is the reason."""
        record = cls(sample.id, sample.question, sample.answers, error=error, **columns)
        if record.condition not in WITHOUT_PASSAGES:
            record.recall, record.answer_recall = sample.meta.get("recall"), sample.meta.get("answer_recall")
        if prompt is not None:
            record.passages, record.gold_at = len(prompt.passages), list(prompt.gold)
            record.dropped, record.prompt_tokens = prompt.dropped, len(prompt.ids)
            record.prompt = hash_bytes(repr((prompt.ids, prompt.script, prompt.tail)).encode())[:16]
        return record

    @classmethod
    def from_result(cls, key: Key, value: Mapping[str, Any]) -> Self:
        """Return the record of a result in a run folder."""
        record = untrusted.make_record(cls, value, f"the result of {', '.join(key)}")
        if record.key != key:
            raise FloatLensError(f"the result {', '.join(key)} is of another kind or version; use another --out")
        for name, number in record.numbers.items():
            if hasattr(record, name) or not untrusted.matches(number, COLUMN_TYPES.get(name, OTHER_TYPES)):
                raise FloatLensError(f"the result of {', '.join(key)}: {name!r} cannot be {str(number)[:80]!r}")
        return record

    @property
    def key(self) -> Key:
        """The key of the result in the run folder. A traced question has no condition, and may have no data set."""
        return (*(part for part in (self.model, self.data, self.condition) if part), self.id)

    @property
    def name(self) -> str:
        """The name of the trace; a run of traces has one model."""
        return ", ".join(self.key) if self.condition else self.id

    @property
    def trace_id(self) -> str:
        """The sample's id in its trace, without the model, which the trace holds separately."""
        return ", ".join(self.key[1:])

    def with_answer(self, made: Generation) -> Self:
        """Return the record with an answer and its scores."""
        text = made.text.strip()
        values: dict[str, Any] = {"steps": int(made.steps), "new_tokens": len(made.ids), **score(text, self.gold)}
        return replace(self, answer=text, confidence=float(made.confidence), **values)

    def with_answer_of(self, other: AnswerRecord) -> Self:
        """Return the record with the answer of another question that has the same prompt."""
        if other.error is not None:
            return replace(self, error=other.error)
        same: dict[str, Any] = {n: getattr(other, n) for n in ("answer", "confidence", "steps", "new_tokens")}
        return replace(self, **same | score(other.answer, self.gold))


def answers_table(records: Sequence[AnswerRecord]) -> pd.DataFrame:
    """Return records as a table with the columns of `answers.parquet`, one row per question, model and condition."""
    names = [each.name for each in fields(AnswerRecord) if each.name not in ("prompt", "numbers")]
    rows = [{name: getattr(record, name) for name in names} | record.numbers for record in records]
    table = pd.DataFrame(rows, columns=None if rows else names)
    for name in table.columns.intersection([*NUMBERS]):
        table[name] = pd.to_numeric(table[name], errors="coerce").astype("float64")
    for name in table.columns.intersection([*COUNTS]):
        table[name] = table[name].astype("Int64")
    table["error"] = table["error"].astype(object).where(table["error"].notna(), None)
    return table


def answers_of(source: Answers) -> pd.DataFrame:
    """Return one table of answers from a table or one or more run folders; of duplicate answers the last one is kept."""
    if isinstance(source, pd.DataFrame):
        return source
    paths = [Path(source)] if isinstance(source, str | Path) else [Path(path) for path in source]
    found = read_answers(paths)
    if found.empty:
        raise FloatLensError(f"{', '.join(map(str, paths)) or 'nothing'} has no answers; run floatlens eval or stress")
    return found


def read_answers(paths: Iterable[Path]) -> pd.DataFrame:
    """Return the answers in files or run folders as one table, which may be empty."""
    tables = [table for table in map(_read, paths) if len(table)]
    found = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=[*NEEDED, "stress"])
    return found.drop_duplicates(["id", "model", "data", "condition"], keep="last").reset_index(drop=True)


def _read(path: Path) -> pd.DataFrame:
    file, root = (path / "answers.parquet", path) if path.is_dir() else (path, path.parent)
    try:
        table = untrusted.read_parquet(file, root)
    except FileNotFoundError:
        raise FloatLensError(f"{path} has no answers.parquet; create it with floatlens eval or stress") from None
    if missing := [name for name in NEEDED if name not in table]:
        raise FloatLensError(f"{file} lacks the column {missing[0]!r}, so it is not a table of answers by FloatLens")
    for name in table.columns.intersection([*NUMBERS, *NEEDED]):
        try:
            if name in NUMBERS:
                table[name] = pd.to_numeric(table[name])
            elif not table[name].map(lambda cell: isinstance(cell, str)).all():
                raise ValueError
        except (ValueError, TypeError):
            kind = "numbers" if name in NUMBERS else "text only"
            raise FloatLensError(f"{file}: the column {name!r} does not hold {kind}") from None
    return table
