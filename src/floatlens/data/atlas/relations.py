"""Relations of the atlas: the column of a table that answers a question, with statements and questions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AtlasRelation:
    """One column of a table as a fact.

    In all texts `{s}` stands for the subject and `{o}` for the answer. Other names in braces are columns of the same
    row; a statement is used only for rows that fill all of its columns. `{a_COLUMN}` puts the indefinite article in
    front.

    Parameters
    ----------
    name: the relation, unique in the atlas.
    category: the table.
    column: the column that holds the answer.
    statements: passages of two or three sentences; each has `{s}` and `{o}`.
    questions: phrasings of the question; each has `{s}`.
    subject: the column that holds the subject.
    person: whether answers are people, whose family names are accepted too.
    """

    name: str
    category: str
    column: str
    statements: tuple[str, ...]
    questions: tuple[str, ...]
    subject: str = "name"
    person: bool = False


@dataclass(frozen=True)
class AtlasHop:
    """Two relations that share an entity, the bridge.

    A forward hop (`given="subject"`) follows the answer of the first fact: book → author → birthplace. A backward hop
    (`given="answer"`) starts from the answer of the first fact and asks about its subject: currency → country → capital.
    """

    first: str
    second: str
    questions: tuple[str, ...]
    given: str = "subject"
