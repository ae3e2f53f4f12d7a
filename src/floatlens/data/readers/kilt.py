"""KILT-like files, as the paper's: `input`, `output` with answers, `passage` with segments."""

from __future__ import annotations

from floatlens.data.readers.fields import ANSWERS, QUESTION, Record, answers_of, id_of, passages_of, text_of
from floatlens.data.readers.registry import RecordLayout, register_reader
from floatlens.data.sample import Sample

NOTES = ("kind", "relation", "subject", "type", "level")  # kept in the sample's meta, for findings that split by them


def sample(record: Record, default_id: str) -> Sample:
    """Make a sample of a record.

    >>> sample({"input": "Who?", "output": [{"answer": "Ann"}], "passage": [{"segment": "Ann did."}]}, "1").answers
    ['Ann']
    """
    return Sample(
        id=id_of(record, default_id),
        question=text_of(record, ("input", "query", *QUESTION[:1]), "question"),
        answers=answers_of(record, ANSWERS),
        passages=passages_of(record.get("passage"), "passage", record.get("gold")),
        meta={name: record[name] for name in NOTES if isinstance(record.get(name), str)},
    )


register_reader(
    RecordLayout("kilt", sample, matches=lambda record: "passage" in record or "output" in record), priority=10
)
