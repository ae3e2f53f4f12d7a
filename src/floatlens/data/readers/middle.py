"""Lost-in-the-middle files (Liu et al. 2023, arXiv 2307.03172): `question`, `answers`, `ctxs` with `isgold`."""

from __future__ import annotations

from floatlens.data.readers.fields import Record, answers_of, id_of, passages_of, text_of
from floatlens.data.readers.registry import RecordLayout, register_reader
from floatlens.data.sample import Sample


def sample(record: Record, default_id: str) -> Sample:
    """Make a sample of a record.

    >>> sample({"question": "Who?", "answers": ["Ann"], "ctxs": [{"text": "b", "isgold": True}]}, "1").gold
    [0]
    """
    return Sample(
        id=id_of(record, default_id),
        question=text_of(record, ("question",), "question"),
        answers=answers_of(record, ("answers", "answer")),
        passages=passages_of(record.get("ctxs"), "ctxs", record.get("gold")),
    )


register_reader(RecordLayout("middle", sample, matches=lambda record: "ctxs" in record), priority=40)
