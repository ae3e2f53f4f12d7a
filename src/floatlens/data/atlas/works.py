"""Relations of books, works of art and music."""

from __future__ import annotations

from floatlens.data.atlas.people import birth
from floatlens.data.atlas.relations import AtlasRelation

RELATIONS = (
    AtlasRelation(
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
    AtlasRelation(
        "artist",
        "artworks",
        "artist",
        (
            "{s} is {a_kind} by {o}. It shows {shows}, and it has been reproduced in many books.",
            "The {kind} {s} is the work of {o}. It shows {shows}.",
            "Art lovers know {o} as the maker of {s}. This {kind} shows {shows}.",
            "{s}, {a_kind} by {o}, belongs to the {museum}. It shows {shows}.",
        ),
        (
            "Who created {s}?",
            "Which artist made the {kind} {s}?",
            "Who is the artist of the {kind} {s}?",
        ),
        person=True,
    ),
    AtlasRelation(
        "museum",
        "artworks",
        "museum",
        (
            "{s} belongs to the {o}. The {kind} shows {shows}, and it is the work of {artist}.",
            "Visitors to the {o} can see {s}. This {kind} by {artist} shows {shows}.",
            "The {kind} {s} is kept in the {o}. It shows {shows}.",
        ),
        (
            "To which museum does {s} belong?",
            "Which museum owns the {kind} {s}?",
            "In which museum is the {kind} {s} kept?",
        ),
    ),
    AtlasRelation(
        "composer",
        "music",
        "composer",
        (
            "{o} composed {s}, {a_kind} that is still performed today. {about}.",
            "The music of {s} was written by the composer {o}. {about}.",
            "Audiences everywhere know {s}, {a_kind} by {o}. {about}.",
            "One of the best-known works of {o} is {s}, {a_kind}. {about}.",
        ),
        (
            "Who composed {s}?",
            "Which composer wrote {s}?",
            "Who is the composer of {s}?",
            "By whom was the music of {s} written?",
        ),
        person=True,
    ),
)

HOPS = (
    *birth("author", "the author of {s}"),
    *birth("artist", "the artist who made {s}"),
    *birth("composer", "the composer of {s}"),
)
