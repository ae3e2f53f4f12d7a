"""Relations: the statements and questions about an entity.

Each relation has a kind of subject, a kind of object, several statements and several questions. The first statement is
the plain one, used in long answers. Statements have line breaks, list markers and varied punctuation, because anchors of
attention are often found there.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Relation:
    """One relation; in all texts `{s}` is the subject and `{o}` the object.

    `slot` is its label in slot filling (`NAME [SEP] birthplace`).
    """

    name: str
    subject: str
    object: str
    slot: str
    statements: tuple[str, ...]
    questions: tuple[str, ...]


RELATIONS = {
    relation.name: relation
    for relation in (
        Relation(
            "birthplace",
            "person",
            "town",
            "birthplace",
            (
                "{s} was born in {o}.",
                "{s}, a native of {o}, left home early.",
                "{s} came from the town of {o}.",
                "The birthplace of {s} is {o}.",
                "{s}:\n- born in {o}",
                "In {o}, {s} was born.",
            ),
            ("Where was {s} born?", "What is the birthplace of {s}?", "From which town did {s} come?"),
        ),
        Relation(
            "birth_year",
            "person",
            "year",
            "year of birth",
            (
                "{s} was born in {o}.",
                "{s}, born in {o}, had two sisters.",
                "{s} (born {o}) left home early.",
                "The year of birth of {s} is {o}.",
                "{s}:\n- born {o}",
            ),
            ("When was {s} born?", "In which year was {s} born?", "What is the year of birth of {s}?"),
        ),
        Relation(
            "trade",
            "person",
            "trade",
            "trade",
            (
                "{s} worked as a {o}.",
                "{s} was a well known {o}.",
                "The trade of {s} was that of a {o}.",
                "{s}, a {o}, had two sisters.",
                "{s}:\n- {o} by trade",
            ),
            ("What did {s} work as?", "What was the trade of {s}?"),
        ),
        Relation(
            "employer",
            "person",
            "firm",
            "employer",
            (
                "{s} was employed by {o}.",
                "{s} worked for {o}.",
                "{s} was hired by {o} at an early age.",
                "The employer of {s} was {o}.",
                "{s}:\n- employed by {o}",
            ),
            ("Who employed {s}?", "For which company did {s} work?", "What was the employer of {s}?"),
        ),
        Relation(
            "password",
            "person",
            "password",
            "secret word",
            (
                "The secret word of {s} is {o}.",
                "{s} has the secret word {o}.",
                "{s} chose {o} as a secret word.",
            ),
            ("What is the secret word of {s}?", "Which secret word did {s} choose?"),
        ),
        Relation(
            "river",
            "town",
            "river",
            "river",
            (
                "{s} lies on the river {o}.",
                "The river of {s} is the {o}.",
                "{s} was built on the river {o}.",
                "{s}:\n- on the river {o}",
            ),
            ("On which river does {s} lie?", "What is the river of {s}?"),
        ),
        Relation(
            "seat",
            "firm",
            "town",
            "seat",
            (
                "{s} has its seat in {o}.",
                "{s} is based in {o}.",
                "The seat of {s} is {o}.",
                "{s}:\n- based in {o}",
            ),
            ("Where is {s} based?", "In which town does {s} have its seat?"),
        ),
        Relation(
            "founder",
            "firm",
            "person",
            "founder",
            (
                "{s} was founded by {o}.",
                "The founder of {s} was {o}.",
                "{s}, a company founded by {o}, did well.",
                "{s}:\n- founded by {o}",
            ),
            ("Who founded {s}?", "Who was the founder of {s}?"),
        ),
        Relation(
            "builder",
            "ship",
            "firm",
            "builder",
            (
                "The {s} was built by {o}.",
                "The ship {s} was built by {o}.",
                "The builder of the {s} was {o}.",
                "The {s}:\n- built by {o}",
            ),
            ("Who built the {s}?", "Which company built the ship {s}?"),
        ),
        Relation(
            "launch",
            "ship",
            "date",
            "launch",
            (
                "The {s} was launched on {o}.",
                "The ship {s}, launched on {o}, did well.",
                "The {s}:\n- launched on {o}",
            ),
            ("When was the {s} launched?", "On which day was the ship {s} launched?"),
        ),
        Relation(
            "maker",
            "instrument",
            "person",
            "maker",
            (
                "The {s} was made by {o}.",
                "The maker of the {s} was {o}.",
                "The {s}, made by {o}, sounds well.",
                "The {s}:\n- made by {o}",
            ),
            ("Who made the {s}?", "Who was the maker of the {s}?"),
        ),
    )
}
# the facts of a person, told one after the other in a long answer
LIFE = ("birthplace", "birth_year", "trade", "employer")


@dataclass(frozen=True)
class Hop:
    """A question over two relations: the object of the first is the subject of the second.

    `questions` ask for both objects, `direct` asks for the last one only: the bridge must then be found silently.
    """

    first: str
    second: str
    questions: tuple[str, ...]
    direct: str


HOPS = (
    Hop(
        "birthplace",
        "river",
        ("Where was {s} born, and on which river does it lie?",),
        "On which river does the birthplace of {s} lie?",
    ),
    Hop("employer", "seat", ("Who employed {s}, and where is it based?",), "Where is the employer of {s} based?"),
    Hop("employer", "founder", ("Who employed {s}, and who founded it?",), "Who founded the employer of {s}?"),
    Hop(
        "founder",
        "birthplace",
        ("Who founded {s}, and where was the founder born?",),
        "Where was the founder of {s} born?",
    ),
    Hop(
        "founder",
        "trade",
        ("Who founded {s}, and what was the trade of the founder?",),
        "What was the trade of the founder of {s}?",
    ),
    Hop("builder", "seat", ("Who built the {s}, and where is it based?",), "Where is the builder of the {s} based?"),
    Hop(
        "maker",
        "birth_year",
        ("Who made the {s}, and when was the maker born?",),
        "When was the maker of the {s} born?",
    ),
    Hop(
        "maker",
        "birthplace",
        ("Who made the {s}, and where was the maker born?",),
        "Where was the maker of the {s} born?",
    ),
)
