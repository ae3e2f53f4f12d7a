"""The curriculum: the order of the training data.

A bidirectional model trained from scratch does not learn retrieval from sentences alone. This order works: plain key-value
recall first, from a small pool of names that grows slowly; then fillers between a name and its object, one more at a time;
then real sentences, one passage, two, many; then everything. Earlier stages stay in the mix. All models use the same
curriculum. LOG.md describes what did not work.

Roles of tokens: 0 context, 1 answer, 2 the eos that ends an answer, 3 the eos tokens that fill the rest.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace

import torch
from torch import Tensor

from floatlens.data.sample import Passage
from floatlens.data.world import (
    ABOUT,
    HOPS,
    RELATIONS,
    SINGLE,
    WORDS,
    Fact,
    account,
    chain,
    common_people,
    distinct,
    entity,
    fresh_fact,
    hops,
    life,
    long,
    names,
    needle,
    single,
    split_of,
    write,
)
from recipes.tiny.prompts import EOS, body, chat
from recipes.tiny.tokenizer import CONTEXT, shared, token_id

CONTEXT_ROLE, ANSWER, END, FILL = range(4)
Row = tuple[list[int], list[int]]
Turn = tuple[str, str]  # a question and its answer
Maker = Callable[[random.Random, str], Callable[[], Row]]


@dataclass(frozen=True)
class Stage:
    """A stage, which is trained until its accuracy reaches `goal`.

    `make(draw, split)` chooses what a batch has in common (such as the number of passages) and returns a maker of rows, so
    that the rows of a batch have similar lengths.
    """

    name: str
    make: Maker
    goal: float


@cache
def ids_of(pool: tuple[str, ...]) -> tuple[int, ...]:
    """Token ids of words, each of which is one token."""
    return tuple(token_id("Ġ" + word) for word in pool)


@cache
def fillers() -> tuple[int, ...]:
    """Function words, which come between a name and its object in sentences."""
    texts = [text for relation in RELATIONS.values() for text in relation.statements + relation.questions]
    found = {word for text in texts for word in text.replace("{s}", "").replace("{o}", "").split() if word.isalpha()}
    return ids_of(tuple(sorted(found)))


def recall(draw: random.Random, split: str, pairs: int, pool: int, gap: int) -> Row:
    """Pairs of a name and a town, then some of the names again, whose towns are to be predicted.

    There are up to `gap` fillers before a name and between a name and its town. Without a gap all names are asked for; with
    one, the objects of a row may also be of another kind, because a kind that is never copied here is learned late.
    """
    kinds = (names()["town"], names()["given"], names()["river"], tuple(WORDS["trades"]), tuple(WORDS["years"]))
    towns = ids_of(draw.choice(kinds) if gap else names()["town"])[:pool]
    stop, bos = token_id("."), token_id("<|bos|>")

    def fill() -> list[int]:
        return draw.choices(fillers(), k=draw.randint(max(0, gap - 3), gap)) if gap else []

    def name_of(surname: str) -> list[int]:
        while split_of(f"{(given := draw.choice(names()['given']))} {surname}") != split:
            pass
        return [*ids_of((given,)), *ids_of((surname,))]

    stated = [(name_of(surname), draw.choice(towns)) for surname in draw.sample(names()["surname"][:pool], pairs)]
    ids = [bos]
    for name, town in stated:
        ids += [*fill(), *name, *fill(), town, stop]
    roles = [CONTEXT_ROLE] * len(ids)
    for name, town in draw.sample(stated, min(3, pairs) if gap else pairs):
        asked = [*fill(), *(name if gap else name[1:]), *fill()]
        ids += [*asked, town, stop]
        roles += [CONTEXT_ROLE] * len(asked) + [ANSWER, CONTEXT_ROLE]
    return ids, roles


def by_given_name(draw: random.Random, split: str, pairs: int, gap: int) -> Row:
    """Names and objects, then some of the names again, each with its object after a comma, as two-hop answers have it.

    All of "given surname, object" is an answer: if only the given name is visible, the object must be found by it alone.
    """
    kinds = (names()["town"], names()["river"], tuple(WORDS["trades"]), tuple(WORDS["years"]))
    objects = ids_of(draw.choice(kinds))
    stop, comma, bos = token_id("."), token_id(","), token_id("<|bos|>")

    def fill() -> list[int]:
        return draw.choices(fillers(), k=draw.randint(0, gap))

    stated = []
    for given in draw.sample(names()["given"], pairs):
        while split_of(f"{given} {(surname := draw.choice(names()['surname']))}") != split:
            pass
        stated.append(([*ids_of((given,)), *ids_of((surname,))], draw.choice(objects)))
    ids = [bos]
    for name, object_ in stated:
        ids += [*fill(), *name, *fill(), object_, stop]
    roles = [CONTEXT_ROLE] * len(ids)
    for name, object_ in draw.sample(stated, min(3, pairs)):
        before = fill()
        ids += [*before, *name, comma, object_, stop]
        roles += [CONTEXT_ROLE] * len(before) + [ANSWER] * 4 + [CONTEXT_ROLE]
    return ids, roles


def restated(draw: random.Random, split: str, count: int, how: str) -> Row:
    """Facts of every kind without a prompt, then some of them again, whose objects are to be predicted.

    This is the step between recall and passages. Facts are repeated as a name, fillers and the object ("kinds"), as another
    sentence ("statements"), or as a question and its answer ("questions").
    """
    lead = draw.choice(tuple(RELATIONS))
    taken: set[str] = set()
    facts = [distinct(lead if draw.random() < 0.8 else draw.choice(SINGLE), draw, split, taken) for _ in range(count)]

    def told(fact: Fact, again: bool) -> tuple[str, str]:
        """The text before and after the object."""
        if how == "kinds":
            return "".join((filler_words(draw), " ", fact.subject, filler_words(draw), " ")).lstrip(), "."
        if how == "questions" and again:
            return f"Question: {fact.ask(draw)}\n", ""
        before, after = draw.choice(RELATIONS[fact.relation].statements).split("{o}")
        return before.format(s=fact.subject), after

    text = "<|bos|>"
    spans = []
    join = " " if how == "kinds" else "\n"
    for again, group in ((False, facts), (True, draw.sample(facts, min(3, count)))):
        for fact in group:
            before, after = told(fact, again)
            text += (join if text != "<|bos|>" else "") + before
            if again:
                spans.append((len(text), len(text) + len(fact.object)))
            text += fact.object + after
    encoded = shared().encode(text)
    roles = [ANSWER if any(start < b and end > a for a, b in spans) else CONTEXT_ROLE for start, end in encoded.offsets]
    return encoded.ids, roles


def filler_words(draw: random.Random) -> str:
    """Up to five function words, each with a space before it."""
    tokens = draw.choices(fillers(), k=draw.randint(0, 5))
    return "".join(" " + shared().decode([token]) for token in tokens)


def row(passages: list[Passage], turns: list[Turn], draw: random.Random, order: str = "last") -> Row:
    """The tokens of passages and the questions about them in the chat template, with the role of each."""
    tokenizer = shared()
    eos = token_id(EOS)
    ids: list[int] = []
    roles: list[int] = []
    for number, (question, answer_text) in enumerate(turns):
        text = chat(f"Question: {question}", first=False) if number else chat(body(question, passages, order))
        prompt = tokenizer.encode(text).ids
        answer = tokenizer.encode(answer_text).ids
        fill = draw.choice((0, 0, 1, 3)) if number + 1 < len(turns) else 0
        ids += [*prompt, *answer, *[eos] * (1 + fill)]
        roles += [*[CONTEXT_ROLE] * len(prompt), *[ANSWER] * len(answer), END, *[FILL] * fill]
    return ids, roles


def ask_single(facts: list[Fact], questions: int, draw: random.Random, order: str = "last", slot: bool = False) -> Row:
    """Questions about the first fact and others: several about one context force the model to match subjects."""
    asked = [facts[i] for i in (0, *draw.sample(range(1, len(facts)), min(questions, len(facts)) - 1))]
    turns = [(fact.slot() if slot else fact.ask(draw), fact.object) for fact in asked]
    return row(write([[fact] for fact in facts], 1, draw), turns, draw, order)


def ask_hops(hop: SimpleNamespace, facts: list[Fact], questions: int, draw: random.Random) -> Row:
    """A question about the first chain; further ones ask for both facts of a chain, for its end directly, or for one."""
    question = draw.choice(hop.questions)

    def both(first: Fact, second: Fact) -> Turn:
        return question.format(s=first.subject), f"{first.object}, {second.object}"

    turns = [both(*facts[:2])]
    chains = [facts[i : i + 2] for i in range(0, len(facts) - 1, 2)]
    for _ in range(questions - 1):
        first, second = draw.choice(chains)
        way = draw.random()
        if way < 0.4:
            turns.append(both(first, second))
        elif way < 0.7:
            turns.append((hop.direct.format(s=first.subject), second.object))
        else:
            fact = draw.choice((first, second))
            turns.append((fact.ask(draw), fact.object))
    return row(write([[fact] for fact in facts], 2, draw), turns, draw)


def batch(make: Callable[[], Row], tokens: int, room: int) -> tuple[Tensor, Tensor]:
    """About `tokens` tokens as ids and roles (B, T). `room` eos tokens follow the longest row.

    A model that fills masks must also learn to fill the positions after an answer with eos; a causal model has room 0.
    """
    first = make()
    count = max(8, tokens // (len(first[0]) + room))
    rows = [first, *(make() for _ in range(count - 1))]
    rows = [one for one in rows if len(one[0]) + room <= CONTEXT]
    width = max(len(ids) for ids, _ in rows) + room
    ids_BT = torch.full((len(rows), width), token_id(EOS))
    roles_BT = torch.full((len(rows), width), FILL)
    for b, (ids, roles) in enumerate(rows):
        ids_BT[b, : len(ids)] = torch.tensor(ids)
        roles_BT[b, : len(ids)] = torch.tensor(roles)
        if roles[-1] != END and room:
            roles_BT[b, len(ids)] = END
    return ids_BT, roles_BT


def _recall(low: int, high: int, pool: int, gap: int = 0) -> Maker:
    def make(draw: random.Random, split: str) -> Callable[[], Row]:
        pairs = draw.randint(low, high)
        return lambda: recall(draw, split, pairs, pool, gap)

    return make


def _by_given_name(low: int, high: int, gap: int) -> Maker:
    def make(draw: random.Random, split: str) -> Callable[[], Row]:
        pairs = draw.randint(low, high)
        return lambda: by_given_name(draw, split, pairs, gap)

    return make


def _restated(low: int, high: int, how: str) -> Maker:
    def make(draw: random.Random, split: str) -> Callable[[], Row]:
        count = draw.randint(low, high)
        return lambda: restated(draw, split, count, how)

    return make


def _passages(
    low: int, high: int, same: float, questions: int = 3, relations: tuple[str, ...] = SINGLE, slot: bool = False
) -> Maker:
    def make(draw: random.Random, split: str) -> Callable[[], Row]:
        n = draw.randint(low, high)
        asked = draw.randint(1, min(n, questions))
        order = draw.choice(("first", "both")) if asked == 1 and draw.random() < 0.3 else "last"

        def one() -> Row:
            target = fresh_fact(draw.choice(relations), draw, split)
            facts = single(target, n, draw, split, same=same, relations=relations)
            return ask_single(facts, asked, draw, order, slot)

        return one

    return make


def _hops(low: int, high: int) -> Maker:
    def make(draw: random.Random, split: str) -> Callable[[], Row]:
        n, asked = draw.randint(low, high), draw.randint(1, 3)

        def one() -> Row:
            hop = draw.choice(HOPS)
            target = chain(hop, draw, split, set())
            return ask_hops(hop, hops(hop, target, n, draw, split), asked, draw)

        return one

    return make


def _long(low: int, high: int) -> Maker:
    def make(draw: random.Random, split: str) -> Callable[[], Row]:
        n = draw.randint(low, high)

        def one() -> Row:
            facts = life(entity("person", draw, split), draw, split)
            groups = long(facts, n, draw, split)
            question = draw.choice(ABOUT).format(s=facts[0].subject)
            return row(write(groups[:n], 2, draw), [(question, account(facts))], draw)

        return one

    return make


def _needle(low: int, high: int) -> Maker:
    def make(draw: random.Random, split: str) -> Callable[[], Row]:
        n = draw.randint(low, high)
        return lambda: ask_single(needle(fresh_fact("password", draw, split), n, draw, split), 1, draw)

    return make


def _by_heart(draw: random.Random, split: str) -> Callable[[], Row]:
    """Closed book: facts of common people, several per row."""
    names = list(common_people())

    def one() -> Row:
        facts = [draw.choice(common_people()[draw.choice(names)]) for _ in range(6)]
        return row([], [(f.slot() if draw.random() < 0.1 else f.ask(draw), f.object) for f in facts], draw)

    return one


def _common(low: int, high: int) -> Maker:
    def make(draw: random.Random, split: str) -> Callable[[], Row]:
        n = draw.randint(low, high)
        names = list(common_people())

        def one() -> Row:
            target = draw.choice(common_people()[draw.choice(names)])
            return ask_single(single(target, n, draw, split, common=True), 3, draw)

        return one

    return make


FULL: dict[str, tuple[float, Maker]] = {
    "few": (0.10, _passages(1, 5, 0.8, 4)),
    "many": (0.15, _passages(4, 10, 0.8, 4)),
    "hops": (0.28, _hops(2, 8)),
    "long": (0.16, _long(1, 6)),
    "needle": (0.04, _needle(5, 20)),
    "slots": (0.05, _passages(2, 8, 0.8, 4, slot=True)),
    "by heart": (0.14, _by_heart),
    "common": (0.05, _common(2, 6)),
    "recall": (0.03, _recall(2, 5, 480, 5)),
}
# for a model that denoises several positions at once: chains, and names of which only the given name is visible
CHAINS: dict[str, tuple[float, Maker]] = {
    "few": (0.08, _passages(1, 5, 0.8, 4)),
    "many": (0.18, _passages(4, 10, 0.8, 4)),
    "hops": (0.22, _hops(3, 6)),
    "names": (0.05, _by_given_name(2, 5, 5)),
    "long": (0.10, _long(1, 5)),
    "needle": (0.12, _needle(5, 20)),
    "slots": (0.05, _passages(2, 8, 0.8, 4, slot=True)),
    "by heart": (0.15, _by_heart),
    "common": (0.05, _common(2, 6)),
}
MIXES = {"all": FULL, "chains": CHAINS}


def everything(without: tuple[str, ...] = (), mix: str = "all") -> Maker:
    """A mix of the last stage, or a part of it."""
    parts = [part for name, part in MIXES[mix].items() if name not in without]

    def make(draw: random.Random, split: str) -> Callable[[], Row]:
        return draw.choices([maker for _, maker in parts], [weight for weight, _ in parts])[0](draw, split)

    return make


STAGES = (
    Stage("recall 2-3 pairs, 60 names", _recall(2, 3, 60), 0.85),
    Stage("recall 3-6 pairs, 60 names", _recall(3, 6, 60), 0.85),
    Stage("recall 3-6 pairs, 100 names", _recall(3, 6, 100), 0.85),
    Stage("recall 3-6 pairs, 160 names", _recall(3, 6, 160), 0.85),
    Stage("recall 4-8 pairs, 260 names", _recall(4, 8, 260), 0.85),
    Stage("recall 6-10 pairs, all names", _recall(6, 10, 480), 0.85),
    *(Stage(f"recall with gaps up to {gap}", _recall(2, 4, 480, gap), 0.8) for gap in range(1, 7)),
    Stage("facts of all kinds, told twice", _restated(2, 4, "kinds"), 0.6),
    Stage("sentences, told twice", _restated(2, 4, "statements"), 0.75),
    Stage("sentences, then questions", _restated(2, 4, "questions"), 0.75),
    Stage("1-2 passages", _passages(1, 2, 1.0, 2), 0.8),
    Stage("2-3 passages", _passages(2, 3, 1.0), 0.8),
    Stage("2-5 passages", _passages(2, 5, 1.0), 0.8),
    Stage("everything", everything(), 2.0),
)
PROBES = {
    "one": _passages(1, 1, 1.0, 1),
    "five": _passages(5, 5, 0.8),
    "ten": _passages(10, 10, 0.8),
    "hops": _hops(6, 6),
    "long": _long(4, 4),
    "heart": _by_heart,
}


def choose(stage: int, draw: random.Random, without: tuple[str, ...] = (), mix: str = "all") -> Maker:
    """The stage of a step: mostly the current one, sometimes an earlier one, so that its skill is kept."""
    if stage == len(STAGES) - 1:
        return everything(without, mix)
    if stage > 0 and draw.random() < 0.2:
        return STAGES[max(0, stage - draw.choice((1, 1, 2, 3)))].make
    return STAGES[stage].make
