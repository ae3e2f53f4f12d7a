"""Relations of countries, states, cities, rivers and sights."""

from __future__ import annotations

from floatlens.data.atlas.relations import AtlasHop, AtlasRelation

RELATIONS = (
    AtlasRelation(
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
            "In which city does {s} have its capital?",
        ),
    ),
    AtlasRelation(
        "currency",
        "countries",
        "currency",
        (
            "The currency of {s} is the {o}. Shops and markets throughout the country show their prices in it.",
            "{s} is a country in {continent} with its capital in {capital}. {note}. People there pay with the {o}.",
            "People in {s} pay with the {o}, which is the official currency. The capital of the country is {capital}.",
            "{s} uses the {o} as its currency, in notes as well as in coins. {note}.",
            "Travellers who visit {s} need some money in the local currency, the {o}. Banks in the country change "
            "foreign notes and coins into it.",
        ),
        (
            "What is the currency of {s}?",
            "Which currency is used in {s}?",
            "With which currency do people pay in {s}?",
        ),
    ),
    AtlasRelation(
        "continent",
        "countries",
        "continent",
        (
            "{s} is a country in {o}. {note}. Its capital is {capital}.",
            "{s} is one of the countries of {o}. {note}. People there pay with the {currency}.",
            "Among the countries of {o} is {s}. Its capital is {capital}, and its currency is the {currency}.",
            "On a map of {o}, one finds {s} among the other countries. {note}.",
            "{s} is a country that belongs to {o}, as every map of the world shows. {note}.",
        ),
        (
            "On which continent is {s}?",
            "Which continent does {s} belong to?",
            "In which continent is {s} located?",
        ),
    ),
    AtlasRelation(
        "language",
        "countries",
        "language",
        (
            "The official language of {s} is {o}. It is used in schools, courts and newspapers across the country.",
            "{s} is a country whose official language is {o}. {note}.",
            "Laws in {s} are written in {o}, the official language. The capital of the country is {capital}, and its "
            "currency is the {currency}.",
            "Anyone who wants to work in an office in {s} should learn {o}. It is the official language of the country.",
        ),
        (
            "What is the official language of {s}?",
            "Which language is the official one in {s}?",
            "In {s}, what is the official language?",
        ),
    ),
    AtlasRelation(
        "peak",
        "countries",
        "peak",
        (
            "The highest mountain in {s} is {o}. No other summit in the country rises higher above the sea.",
            "{s} is a country in {continent}. {note}. Its highest mountain is {o}.",
            "{o} is the highest mountain in {s}. Climbers who reach its summit stand higher than anyone else in the "
            "country.",
            "Climbers who travel to {s} may try to reach the top of {o}. It is the highest mountain in the country.",
        ),
        (
            "What is the highest mountain in {s}?",
            "Which mountain is the highest in {s}?",
            "What is the name of the highest peak in {s}?",
        ),
    ),
    AtlasRelation(
        "state_capital",
        "states",
        "capital",
        (
            "{s} is a state of the United States with its capital in {o}. {note}.",
            "The US state of {s} is nicknamed the {nickname}. {note}. Its capital is {o}.",
            "The capital of the US state of {s} is {o}. The lawmakers of the state meet there in the capitol building.",
            "{s} is an American state whose governor works in {o}, the capital. {note}.",
        ),
        (
            "What is the capital of the US state of {s}?",
            "Which city is the capital of the American state of {s}?",
            "What is the state capital of {s}?",
        ),
    ),
    AtlasRelation(
        "nickname",
        "states",
        "name",
        (
            "{o} is an American state that is known as the {s}. {note}.",
            "People in the United States call {o} the {s}. {note}.",
            "The nickname of {o} is the {s}. Like every American state, it has a flag and a government of its own.",
            "Among the fifty American states, {o} is the one that is called the {s}. {note}.",
        ),
        (
            "Which US state is nicknamed the {s}?",
            "Which American state is known as the {s}?",
            "What US state is called the {s}?",
        ),
        subject="nickname",
    ),
    AtlasRelation(
        "river",
        "cities",
        "river",
        (
            "{s} is a city in {country}, and the {o} flows through it. {note}.",
            "The city of {s}, which belongs to {country}, lies on the {o}. {note}.",
            "{s} is a city that was built on the banks of the {o}. {note}.",
            "In {country}, the city of {s} stands on the {o}. {note}.",
        ),
        (
            "On which river does {s} in {country} lie?",
            "Which river flows through {s} in {country}?",
            "What is the name of the river on which {s} in {country} stands?",
        ),
    ),
    AtlasRelation(
        "mouth",
        "rivers",
        "mouth",
        (
            "On a map, one can follow the {s} all the way to the {o}, into which it flows. {note}.",
            "The {s} is a river that flows into the {o} at its end. {note}.",
            "At the end of its course, the {s} reaches the {o}. {note}.",
            "The waters of the {s} run into the {o}. People have lived and fished along its banks for a very long time.",
        ),
        (
            "Into which body of water does the {s} flow?",
            "Which body of water does the {s} flow into?",
            "Into which sea, ocean, bay or river does the {s} run?",
        ),
    ),
    AtlasRelation(
        "city",
        "landmarks",
        "city",
        (
            "{s} can be found in {o}, a city in {country}. {note}.",
            "Visitors to the city of {o} can see {s} with their own eyes. {note}.",
            "The city of {o} in {country} is the home of {s}. {note}.",
            "On a walk through {o}, many visitors take pictures of {s}. {note}.",
        ),
        (
            "In which city can one find {s}?",
            "Which city is the home of {s}?",
            "In which city would you visit {s}?",
        ),
    ),
    AtlasRelation(
        "country",
        "sites",
        "country",
        (
            "{s} can be found in {o} and in every guidebook about the country. {note}.",
            "Travellers who want to see {s} have to go to {o}. {note}.",
            "Among the famous places of {o} one finds {s}. {note}.",
            "A journey through the country of {o} can lead to {s}. {note}.",
        ),
        (
            "In which country can one find {s}?",
            "Which country would you visit to see {s}?",
            "In which country would you find {s}?",
        ),
    ),
)

