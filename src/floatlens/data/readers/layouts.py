"""Record layouts: the records of published data sets, and of your own columns, as samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floatlens.data.read import RecordLayout, register_reader
from floatlens.data.readers import fields
from floatlens.data.readers.fields import BadRecord, Record, answers_of, first_of, id_of, kind, passages_of, text_of
from floatlens.data.sample import Passage, Sample
from floatlens.errors import FloatLensError

META = ("kind", "relation", "subject", "type", "level")  # kept in a sample's meta, for findings that split by them
ROLES = ("id", "question", "answers", "passages", "gold")


def middle(record: Record, default_id: str) -> Sample:
    """Lost-in-the-middle files (Liu et al. 2023, arXiv 2307.03172): `question`, `answers`, `ctxs` with `isgold`."""
    return Sample(
        id_of(record, default_id),
        text_of(record, ("question",), "question"),
        answers_of(record, ("answers", "answer")),
        passages_of(record.get("ctxs"), "ctxs", record.get("gold")),
    )


def keyvalue(record: Record, default_id: str) -> Sample:
    """Key-value retrieval (Liu et al. 2023): the value of a key among many random pairs; each pair is a passage."""
    key, value = text_of(record, ("key",), "key"), text_of(record, ("value",), "value")
    pairs = record.get("ordered_kv_records")
    if not isinstance(pairs, list) or not all(isinstance(p, list) and len(p) == 2 for p in pairs):
        raise BadRecord(f"ordered_kv_records is {kind(pairs)}; expected a list of [key, value] pairs")
    passages = [Passage(str(v), title=str(k), gold=k == key) for k, v in pairs]
    if not any(passage.gold for passage in passages):
        raise BadRecord(f"key {key[:40]!r} is not among the {len(pairs)} pairs")
    return Sample(id_of(record, default_id), f"What is the value of {key}?", [value], passages)


def hotpot(record: Record, default_id: str) -> Sample:
    """HotpotQA and 2WikiMultihopQA: `context` with titled lists of sentences, `supporting_facts` by title.

    Both the published JSON ([[title, sentences], …]) and the Hub's columns ({"title": […], "sentences": […]}) are read.
    """
    titles = {str(title) for title, _ in _pairs(record.get("supporting_facts"), "supporting_facts", "sent_id")}
    passages = []
    for title, sentences in _pairs(record.get("context"), "context", "sentences"):
        text = "".join(str(s) for s in sentences) if isinstance(sentences, list) else str(sentences)
        passages.append(Passage(text.strip(), str(title), gold=str(title) in titles))
    question, answers = text_of(record, ("question",), "question"), answers_of(record, ("answer", "answers"))
    return Sample(id_of(record, default_id), question, answers, passages, _meta(record, ("type", "level")))


def _pairs(value: Any, name: str, second: str) -> list[tuple[Any, Any]]:
    if isinstance(value, dict) and isinstance(value.get("title"), list) and isinstance(value.get(second), list):
        return list(zip(value["title"], value[second], strict=False))
    if isinstance(value, list) and all(isinstance(item, list) and len(item) == 2 for item in value):
        return [(title, rest) for title, rest in value]
    raise BadRecord(f"{name} is {kind(value)}; expected [title, …] pairs")


def _meta(record: Record, names: tuple[str, ...]) -> dict[str, str]:
    return {name: record[name] for name in names if isinstance(record.get(name), str)}


def continuation(record: Record, default_id: str) -> Sample:
    """Plain texts to continue; `answers` may have the true continuation."""
    question, answers = text_of(record, ("continue",), "text"), fields.gold_answers(record)
    return Sample(id_of(record, default_id), question, answers, continuation=True)


def infill(record: Record, default_id: str) -> Sample:
    """Texts with masks to fill."""
    return Sample(id_of(record, default_id), text_of(record, ("infill",), "text"), answers_of(record), infill=True)


def kilt(record: Record, default_id: str) -> Sample:
    """KILT-like files, as the paper's: `input`, `output` with answers, `passage` with segments."""
    return Sample(
        id_of(record, default_id),
        text_of(record, ("input", "query", "question"), "question"),
        answers_of(record),
        passages_of(record.get("passage"), "passage", record.get("gold")),
        _meta(record, META),
    )


def columns(record: Record, default_id: str, names: Mapping[str, str] | None = None) -> Sample:
    """Records with a question, its answers, and optionally an id, passages and the gold ones; `names` are columns by role.

    The fields of a `Sample` are read too, so that `dataclasses.asdict(sample)` is a record of the same sample.
    """
    named = {role: (name,) for role, name in (names or {}).items()}
    passages = first_of(record, named.get("passages", fields.PASSAGES))
    gold = record.get(named.get("gold", ("gold",))[0])
    return Sample(
        id_of(record, default_id, named.get("id", fields.ID)),
        text_of(record, named.get("question", fields.QUESTION), "question"),
        answers_of(record, named.get("answers", ("answer", "answers", "output"))),
        passages_of(record[passages], passages, gold) if passages else [],
        _meta(meta, tuple(meta)) if isinstance(meta := record.get("meta"), dict) else {},
        infill=record.get("infill") is True,
        continuation=record.get("continuation") is True,
    )


def parse_columns(text: str) -> dict[str, str]:
    """Parse the column names of the command line."""
    names = {}
    for item in text.split(","):
        role, equals, name = item.partition("=")
        if not equals or role.strip() not in ROLES or not name.strip():
            raise FloatLensError(
                f"--columns {item!r} is not understood; write ROLE=COLUMN with a role of {', '.join(ROLES)}"
            )
        names[role.strip()] = name.strip()
    return names


# In the order in which a record is compared with them; those of users come before `columns`.
register_reader(RecordLayout("middle", middle, lambda record: "ctxs" in record), priority=10)
register_reader(RecordLayout("keyvalue", keyvalue, lambda record: "ordered_kv_records" in record), priority=10)
register_reader(
    RecordLayout("hotpot", hotpot, lambda record: {"supporting_facts", "context"} <= record.keys()), priority=10
)
register_reader(RecordLayout("continue", continuation, lambda record: record.get("continue") is not None), priority=10)
register_reader(
    RecordLayout("infill", infill, lambda record: record.get("infill") not in (None, True, False)), priority=10
)
register_reader(RecordLayout("kilt", kilt, lambda record: "passage" in record or "output" in record), priority=10)
register_reader(
    RecordLayout("columns", columns, lambda record: first_of(record, fields.QUESTION) is not None), priority=-10
)
