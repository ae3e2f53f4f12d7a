"""Texts with masks to fill: {"infill": "The [MASK] of France is Paris.", "answers": ["capital"]}."""

from __future__ import annotations

from floatlens.data.readers import fields
from floatlens.data.readers.registry import RecordLayout, register_reader
from floatlens.data.sample import Sample

FIELD = ("infill",)


def sample(record: fields.Record, default_id: str) -> Sample:
    """Make a sample of a record.

    >>> sample({"infill": "The [MASK] of France is Paris.", "answers": ["capital"]}, "1").infill
    True
    """
    return Sample(
        id=fields.id_of(record, default_id),
        question=fields.text_of(record, FIELD, "text"),
        answers=fields.answers_of(record),
        infill=True,
    )


register_reader(
    RecordLayout("infill", sample, matches=lambda record: fields.first_of(record, FIELD) is not None), priority=10
)
