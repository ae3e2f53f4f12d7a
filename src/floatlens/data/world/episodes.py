"""Episodes: passages and the questions about them.

An episode is a list of passages and one or more questions about them. Data sets use one question per episode; training
asks several, because several questions about one context force the model to match subjects, not only kinds of answers.
Most distractors state the same relation about someone else, so only the name distinguishes the passages.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

from floatlens.data.sample import Passage
from floatlens.data.world.facts import LIFE, Fact, common_people, fresh_fact, key_word

ASIDES = ("The winter was long.", "Few people knew.", "The letters were lost.", "It is told to this day.")
SINGLE = ("birthplace", "birth_year", "trade", "employer", "seat", "founder", "builder", "launch", "maker")
SAME = 0.8  # share of distractors that state the question's own relation


@dataclass(frozen=True)
class Turn:
    """A question, its answer, the indices of the passages that it needs, and its relation."""

    question: str
    answer: str
    gold: tuple[int, ...]
    relation: str


@dataclass
class Episode:
    """Passages in reading order, and questions about them."""

    passages: list[Passage]
    turns: list[Turn] = field(default_factory=list)
    order: str = "last"


def write(facts: list[Fact], draw: random.Random, aside: float = 0.15) -> Passage:
    """Return a passage that states the facts, sometimes with a title, sometimes with an irrelevant sentence."""
    text = " ".join(fact.tell(draw, plain=len(facts) > 1) for fact in facts)
    if "\n" not in text and draw.random() < aside:
        text = f"{text} {draw.choice(ASIDES)}" if draw.random() < 0.5 else f"{draw.choice(ASIDES)} {text}"
    return Passage(text, facts[0].subject if "\n" not in text and draw.random() < 0.1 else "")


def shuffle_groups(groups: list[list[Fact]], gold: int, draw: random.Random, gold_at: int | None) -> list[int]:
    """Return an order of the groups; the first `gold` of them are together at `gold_at`, or anywhere if it is None."""
    if gold_at is None:
        return draw.sample(range(len(groups)), len(groups))
    rest = draw.sample(range(gold, len(groups)), len(groups) - gold)
    at = min(gold_at, len(rest))
    return rest[:at] + list(range(gold)) + rest[at:]


def assemble(
    groups: list[list[Fact]],
    turns: Sequence[tuple[str, str, tuple[int, ...], str]],
    draw: random.Random,
    gold_at: int | None = None,
) -> Episode:
    """Write each group as a passage, order the passages, and give the turns the indices of their gold passages."""
    written = [write(group, draw) for group in groups]
    order = shuffle_groups(groups, len(turns[0][2]), draw, gold_at)
    index = {group: position for position, group in enumerate(order)}
    return Episode(
        [written[group] for group in order],
        [
            Turn(question, answer, tuple(sorted(index[g] for g in gold if g in index)), relation)
            for question, answer, gold, relation in turns
        ],
    )


def distinct(relation: str, draw: random.Random, split: str, taken: set[str], common: bool = False) -> Fact:
    """Return a fact whose subject shares its key word with no other subject of the context."""
    while True:
        if common and relation in LIFE and draw.random() < 0.7:
            fact = common_people()[draw.choice(list(common_people()))][LIFE.index(relation)]
        else:
            fact = fresh_fact(relation, draw, split)
        if key_word(fact.subject) not in taken:
            taken.add(key_word(fact.subject))
            return fact


def single(
    target: Fact,
    n: int,
    draw: random.Random,
    split: str,
    *,
    same: float = SAME,
    questions: int = 1,
    question: str = "",
    slot: bool = False,
    common: bool = False,
    gold_at: int | None = None,
    relations: tuple[str, ...] = SINGLE,
) -> Episode:
    """Return an episode that asks for one fact among n − 1 distractors; further questions ask for facts of these."""
    taken = {key_word(target.subject)}
    facts = [target]
    while len(facts) < n:
        if draw.random() < same:
            facts.append(distinct(target.relation, draw, split, taken, common))
        elif not common and target.relation in LIFE and target.relation in relations and draw.random() < 0.4:
            # another fact of the same subject: the name alone is not enough
            other = fresh_fact(draw.choice([r for r in LIFE if r != target.relation]), draw, split, target.subject)
            if (other.subject, other.relation) not in {(f.subject, f.relation) for f in facts}:
                facts.append(other)
        else:
            facts.append(distinct(draw.choice(relations), draw, split, taken, common))
    asked = [0, *draw.sample(range(1, n), min(questions, n) - 1)] if n else [0]
    turns = [(facts[i].slot() if slot else facts[i].ask(draw), facts[i].object, (i,), facts[i].relation) for i in asked]
    if question:
        turns[0] = (question, *turns[0][1:])
    return assemble([[fact] for fact in facts[:n]], turns, draw, gold_at)


def chain(hop: SimpleNamespace, draw: random.Random, split: str, taken: set[str]) -> tuple[Fact, Fact]:
    """Return two facts with new subjects; the object of the first is the subject of the second."""
    while True:
        first = distinct(hop.first, draw, split, taken)
        if key_word(first.object) not in taken:
            taken.add(key_word(first.object))
            return first, fresh_fact(hop.second, draw, split, first.object)


def hops(
    hop: SimpleNamespace,
    n: int,
    draw: random.Random,
    split: str,
    *,
    gold_at: int | None = None,
    questions: int = 1,
    target: tuple[Fact, Fact] | None = None,
) -> Episode:
    """Return an episode that asks for two facts that form a chain, among chains of the same kind.

    The answer is the bridge and the end. Further questions ask for both, for the end directly, or for one fact.
    """
    taken: set[str] = set()
    first, second = target or chain(hop, draw, split, taken)
    taken |= {key_word(first.subject), key_word(first.object)}
    facts = [first, second]
    chains = [(0, 1)]
    while len(facts) < n:
        more = chain(hop, draw, split, taken)
        if len(facts) + 2 <= n:
            chains.append((len(facts), len(facts) + 1))
            facts += more
        else:
            facts.append(draw.choice(more))
    name = f"{hop.first} of {hop.second}"
    question = draw.choice(hop.questions)

    def both(i: int, j: int) -> tuple[str, str, tuple[int, ...], str]:
        return question.format(s=facts[i].subject), f"{facts[i].object}, {facts[j].object}", (i, j), name

    turns = [both(0, 1)]
    for _ in range(questions - 1):
        i, j = draw.choice(chains)
        way = draw.random()
        if way < 0.4:
            turns.append(both(i, j))
        elif way < 0.7:
            turns.append((hop.direct.format(s=facts[i].subject), facts[j].object, (i, j), name))
        else:
            i = draw.choice((i, j))
            turns.append((facts[i].ask(draw), facts[i].object, (i,), facts[i].relation))
    return assemble([[fact] for fact in facts[:n]], turns, draw, gold_at)


def life(subject: str, draw: random.Random, split: str) -> list[Fact]:
    """Return the four facts of a fresh person's life, in the order of the text."""
    return [fresh_fact(relation, draw, split, subject) for relation in LIFE]