HOPS = (
    AtlasHop(
        "currency",
        "capital",
        (
            "What is the capital of the country whose currency is the {s}?",
            "Which city is the capital of the country that uses the {s}?",
        ),
        given="answer",
    ),
    AtlasHop(
        "currency",
        "peak",
        (
            "What is the highest mountain in the country whose currency is the {s}?",
            "Which mountain is the highest in the country that uses the {s}?",
        ),
        given="answer",
    ),
    AtlasHop(
        "peak",
        "capital",
        (
            "What is the capital of the country whose highest mountain is {s}?",
            "Which city is the capital of the country that has {s} as its highest mountain?",
        ),
        given="answer",
    ),
    AtlasHop(
        "peak",
        "currency",
        (
            "What is the currency of the country whose highest mountain is {s}?",
            "Which currency is used in the country that has {s} as its highest mountain?",
        ),
        given="answer",
    ),
    AtlasHop(
        "nickname",
        "state_capital",
        (
            "What is the capital of the US state that is nicknamed the {s}?",
            "Which city is the capital of the American state known as the {s}?",
        ),
    ),
    AtlasHop(
        "capital",
        "river",
        ("Which river flows through the capital of {s}?", "On which river does the capital of {s} lie?"),
    ),
    AtlasHop(
        "river",
        "mouth",
        (
            "Into which body of water does the river of {s} in {country} flow?",
            "Where does the river on which {s} in {country} stands end?",
        ),
    ),
    AtlasHop(
        "city",
        "river",
        (
            "Which river flows through the city in which one can find {s}?",
            "On which river lies the city that is the home of {s}?",
        ),
    ),
    AtlasHop(
        "country",
        "capital",
        (
            "What is the capital of the country in which one can find {s}?",
            "Which city is the capital of the country where {s} can be visited?",
        ),
    ),
    AtlasHop(
        "country",
        "currency",
        (
            "What is the currency of the country in which one can find {s}?",
            "Which currency is used in the country where {s} can be visited?",
        ),
    ),
)
