"""The world is deterministic, its splits share no fresh entity, and its rows are consistent."""

import random
from itertools import pairwise, product

import pytest

from floatlens.data.read import read
from floatlens.data.world import LIFE, NAMES, common_names, common_people, key_word, names, pairs, samples, split_of
from floatlens.data.world import SIZES as SPLITS
from floatlens.errors import FloatLensError
from recipes.tiny.curriculum import MIXES
from recipes.tiny.tokenizer import shared

KINDS = ("person", "firm", "ship", "instrument")


def names_of(split):
    return {name for kind in KINDS for name in map(" ".join, product(*pairs(kind))) if split_of(name) == split}


@pytest.fixture(scope="module")
def split_names():
    return {split: names_of(split) for split in SPLITS}


def fresh_names_in(text, split_names):
    """Every pair of neighbouring words of a text that is the name of a fresh entity, by split."""
    tokens = text.replace(".", " ").replace(",", " ").replace(":", " ").replace("?", " ").replace("(", " ").split()
    found = set(map(" ".join, pairwise(tokens)))
    return {split: found & names for split, names in split_names.items()}


def text_of(sample):
    passages = [f"{p.title} {p.text}" for p in sample.passages]
    return "\n".join([sample.question, sample.answers[0], *passages])


def test_no_word_is_in_two_kinds():
    pools = [*names().values()]
    assert len({word for pool in pools for word in pool}) == sum(map(len, pools))


def test_splits_partition_all_fresh_entities(split_names):
    everyone = sum(len(a) * len(b) for a, b in map(pairs, KINDS))
    assert sum(map(len, split_names.values())) == everyone
    assert len(set.union(*split_names.values())) == everyone
    assert not set(common_people()) & set.union(*split_names.values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("split", SPLITS)
def test_rows_of_a_split_name_only_its_own_fresh_entities(name, split, split_names):
    for sample in samples(name, split):
        found = fresh_names_in(text_of(sample), split_names)
        # common people have employers that occur in training: their facts are what training teaches
        others = set(SPLITS) - {split} - ({"train"} if name == "common" else set())
        assert not any(found[other] for other in others), sample.id
        if name != "common":
            assert sample.meta["subject"] in split_names[split]


def test_training_never_names_a_held_out_entity(split_names):
    for number in range(400):
        for _, make in (part for mix in MIXES.values() for part in mix.values()):
            draw = random.Random(number)
            ids, _ = make(draw, "train")()
            found = fresh_names_in(shared().decode(ids), split_names)
            assert not found["validation"] and not found["test"]


def test_common_people_are_many_and_their_facts_never_change():
    assert len(common_people()) >= 400
    assert sum(len(common_names(split)) for split in SPLITS) == len(common_people())
    for sample in samples("common", "test", 100):
        facts = {fact.relation: fact.object for fact in common_people()[sample.meta["subject"]]}
        assert facts[sample.meta["relation"]] == sample.answers[0]


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_the_same_every_time_and_questions_do_not_depend_on_the_seed(name):
    rows = list(samples(name, "validation", 50))
    assert rows == list(samples(name, "validation", 50))
    other = list(samples(name, "validation", 50, passages=7, seed=1))
    assert [sample.meta["subject"] for sample in rows] == [sample.meta["subject"] for sample in other]
    assert [sample.answers for sample in rows] == [sample.answers for sample in other]
    assert [sample.passages for sample in rows] != [sample.passages for sample in other]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [0, 1, 2, 5, 10])
def test_gold_passages_hold_the_answer_and_no_other_does_for_its_subject(name, n):
    for sample in samples(name, "test", 60, passages=n):
        assert len(sample.passages) == n
        assert sample.meta.keys() == {"kind", "relation", "subject"}
        gold = [p.text for p in sample.passages if p.gold]
        answer = sample.answers[0]
        if n >= 2 or (n == 1 and name not in ("hops",)):
            assert len(gold) == (2 if name in ("hops", "long") and n > 1 else 1)
            pieces = answer.split({"long": ". ", "hops": ", "}.get(name, "\n"))
            assert all(any(piece.rstrip(".") in segment for segment in gold) for piece in pieces)
            assert any(sample.meta["subject"] in segment for segment in gold)


@pytest.mark.parametrize("name", ["fresh", "common", "slots", "needle"])
@pytest.mark.parametrize("at", [0, 3, 9])
def test_gold_stands_where_it_is_asked_to(name, at):
    for sample in samples(name, "test", 20, passages=10, gold_at=at):
        assert [p.gold for p in sample.passages].index(True) == at


def test_two_hop_questions_do_not_name_the_bridge():
    for sample in samples("hops", "test", 100, passages=6):
        first, second = [p.text for p in sample.passages if p.gold]
        assert sample.meta["subject"] in first + second
        bridge, end = sample.answers[0].split(", ")
        assert bridge in first and bridge in second and end in first + second
        assert bridge not in sample.question and end not in sample.question


def test_long_answers_have_24_to_32_tokens():
    lengths = [len(shared().encode(sample.answers[0]).ids) for sample in samples("long", "test")]
    assert min(lengths) >= 24 and max(lengths) <= 32


def test_slots_are_asked_with_a_separator():
    assert all(" [SEP] " in sample.question for sample in samples("slots", "test", 50))


def test_every_relation_of_a_life_is_asked_about_common_people():
    assert {sample.meta["relation"] for sample in samples("common", "test")} == set(LIFE)


def test_an_unknown_data_set_or_split_is_named():
    with pytest.raises(FloatLensError, match="unknown data set 'world:fersh'; did you mean 'world:fresh'?"):
        read("world:fersh")
    with pytest.raises(FloatLensError, match="unknown split of the world 'dev'"):
        next(samples("fresh", "dev"))


def test_names_are_told_apart_by_their_key_word():
    assert [key_word(name) for name in ("Mara Tolvin", "Orvanco Works")] == ["Tolvin", "Orvanco"]
    assert [len(half) for half in pairs("person")] == [120, 480]