def account(facts: list[Fact]) -> str:
    """Return the long answer: every fact in its plain sentence."""
    return " ".join(fact.tell(random.Random(0), plain=True) for fact in facts)


def long(facts: list[Fact], n: int, draw: random.Random, split: str, *, gold_at: int | None = None) -> Episode:
    """Return an episode that asks for everything about one person: in two passages (in one if n is 1) among distractors."""
    subject = facts[0].subject
    groups = [facts] if n == 1 else [facts[:2], facts[2:]]
    taken = {key_word(subject)}
    while len(groups) < n:
        other = distinct("birthplace", draw, split, taken)
        facts_of_other = [other, *life(other.subject, draw, split)[1:]]
        groups += [facts_of_other[:2], facts_of_other[2:]]
    gold = tuple(range(min(2, n))) if n else ()
    question = draw.choice(("What is known about {s}?", "Who was {s}?")).format(s=subject)
    return assemble(groups[:n], [(question, account(facts), gold, "life")], draw, gold_at)


def needle(target: Fact, n: int, draw: random.Random, split: str, *, gold_at: int | None = None) -> Episode:
    """Return an episode that asks for a secret word in a haystack of passages about other things."""
    taken = {key_word(target.subject)}
    facts = [target] + [distinct(draw.choice(SINGLE), draw, split, taken) for _ in range(n - 1)]
    turns = [(target.ask(draw), target.object, (0,), target.relation)]
    return assemble([[fact] for fact in facts[:n]], turns, draw, gold_at)
