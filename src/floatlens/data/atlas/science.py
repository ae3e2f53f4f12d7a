"""Relations of elements, units, planets, moons, discoveries and inventions."""

from __future__ import annotations

from floatlens.data.atlas.people import birth
from floatlens.data.atlas.relations import AtlasHop, AtlasRelation

RELATIONS = (
    AtlasRelation(
        "number",
        "elements",
        "number",
        (
            "{s} is a chemical element with the atomic number {o}. {note}.",
            "{s} is known to chemists by the symbol {symbol} and the atomic number {o}. {note}.",
            "In the periodic table, {s} stands in place {o}, which is its atomic number. {note}.",
            "The element {s} has the atomic number {o}, and its chemical symbol is {symbol}. {note}.",
        ),
        (
            "What is the atomic number of {s}?",
            "Which atomic number does the element {s} have?",
            "What atomic number does {s} have in the periodic table?",
        ),
    ),
    AtlasRelation(
        "symbol",
        "elements",
        "name",
        (
            "{o} is a chemical element with the symbol {s}. {note}.",
            "Chemists use the symbol {s} for {o}, the element with the atomic number {number}. {note}.",
            "In the periodic table, {o} is written as {s}. {note}.",
            "The chemical symbol {s} stands for the element {o}. {note}.",
        ),
        (
            "Which chemical element has the symbol {s}?",
            "What element does the chemical symbol {s} stand for?",
            "Which element is written as {s} in the periodic table?",
        ),
        subject="symbol",
    ),
    AtlasRelation(
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
    AtlasRelation(
        "unit",
        "units",
        "unit",
        (
            "The SI unit of {s} is the {o}. It has the symbol {symbol} and is used in {field}.",
            "Scientists all over the world measure {s} in a unit called the {o}. It is written with the symbol {symbol}.",
            "In {field}, {s} is measured in a unit called the {o}. The symbol of this unit is {symbol}.",
        ),
        (
            "What is the SI unit of {s}?",
            "In which SI unit is {s} measured?",
            "Which unit is used for {s} in the International System of Units?",
        ),
    ),
    AtlasRelation(
        "unit_namesake",
        "units",
        "namesake",
        (
            "The {s} is the SI unit of {name}. It is named after {o} and has the symbol {symbol}.",
            "The unit called the {s} bears the name of {o}. It has the symbol {symbol} and is used in {field}.",
            "Scientists who measure {name} use a unit that honours {o}. This unit is called the {s} and is used in {field}.",
        ),
        (
            "After whom is the unit called the {s} named?",
            "Which scientist gave the {s} its name?",
            "Who is honoured by the name of the unit called the {s}?",
        ),
        subject="unit",
    ),
    AtlasRelation(
        "planet",
        "planets",
        "name",
        (
            "{o} is the {s} planet from the Sun. {note}.",
            "Counted from the Sun, the {s} of the eight planets is {o}. {note}.",
            "In the Solar System, {o} moves on the {s} orbit from the Sun. {note}.",
        ),
        (
            "Which planet is the {s} from the Sun?",
            "What is the {s} planet from the Sun?",
            "Counted from the Sun, what is the {s} planet?",
        ),
        subject="place",
    ),
    AtlasRelation(
        "largest_moon",
        "planets",
        "moon",
        (
            "{s} has more than one moon, and the largest of them is {o}. {note}.",
            "Of all the moons that circle {s}, the largest is {o}. {note}.",
            "The planet {s} is circled by {o}, the largest of its moons. {note}.",
        ),
        (
            "What is the largest moon of {s}?",
            "Which moon of {s} is the largest?",
            "What is the name of the largest moon of {s}?",
        ),
    ),
    AtlasRelation(
        "orbit",
        "moons",
        "planet",
        (
            "{s} is a moon of {o}. {note}. It was discovered by {discoverer}.",
            "The moon {s} moves around {o}, and telescopes on Earth can see it. {note}.",
            "Among the many moons of the Solar System, {s} is one that belongs to {o}. {note}.",
        ),
        (
            "Which planet does the moon {s} orbit?",
            "Around which planet does the moon {s} move?",
            "To which planet does the moon {s} belong?",
        ),
    ),
    AtlasRelation(
        "moon_discoverer",
        "moons",
        "discoverer",
        (
            "{o} discovered {s}, a moon of {planet}, in {year}. {note}.",
            "The astronomer {o} discovered the moon {s}. {note}.",
            "The discovery of the moon {s} was the work of {o}. {note}.",
            "It was {o} who discovered the moon {s}. {note}.",
        ),
        (
            "Who discovered the moon {s}?",
            "Which astronomer discovered the moon {s}?",
            "By whom was the moon {s} discovered?",
        ),
        person=True,
    ),
    AtlasRelation(
        "moon_year",
        "moons",
        "year",
        (
            "{discoverer} discovered the moon {s} in {o}. {note}.",
            "Astronomers have known the moon {s} since {o}, the year of its discovery. {note}.",
            "The year {o} saw the discovery of the moon {s}. {note}.",
        ),
        (
            "In which year was the moon {s} discovered?",
            "When was the moon {s} discovered?",
            "What was the year of the discovery of the moon {s}?",
        ),
    ),
    AtlasRelation(
        "first",
        "firsts",
        "person",
        (
            "{s} {be} {verb} by {o}. {note}.",
            "It was {o} who {verb} {s}. {note}.",
            "{o} became famous as the person who {verb} {s}. {note}.",
            "History books name {o} as the person who {verb} {s}. {note}.",
        ),
        (
            "Who {verb} {s}?",
            "By whom {be} {s} {verb}?",
            "Which person {verb} {s}?",
        ),
        person=True,
    ),
)

HOPS = (
    *birth("first", "the person who {verb} {s}"),
    *birth("namesake", "the person after whom the element {s} is named"),
    *birth("unit_namesake", "the person after whom the unit called the {s} is named"),
    *birth("moon_discoverer", "the astronomer who discovered the moon {s}"),
    AtlasHop(
        "symbol",
        "number",
        (
            "What is the atomic number of the element with the symbol {s}?",
            "Which atomic number belongs to the element whose chemical symbol is {s}?",
        ),
    ),
    AtlasHop(
        "symbol",
        "namesake",
        (
            "After whom or what is the element with the symbol {s} named?",
            "From whom or what does the element whose chemical symbol is {s} take its name?",
        ),
    ),
    AtlasHop(
        "namesake",
        "capital",
        (
            "What is the capital of the country after which the element {s} is named?",
            "Which city is the capital of the country that gave the element {s} its name?",
        ),
    ),
    AtlasHop(
        "unit",
        "unit_namesake",
        ("After whom is the SI unit of {s} named?", "Who is honoured by the name of the SI unit of {s}?"),
    ),
    AtlasHop(
        "planet",
        "largest_moon",
        (
            "What is the largest moon of the {s} planet from the Sun?",
            "Which moon is the largest of those that circle the {s} planet from the Sun?",
        ),
    ),
    AtlasHop(
        "largest_moon",
        "moon_discoverer",
        ("Who discovered the largest moon of {s}?", "Which astronomer discovered the largest moon of {s}?"),
    ),
)
