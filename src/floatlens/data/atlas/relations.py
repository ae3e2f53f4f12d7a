"""Relations of the atlas: which column answers which question, and in which words.

`{s}` stands for the subject and `{o}` for the answer. Other names in braces are columns of the same row; a statement
is used only for rows that fill all of its columns. `{a_COLUMN}` puts the indefinite article in front.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Relation:
    """One column of a table as a fact.

    Parameters
    ----------
    name: the relation, unique in the atlas.
    category: the table.
    column: the column that holds the answer.
    statements: passages of two or three sentences.
    questions: phrasings of the question.
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
class Hop:
    """Two relations that share an entity, the bridge.

    A forward hop (`given="subject"`) follows the answer of the first fact: book → author → birthplace. A backward hop
    (`given="answer"`) starts from the answer of the first fact and asks about its subject: currency → country → capital.
    """

    first: str
    second: str
    questions: tuple[str, ...]
    given: str = "subject"


_WORK_AUTHOR = ("In which year was the author of {s} born?", "When was the writer of {s} born?")

RELATIONS = {
    relation.name: relation
    for relation in (
        Relation(
            "capital",
            "countries",
            "capital",
            (
                "{s} is a country in {continent}, and its capital is {o}. {note}.",
                "{s} has {o} as its capital. {note}. The currency of the country is the {currency}.",
                "{s} uses the {currency} as its currency. {note}. Its capital is {o}.",
                "Visitors to {s} often begin their trip in {o}, the capital. They pay for things with the {currency}.",
                "The capital of {s} is {o}. Schoolchildren all over the country learn its name and find it on the map.",
                "{s} is a country whose capital is {o}. {note}.",
            ),
            (
                "What is the capital of {s}?",
                "Which city is the capital of {s}?",
                "What is the name of the capital of {s}?",
                "{s} has which city as its capital?",
            ),
        ),
        Relation(
            "currency",
            "countries",
            "currency",
            (
                "The currency of {s} is the {o}. Shops and markets throughout the country show their prices in it.",
                "{s} is a country in {continent} with its capital in {capital}. {note}. People there pay with the {o}.",
                "People in {s} pay with the {o}, which is the official currency. The capital of the country is {capital}.",
                "{s} uses the {o} as its currency. {note}.",
                "Travellers who visit {s} need some money in the local currency, the {o}. Banks in the country change "
                "foreign notes and coins into it.",
            ),
            (
                "What is the currency of {s}?",
                "Which currency is used in {s}?",
                "With which currency do people pay in {s}?",
            ),
        ),
        Relation(
            "continent",
            "countries",
            "continent",
            (
                "{s} is a country in {o}. {note}. Its capital is {capital}.",
                "{s} is one of the countries of {o}. {note}. People there pay with the {currency}.",
                "Among the countries of {o} is {s}. Its capital is {capital}, and its currency is the {currency}.",
                "On a map of {o} one finds {s}. {note}.",
                "{s} belongs to {o}. {note}.",
            ),
            (
                "On which continent is {s}?",
                "Which continent does {s} belong to?",
                "In which continent is {s} located?",
            ),
        ),
        Relation(
            "language",
            "countries",
            "language",
            (
                "The official language of {s} is {o}. It is used in schools, courts and newspapers across the country.",
                "{s} is a country whose official language is {o}. {note}.",
                "Laws in {s} are written in {o}, the official language. The capital of the country is {capital}, and its "
                "currency is the {currency}.",
            ),
            ("What is the official language of {s}?", "Which language is the official one in {s}?"),
        ),
        Relation(
            "peak",
            "countries",
            "peak",
            (
                "The highest mountain in {s} is {o}. No other summit in the country rises higher above the sea.",
                "{s} is a country in {continent}. {note}. Its highest mountain is {o}.",
                "{o} is the highest mountain in {s}. Climbers who reach its summit stand higher than anyone else in the "
                "country.",
                "{s} has {o} as its highest mountain. {note}.",
            ),
            (
                "What is the highest mountain in {s}?",
                "Which mountain is the highest in {s}?",
                "What is the name of the highest peak in {s}?",
            ),
        ),
        Relation(
            "born",
            "people",
            "born",
            (
                "{s} was {a_nation} {job}. {He} was born in {o} and is best known for {known}.",
                "{s}, {a_nation} {job}, was born in {birthplace} in {o}. {He} is best known for {known}.",
                "The life of {s} began in {o}. {He} was {a_nation} {job} and is remembered for {known}.",
                "{s} was born in {o} and became {a_job} of great fame. {His} name is still known all over the world.",
                "In the year {o}, {s} was born. Today {he} is remembered as {a_nation} {job} and above all for {known}.",
            ),
            (
                "When was {s} born?",
                "In which year was {s} born?",
                "What year was {s} born?",
                "What is the birth year of {s}?",
            ),
        ),
        Relation(
            "birthplace",
            "people",
            "birthplace",
            (
                "{s} was {a_nation} {job}. {He} was born in {o} and is best known for {known}.",
                "{s}, {a_nation} {job}, was born in {born} in {o}. {He} is best known for {known}.",
                "{o} is the birthplace of {s}, {a_nation} {job}. {He} is remembered for {known}.",
                "{s} was born in {o} and became {a_job} of great fame. {His} name is still known all over the world.",
                "The {job} {s} came from {o}, the place of {his} birth. {He} is remembered for {known}.",
            ),
            (
                "Where was {s} born?",
                "In which place was {s} born?",
                "What is the birthplace of {s}?",
            ),
        ),
        Relation(
            "author",
            "books",
            "author",
            (
                "{s} is {a_kind} by {o}. It is about {about}, and it has been translated into many languages.",
                "{o} wrote {s}, {a_kind} about {about}. It appeared in {year} and is still widely read.",
                "The {kind} {s} is the work of {o}. It deals with {about}.",
                "{s}, {a_kind} by {o}, came out in {year}. It is about {about}.",
                "Readers around the world know {o} as the author of {s}. This {kind} is about {about}.",
            ),
            (
                "Who wrote {s}?",
                "Who is the author of {s}?",
                "Which author wrote the {kind} {s}?",
                "By whom was {s} written?",
            ),
            person=True,
        ),
        Relation(
            "number",
            "elements",
            "number",
            (
                "{s} is a chemical element with the atomic number {o}. {note}.",
                "{s} is known to chemists by the symbol {symbol} and the atomic number {o}. {note}.",
                "In the periodic table {s} stands in place {o}, which is its atomic number. {note}.",
                "The atomic number of {s} is {o}, and its chemical symbol is {symbol}. {note}.",
            ),
            (
                "What is the atomic number of {s}?",
                "Which atomic number does the element {s} have?",
                "What atomic number does {s} have in the periodic table?",
            ),
        ),
        Relation(
            "symbol",
            "elements",
            "name",
            (
                "{o} is a chemical element with the symbol {s}. {note}.",
                "Chemists use the symbol {s} for {o}, the element with the atomic number {number}. {note}.",
                "In the periodic table {o} is written as {s}. {note}.",
                "The chemical symbol {s} stands for the element {o}. {note}.",
            ),
            (
                "Which chemical element has the symbol {s}?",
                "What element does the chemical symbol {s} stand for?",
                "Which element is written as {s} in the periodic table?",
            ),
            subject="symbol",
        ),
        Relation(
            "namesake",
            "elements",
            "namesake",
            (
                "{s} is a chemical element that is named after {o}. {note}.",
                "The element {s}, which has the symbol {symbol}, takes its name from {o}. {note}.",
                "The name of the element {s} goes back to {o}. {note}.",
            ),
            (
                "After whom or what is the element {s} named?",
                "From whom or what does the element {s} take its name?",
            ),
        ),
    )
}

