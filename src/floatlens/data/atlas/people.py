"""Relations of people: scientists, artists, writers, explorers and rulers."""

from __future__ import annotations

from floatlens.data.atlas.relations import AtlasHop, AtlasRelation

RELATIONS = (
    AtlasRelation(
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
    AtlasRelation(
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
)


def birth(first: str, who: str) -> tuple[AtlasHop, AtlasHop]:
    """Hops from a relation to the birth of the person who answers it; `who` describes the person by `{s}`."""
    return (
        AtlasHop(first, "born", (f"In which year was {who} born?", f"When was {who} born?")),
        AtlasHop(first, "birthplace", (f"Where was {who} born?", f"What is the birthplace of {who}?")),
    )
