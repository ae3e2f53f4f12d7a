"""Record layouts: the records of published data sets, and of your own columns, as samples.

Most layouts differ only in the names of their fields, so they are one function, `from_fields`, with other names.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from floatlens.data.read import Record, RecordLayout, register_reader
from floatlens.data.sample import Passage, Sample
from floatlens.errors import FloatLensError

ROLES = ("id", "question", "answers", "passages", "gold")
ID = ("id", "_id", "qid", "question_id")
QUESTION = ("question", "input", "query")
ANSWERS = ("output", "answer", "answers")  # in the order of the published code
PASSAGES = ("passages", "passage", "contexts", "context", "documents", "ctxs")
TEXT = ("text", "segment", "contents", "content", "passage", "paragraph_text", "document")
TITLE = ("title", "wikipedia_title", "name")
GOLD = ("gold", "isgold", "is_gold", "is_supporting")
META = ("kind", "relation", "subject", "type", "level")  # kept in a sample's meta, for findings that split by them


def from_fields(
    record: Record,
    *,
    id: Sequence[str] = ID,
    question: Sequence[str] = QUESTION,
    answers: Sequence[str] = ("answer", "answers", "output"),
    passages: Sequence[str] = PASSAGES,
    gold: Sequence[str] = ("gold",),
    infill: bool = False,
    continuation: bool = False,
) -> Sample:
    """Return the sample of a record, from the first of the named fields for each role.

    The fields of a `Sample` are read too, so that `dataclasses.asdict(sample)` is a record of the same sample.
    """
    shown = first_of(record, passages)
    more = record.get("meta")
    about = {name: record.get(name) for name in META} | (more if isinstance(more, dict) else {})
    return Sample(
        id_of(record, id),
        text_of(record, question, "question"),
        gold_answers(record, answers) if continuation else answers_of(record, answers),
        passages_of(record[shown], shown, record.get(gold[0])) if shown else [],
        {name: value for name, value in about.items() if isinstance(value, str)},
        infill=infill or record.get("infill") is True,
        continuation=continuation or record.get("continuation") is True,
    )


def keyvalue(record: Record) -> Sample:
    """Key-value retrieval (Liu et al. 2023): the value of a key among many random pairs; each pair is a passage."""
    key, value = text_of(record, ("key",), "key"), text_of(record, ("value",), "value")
    pairs = _pairs(record.get("ordered_kv_records"), "ordered_kv_records")
    passages = [Passage(str(v), title=str(k), gold=k == key) for k, v in pairs]
    if not any(passage.gold for passage in passages):
        raise FloatLensError(f"key {key[:40]!r} is not among the {len(pairs)} pairs")
    return Sample(id_of(record), f"What is the value of {key}?", [value], passages)


def hotpot(record: Record) -> Sample:
    """HotpotQA and 2WikiMultihopQA: `context` with titled lists of sentences, `supporting_facts` by title.

    Both the published JSON ([[title, sentences], …]) and the Hub's columns ({"title": […], "sentences": […]}) are read.
    """
    titles = {str(title) for title, _ in _pairs(record.get("supporting_facts"), "supporting_facts", "sent_id")}
    passages = []
    for title, sentences in _pairs(record.get("context"), "context", "sentences"):
        text = "".join(map(str, sentences)) if isinstance(sentences, list) else str(sentences)
        passages.append({"text": text.strip(), "title": str(title), "gold": str(title) in titles})
    return from_fields({**record, "passages": passages}, question=("question",))


def _pairs(value: Any, name: str, second: str = "") -> list[Sequence[Any]]:
    if isinstance(value, dict) and isinstance(value.get("title"), list) and isinstance(value.get(second), list):
        return list(zip(value["title"], value[second], strict=False))
    if isinstance(value, list) and all(isinstance(item, list) and len(item) == 2 for item in value):
        return value
    raise FloatLensError(f"{name} is {reprlib.repr(value)}; expected a list of pairs")


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


def first_of(record: Record, names: Sequence[str]) -> str | None:
    """Return the first of the names for which the record has a value."""
    return next((name for name in names if record.get(name) is not None), None)


def _field(record: Record, names: Sequence[str], role: str) -> tuple[str, Any]:
    """Return the first of the named fields that the record has, and its value; FloatLensError if it has none."""
    if name := first_of(record, names):
        return name, record[name]
    if empty := next((name for name in names if name in record), None):
        raise FloatLensError(f"{empty} is empty; expected the {role}")
    raise FloatLensError(
        f"has no {role}; expected the field {' or '.join(names)}, found {_fields(record)}; "
        f"name it with --columns {role}=NAME"
    )


def text_of(record: Record, names: Sequence[str], role: str) -> str:
    """Return the text of the first of the named fields that the record has."""
    name, value = _field(record, names, role)
    if isinstance(value, str) and value.strip():
        return value
    raise FloatLensError(f"{name} is {reprlib.repr(value)}; expected the {role} as a string")


def id_of(record: Record, names: Sequence[str] = ID) -> str:
    """Return the record's id as a string; empty if it has none."""
    name = first_of(record, names)
    if name is None:
        return ""
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise FloatLensError(f"{name} is {reprlib.repr(value)}; expected a string or an integer")
    return str(value)


