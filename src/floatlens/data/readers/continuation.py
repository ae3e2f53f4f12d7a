"""Plain texts to continue: {"continue": "It was the best of times, it was"}; `answers` may have the true continuation."""

from __future__ import annotations

from floatlens.data.readers import fields
from floatlens.data.readers.registry import RecordLayout, register_reader
from floatlens.data.sample import Sample

FIELD = ("continue",)


def sample(record: fields.Record, default_id: str) -> Sample:
    """Make a sample of a record.

    >>> sample({"continue": "It was the best of"}, "1").continuation
    True
    """
    return Sample(
        id=fields.id_of(record, default_id),
        question=fields.text_of(record, FIELD, "text"),
        answers=fields.gold_answers(record, fields.ANSWERS) if fields.first_of(record, fields.ANSWERS) else [],
        continuation=True,
    )


register_reader(
    RecordLayout("continue", sample, matches=lambda record: fields.first_of(record, FIELD) is not None), priority=11
)
