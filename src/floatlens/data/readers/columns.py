"""Records with named columns: a question, its answers, and optionally an id, passages and the gold ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floatlens.data.readers.fields import (
    ANSWERS,
    ID,
    PASSAGES,
    QUESTION,
    Record,
    answers_of,
    first_of,
    id_of,
    passages_of,
    text_of,
)
from floatlens.data.readers.registry import RecordLayout, register_reader
from floatlens.data.sample import Sample
from floatlens.errors import FloatLensError

ROLES = ("id", "question", "answers", "passages", "gold")


def sample(record: Record, default_id: str, names: Mapping[str, str] | None = None) -> Sample:
    """Make a sample of a record; `names` are the columns by role.

    >>> sample({"q": "Who?", "a": "Ann"}, "1", {"question": "q", "answers": "a"}).question
    'Who?'
    """
    named = {role: (name,) for role, name in (names or {}).items()}
    passages = first_of(record, named.get("passages", PASSAGES))
    gold: Any = record.get(named.get("gold", ("gold",))[0])
    return Sample(
        id=id_of(record, default_id, named.get("id", ID)),
        question=text_of(record, named.get("question", QUESTION), "question"),
        answers=answers_of(record, named.get("answers", (*ANSWERS[1:], ANSWERS[0]))),
        passages=passages_of(record[passages], passages, gold) if passages else [],
    )


def parse_names(text: str) -> dict[str, str]:
    """Parse the column names of the command line.

    >>> parse_names("question=prompt,answers=target")
    {'question': 'prompt', 'answers': 'target'}
    """
    names = {}
    for item in text.split(","):
        role, equals, name = item.partition("=")
        if not equals or role.strip() not in ROLES or not name.strip():
            raise FloatLensError(
                f"--columns {item!r} is not understood; write ROLE=COLUMN with a role of {', '.join(ROLES)}"
            )
        names[role.strip()] = name.strip()
    return names


register_reader(
    RecordLayout("columns", sample, matches=lambda record: first_of(record, QUESTION) is not None), priority=-10
)
