"""Relations of animals, historical events and ancient gods."""

from __future__ import annotations

from floatlens.data.atlas.relations import AtlasRelation

RELATIONS = (
    AtlasRelation(
        "year",
        "events",
        "year",
        (
            "{s} took place in the year {o}. {note}.",
            "The year {o} is remembered for {s}. {note}.",
            "History books give {o} as the year of {s}. {note}.",
            "Anyone who studies history learns about {s}, which took place in {o}. {note}.",
        ),
        (
            "In which year did {s} take place?",
            "When did {s} take place?",
            "What was the year of {s}?",
        ),
    ),
    AtlasRelation(
        "young",
        "animals",
        "young",
        (
            "The {s} is known to almost everyone. {note}. A young {s} is called {a_o}.",
            "There is a special word for the young of the {s}, namely {o}. It is the usual name in books about animals.",
            "In books about animals, the young of the {s} is called {a_o}. Children often learn this word at school.",
        ),
        (
            "What is a young {s} called?",
            "What do you call the young of the {s}?",
            "What is the name for a young {s}?",
        ),
    ),
    AtlasRelation(
        "class",
        "animals",
        "class",
        (
            "Books about biology say that the {s} belongs to the {o}. {note}.",
            "Zoologists, who study animals, count the {s} among the {o}. {note}.",
            "In the system of the animals, the {s} is placed among the {o}. {note}.",
        ),
        (
            "To which group of animals does the {s} belong?",
            "Among which group of animals is the {s} counted?",
            "Which group of animals does the {s} belong to?",
        ),
    ),
    AtlasRelation(
        "roman",
        "gods",
        "roman",
        (
            "{s} was the {domain} in the myths of the Greeks. The Romans used the name {o} for the same figure.",
            "Readers of ancient myths meet the {domain} under two names. The Greeks said {s} and the Romans said {o}.",
            "What the Greeks told of {s}, the Romans told of {o}. Both names stand for the {domain}.",
        ),
        (
            "What did the Romans call {s}?",
            "What is the Roman name of the Greek figure {s}?",
            "Under which name did the Romans know {s}?",
        ),
    ),
)