def gold_answers(record: Record, names: Sequence[str] = ANSWERS) -> list[str]:
    """Return all accepted answers, as the paper's code finds them; blank ones and other types are left out."""
    name = first_of(record, names)
    value = record[name] if name else []
    if isinstance(value, Mapping):
        # SQuAD: {"text": [...]}; TriviaQA: {"value": ..., "aliases": [...]}
        texts, aliases = value.get("text"), value.get("aliases")
        aliases = aliases if isinstance(aliases, list) else []
        value = texts if isinstance(texts, list) else [value.get("value"), *aliases, value]
    answers = [_answer(item) for item in (value if isinstance(value, list) else [value])]
    return list(dict.fromkeys(text for text in answers if text))


def _answer(item: Any) -> str:
    if isinstance(item, Mapping):
        item = next((v for v in (item.get("answer"), item.get("text")) if isinstance(v, str)), None)
    return item.strip() if isinstance(item, str) else ""


def answers_of(record: Record, names: Sequence[str]) -> list[str]:
    """Return the accepted answers; FloatLensError if there is none."""
    name, value = _field(record, names, "answers")
    if answers := gold_answers(record, names):
        return answers
    raise FloatLensError(
        f"{name} is {reprlib.repr(value)}; expected a string or a list of strings, and one that is not blank"
    )


def passages_of(value: Any, name: str, gold: Any = None) -> list[Passage]:
    """Return passages from a list of strings or objects; `gold` may give the indices of the gold ones, from 0."""
    if isinstance(value, str | Mapping):
        value = [value] if value else []
    if not isinstance(value, list):
        raise FloatLensError(f"{name} is {reprlib.repr(value)}; expected a list of passages")
    passages = [_passage(item, f"{name}[{i}]") for i, item in enumerate(value)]
    if gold is None or (isinstance(gold, float) and math.isnan(gold)):
        return passages
    indices = gold if isinstance(gold, list) else [gold]
    for index in indices:
        if type(index) is not int or not 0 <= index < len(passages):
            raise FloatLensError(
                f"gold is {reprlib.repr(index)}; expected an index of the {len(passages)} passages, from 0"
            )
    return [Passage(p.text, p.title, gold=i in indices) for i, p in enumerate(passages)]


def _passage(item: Any, where: str) -> Passage:
    if isinstance(item, str):
        return Passage(item)
    if not isinstance(item, Mapping):
        raise FloatLensError(f"{where} is {reprlib.repr(item)}; expected a string or an object with a text")
    name = first_of(item, TEXT)
    title = item.get(first_of(item, TITLE) or "", "")
    text = item[name] if name else title
    if not name and not title:
        raise FloatLensError(f"{where} has no text; expected the field {' or '.join(TEXT[:3])}, found {_fields(item)}")
    if not isinstance(text, str) or not isinstance(title, str):
        raise FloatLensError(f"{where} has a text or title that is not a string")
    return Passage(text, title if name else "", gold=bool(item.get(first_of(item, GOLD) or "")))


def _fields(record: Record) -> str:
    return ", ".join(str(name) for name in list(record)[:8])[:200] or "none"


# Compared with a record in this order; those of users come before `columns`.
for _layout in (
    # Lost in the middle (Liu et al. 2023, arXiv 2307.03172)
    RecordLayout("middle", partial(from_fields, answers=("answers", "answer")), lambda record: "ctxs" in record),
    RecordLayout("keyvalue", keyvalue, lambda record: "ordered_kv_records" in record),
    RecordLayout("hotpot", hotpot, lambda record: {"supporting_facts", "context"} <= record.keys()),
    # Plain texts to continue; `answers` may have the true continuation
    RecordLayout(
        "continue",
        partial(from_fields, question=("continue",), answers=ANSWERS, passages=(), continuation=True),
        lambda record: record.get("continue") is not None,
    ),
    RecordLayout(
        "infill",
        partial(from_fields, question=("infill",), answers=ANSWERS, passages=(), infill=True),
        lambda record: record.get("infill") not in (None, True, False),
    ),
    # KILT-like files, as the paper's
    RecordLayout(
        "kilt",
        partial(from_fields, question=("input", "query", "question"), answers=ANSWERS),
        lambda record: "passage" in record or "output" in record,
    ),
):
    register_reader(_layout, priority=10)
register_reader(
    RecordLayout("columns", from_fields, lambda record: first_of(record, QUESTION) is not None), priority=-10
)
