"""HotpotQA and 2WikiMultihopQA: `context` with titled lists of sentences, `supporting_facts` by title.

Both the published JSON ([[title, sentences], …]) and the hub's columns ({"title": […], "sentences": […]}) are read.
"""

from __future__ import annotations

from typing import Any

from floatlens.data.readers.fields import BadRecord, Record, answers_of, id_of, kind, text_of
from floatlens.data.readers.registry import RecordLayout, register_reader
from floatlens.data.sample import Passage, Sample


def sample(record: Record, default_id: str) -> Sample:
    """Make a sample of a record.

    >>> facts, context = [["B", 0]], [["A", ["x."]], ["B", ["y. ", "z."]]]
    >>> sample({"question": "Q?", "answer": "y", "context": context, "supporting_facts": facts}, "1").gold
    [1]
    """
    titles = {str(title) for title, _ in _pairs(record.get("supporting_facts"), "supporting_facts", "sent_id")}
    passages = []
    for title, sentences in _pairs(record.get("context"), "context", "sentences"):
        text = "".join(str(s) for s in sentences) if isinstance(sentences, list) else str(sentences)
        passages.append(Passage(text.strip(), str(title), gold=str(title) in titles))
    meta = {name: record[name] for name in ("type", "level") if isinstance(record.get(name), str)}
    question, answers = text_of(record, ("question",), "question"), answers_of(record, ("answer", "answers"))
    return Sample(id_of(record, default_id), question, answers, passages, meta)


def _pairs(value: Any, name: str, second: str) -> list[tuple[Any, Any]]:
    if isinstance(value, dict) and isinstance(value.get("title"), list) and isinstance(value.get(second), list):
        return list(zip(value["title"], value[second], strict=False))
    if isinstance(value, list) and all(isinstance(item, list) and len(item) == 2 for item in value):
        return [(title, rest) for title, rest in value]
    raise BadRecord(f"{name} is {kind(value)}; expected [title, …] pairs")


register_reader(
    RecordLayout("hotpot", sample, matches=lambda record: "supporting_facts" in record and "context" in record),
    priority=20,
)
