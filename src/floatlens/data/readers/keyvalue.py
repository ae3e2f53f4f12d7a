"""Key-value retrieval (Liu et al. 2023): find the value of a key among many random pairs; each pair is a passage."""

from __future__ import annotations

from floatlens.data.readers.fields import BadRecord, Record, id_of, kind, text_of
from floatlens.data.readers.registry import RecordLayout, register_reader
from floatlens.data.sample import Passage, Sample


def sample(record: Record, default_id: str) -> Sample:
    """Make a sample of a record.

    >>> sample({"ordered_kv_records": [["k", "v"], ["l", "w"]], "key": "l", "value": "w"}, "1").gold
    [1]
    """
    key, value = text_of(record, ("key",), "key"), text_of(record, ("value",), "value")
    pairs = record.get("ordered_kv_records")
    if not isinstance(pairs, list) or not all(isinstance(p, list) and len(p) == 2 for p in pairs):
        raise BadRecord(f"ordered_kv_records is {kind(pairs)}; expected a list of [key, value] pairs")
    passages = [Passage(str(v), title=str(k), gold=k == key) for k, v in pairs]
    if not any(passage.gold for passage in passages):
        raise BadRecord(f"key {key[:40]!r} is not among the {len(pairs)} pairs")
    return Sample(id_of(record, default_id), f"What is the value of {key}?", [value], passages)


register_reader(RecordLayout("keyvalue", sample, matches=lambda record: "ordered_kv_records" in record), priority=30)
