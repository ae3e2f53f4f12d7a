"""Records with named columns: a question, its answers, and optionally an id, passages and the gold ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floatlens.data.readers import fields
from floatlens.data.readers.registry import RecordLayout, register_reader
from floatlens.data.sample import Sample
from floatlens.errors import FloatLensError

ROLES = ("id", "question", "answers", "passages", "gold")


def sample(record: fields.Record, default_id: str, names: Mapping[str, str] | None = None) -> Sample:
    """Make a sample of a record; `names` are the columns by role.

    >>> sample({"q": "Who?", "a": "Ann"}, "1", {"question": "q", "answers": "a"}).question
    'Who?'
    """
    named = {role: (name,) for role, name in (names or {}).items()}
    passages = fields.first_of(record, named.get("passages", fields.PASSAGES))
    gold: Any = record.get(named.get("gold", ("gold",))[0])
    return Sample(
        id=fields.id_of(record, default_id, named.get("id", fields.ID)),
        question=fields.text_of(record, named.get("question", fields.QUESTION), "question"),
        answers=fields.answers_of(record, named.get("answers", (*fields.ANSWERS[1:], fields.ANSWERS[0]))),
        passages=fields.passages_of(record[passages], passages, gold) if passages else [],
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
    RecordLayout("columns", sample, matches=lambda record: fields.first_of(record, fields.QUESTION) is not None),
    priority=-10,
)