HOPS = (
    Hop("author", "born", _WORK_AUTHOR),
    Hop(
        "author",
        "birthplace",
        ("Where was the author of {s} born?", "What is the birthplace of the author of {s}?"),
    ),
    Hop(
        "currency",
        "capital",
        (
            "What is the capital of the country whose currency is the {s}?",
            "Which city is the capital of the country that uses the {s}?",
        ),
        given="answer",
    ),
    Hop(
        "peak",
        "capital",
        (
            "What is the capital of the country whose highest mountain is {s}?",
            "{s} is the highest mountain of a country; what is the capital of that country?",
        ),
        given="answer",
    ),
    Hop(
        "peak",
        "currency",
        (
            "What is the currency of the country whose highest mountain is {s}?",
            "Which currency is used in the country that has {s} as its highest mountain?",
        ),
        given="answer",
    ),
    Hop(
        "symbol",
        "number",
        (
            "What is the atomic number of the element with the symbol {s}?",
            "Which atomic number belongs to the element whose chemical symbol is {s}?",
        ),
    ),
    Hop(
        "symbol",
        "namesake",
        ("After whom or what is the element with the symbol {s} named?",),
    ),
    Hop(
        "namesake",
        "born",
        ("In which year was the person born after whom the element {s} is named?",),
    ),
    Hop(
        "namesake",
        "birthplace",
        ("Where was the person born after whom the element {s} is named?",),
    ),
    Hop(
        "namesake",
        "capital",
        ("What is the capital of the country after which the element {s} is named?",),
    ),
)
