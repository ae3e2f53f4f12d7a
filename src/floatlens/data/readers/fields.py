"""Extract question, answers and passages from a record under the field names of different layouts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from floatlens.data.sample import Passage

Record = Mapping[str, Any]

ID = ("id", "_id", "qid", "question_id")
QUESTION = ("question", "input", "query")
ANSWERS = ("output", "answer", "answers")  # in the order of the published code
PASSAGES = ("passages", "passage", "contexts", "context", "documents", "ctxs")
TEXT = ("text", "segment", "contents", "content", "passage", "paragraph_text", "document")
TITLE = ("title", "wikipedia_title", "name")
GOLD = ("gold", "isgold", "is_gold", "is_supporting")


class BadRecord(Exception):
    """Raised by a layout when a record cannot be converted to a sample; the message is the reason."""


def text_of(record: Record, names: Sequence[str], what: str) -> str:
    """Return the first of the named fields that the record has; it must be a string that is not blank."""
    name = first_of(record, names)
    if name is None:
        raise BadRecord(_missing(record, names, what))
    value = record[name]
    if not isinstance(value, str):
        raise BadRecord(f"{name} is {kind(value)}; expected a string")
    if not value.strip():
        raise BadRecord(f"{name} is blank; expected the {what}")
    return value


def id_of(record: Record, default: str, names: Sequence[str] = ID) -> str:
    """Return the record's id as a string, or `default` if it has none."""
    name = first_of(record, names)
    if name is None:
        return default
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadRecord(f"{name} is {kind(value)}; expected a string or an integer")
    if not str(value).strip():
        raise BadRecord(f"{name} is blank; expected a string or an integer")
    return str(value)


def gold_answers(record: Record, names: Sequence[str] = ANSWERS) -> list[str]:
    """Return all accepted answers, as the paper's code finds them; blank ones and other types are left out."""
    name = first_of(record, names)
    if name is None:
        return []
    value = record[name]
    if isinstance(value, Mapping):
        # SQuAD: {"text": [...]}; TriviaQA: {"value": ..., "aliases": [...]}
        texts = value.get("text")
        value = texts if isinstance(texts, list) else [value.get("value"), *_listed(value.get("aliases")), value]
    answers = [_answer(item) for item in (value if isinstance(value, list) else [value])]
    return list(dict.fromkeys(text for text in answers if text))


def answers_of(record: Record, names: Sequence[str] = ANSWERS) -> list[str]:
    """Return the accepted answers; BadRecord if there is none."""
    name = first_of(record, names)
    if name is None:
        raise BadRecord(_missing(record, names, "answers"))
    answers = gold_answers(record, names)
    if not answers:
        value = record[name]
        if isinstance(value, list):
            inside = ", ".join(sorted({kind(item) for item in value})) or "nothing"
            raise BadRecord(f"{name} has no answer that is a non-blank string (it has {inside})")
        raise BadRecord(f"{name} is {kind(value)}; expected a string or a list of strings")
    return answers


def passages_of(value: Any, name: str, gold: Any = None) -> list[Passage]:
    """Return passages from a list of strings or objects; `gold` may give the indices of the gold ones, from 0."""
    if value is None:
        value = []
    if isinstance(value, str | Mapping):
        value = [value] if value else []
    if not isinstance(value, list):
        raise BadRecord(f"{name} is {kind(value)}; expected a list of passages")
    passages = [_passage(item, f"{name}[{i}]") for i, item in enumerate(value)]
    if gold is None or (isinstance(gold, float) and math.isnan(gold)):
        return passages
    indices = gold if isinstance(gold, list) else [gold]
    for index in indices:
        if isinstance(index, bool) or not isinstance(index, int):
            raise BadRecord(f"gold is {kind(index)}; expected the index of a passage, counted from 0")
        if not 0 <= index < len(passages):
            raise BadRecord(f"gold {index} is out of range; there are {len(passages)} passages, counted from 0")
    return [Passage(p.text, p.title, gold=i in indices) for i, p in enumerate(passages)]


def first_of(record: Record, names: Sequence[str]) -> str | None:
    """Return the first of the names for which the record has a value."""
    return next((name for name in names if record.get(name) is not None), None)


def kind(value: Any) -> str:
    """Describe a value in the words of JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"a number ({value})"
    if isinstance(value, str):
        return "a string" if value.strip() else "a blank string"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return f"a {type(value).__name__}"


def _answer(item: Any) -> str:
    if isinstance(item, Mapping):
        item = next((v for v in (item.get("answer"), item.get("text")) if isinstance(v, str)), None)
    return item.strip() if isinstance(item, str) else ""


def _passage(item: Any, where: str) -> Passage:
    if isinstance(item, str):
        return Passage(item)
    if not isinstance(item, Mapping):
        raise BadRecord(f"{where} is {kind(item)}; expected a string or an object with a text")
    name = first_of(item, TEXT)
    title = item.get(first_of(item, TITLE) or "", "")
    text = item[name] if name else ""
    if not name and not title:
        raise BadRecord(f"{where} has no text; expected the field {' or '.join(TEXT[:3])}, found {_fields(item)}")
    if not isinstance(text, str) or not isinstance(title, str):
        raise BadRecord(f"{where} has a text or title that is not a string")
    if not name:
        text, title = title, ""
    flag = first_of(item, GOLD)
    return Passage(text, title, gold=bool(item[flag]) if flag else False)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _missing(record: Record, names: Sequence[str], role: str) -> str:
    """The message for a missing role: the field is empty, or the record has none of the known names."""
    if empty := next((name for name in names if name in record), None):
        return f"{empty} is empty; expected the {role}"
    expected = f"expected the field {' or '.join(names)}, found {_fields(record)}"
    return f"has no {role}; {expected}; name it with --columns {role}=NAME"


def _fields(record: Record) -> str:
    names = ", ".join(str(name) for name in list(record)[:8])
    return names[:200] or "none"
