"""Samples of the atlas are well-formed and deterministic, and have their gold passage at the requested index."""

from __future__ import annotations

from collections import Counter

import pytest

from floatlens.data.atlas import SPLITS, chains, facts, samples, slug
from floatlens.data.read import expand
from floatlens.errors import FloatLensError
from floatlens.evaluation.metrics import score

from .words import says

HOPS = {"facts": 1, "hops": 2}
SETS = {"facts": "atlas", "hops": "atlas:hops"}
EVERY = [(name, split) for name in HOPS for split in SPLITS]


@pytest.mark.parametrize(("name", "split"), EVERY)
def test_every_fact_and_every_chain_of_a_split_is_asked_once(name, split):
    items = facts() if name == "facts" else chains()
    ids = [sample.id for sample in samples(SETS[name], split, passages=0)]
    assert len(ids) == len(set(ids)) == sum(item.split == split for item in items)
    assert all(id_.isascii() and "/" not in id_ and not id_.startswith(".") for id_ in ids)


@pytest.mark.parametrize(("name", "split"), EVERY)
@pytest.mark.parametrize("passages", [3, 5])
def test_the_answer_stands_in_the_gold_and_in_no_distractor(name, split, passages):
    for sample in samples(SETS[name], split, passages=passages, seed=passages):
        assert len(sample.passages) == passages
        assert len(sample.gold) == HOPS[name]
        assert any(sample.answers[0].lower() in sample.passages[at].text.lower() for at in sample.gold), sample.id
        for passage in sample.passages:
            if not passage.gold:
                assert not says(passage.line, *sample.answers), sample.id


def test_most_distractors_of_a_country_tell_of_other_countries():
    asked = [s for s in samples("atlas", "train", passages=5) if s.meta["relation"] == "capital"]
    texts = [p.text for s in asked for p in s.passages if not p.gold]
    assert sum("capital" in text for text in texts) > 0.8 * len(texts)


def test_a_subject_of_the_test_split_is_never_asked_in_training():
    asked = {
        split: {(s.meta["relation"], s.meta["subject"]) for s in samples("atlas", split, passages=0)}
        for split in SPLITS
    }
    assert not asked["train"] & asked["test"]
    assert not asked["train"] & asked["validation"]
    assert not asked["validation"] & asked["test"]


def test_the_same_call_gives_the_same_samples_and_a_limit_their_beginning():
    first = list(samples("atlas:hops", "test", seed=3))
    assert list(samples("atlas:hops", "test", seed=3)) == first
    assert list(samples("atlas:hops", "test", 7, seed=3)) == first[:7]


def test_the_first_sample_of_the_test_split_stays_the_same():
    sample = next(samples("atlas", "test", passages=2, gold_at=1))
    assert (sample.id, sample.answers) == ("year-the-suez-crisis", ["1956"])


def test_a_seed_changes_passages_and_no_question():
    plain, seeded = (list(samples("atlas", "validation", **options)) for options in ({}, {"seed": 1}))
    assert [s.question for s in plain] == [s.question for s in seeded]
    assert sum(a.passages != b.passages for a, b in zip(plain, seeded, strict=True)) > 0.9 * len(plain)


def test_the_gold_stands_at_every_place_about_equally_often():
    places = Counter(sample.gold[0] for sample in samples("atlas", "train", passages=5))
    total = sum(places.values())
    assert set(places) == set(range(5))
    assert all(abs(count / total - 0.2) < 0.05 for count in places.values())


@pytest.mark.parametrize("gold_at", [0, 2, 4])
def test_the_gold_stands_where_it_is_wanted(gold_at):
    assert all(sample.gold == [gold_at] for sample in samples("atlas", "validation", passages=5, gold_at=gold_at))


def test_hops_keep_their_gold_together_when_its_place_is_given():
    assert all(s.gold == [3, 4] for s in samples("atlas:hops", "validation", passages=5, gold_at=9))


def test_closed_book_has_no_passages_and_one_passage_is_the_gold():
    assert all(sample.passages == [] for sample in samples("atlas", "test", passages=0))
    assert all(sample.gold == [0] for sample in samples("atlas", "test", passages=1))


def test_many_passages_are_found_even_in_the_smallest_split():
    assert all(len(sample.passages) == 30 for sample in samples("atlas", "validation", 20, passages=30))


def test_every_accepted_answer_scores_full_marks():
    for sample in samples("atlas", "test", passages=0):
        assert all(score(answer, sample.answers)["em"] == 1.0 for answer in sample.answers)


def test_the_first_twenty_test_samples_are_of_many_relations():
    assert len({sample.meta["relation"] for sample in samples("atlas", "test", 20, passages=0)}) >= 8


def test_the_reader_serves_both_data_sets_with_five_passages_by_default():
    one, two = next(samples("atlas")), next(samples("atlas:hops", "train"))
    assert (len(one.passages), one.meta["kind"], one.meta["split"]) == (5, "facts", "test")
    assert (len(two.passages), two.meta["kind"], two.meta["split"]) == (5, "hops", "train")
    assert expand("atlas") == ["atlas"]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: expand("atlas:rivers"), "unknown data set 'atlas:rivers'; use one of atlas, atlas:hops"),
        (lambda: list(samples("atlas", "dev")), "unknown split of the atlas 'dev'; use one of train, validation, test"),
        (
            lambda: list(samples("atlas", "validation", passages=900)),
            "validation split of the atlas has .* ask for fewer",
        ),
        (lambda: list(samples(passages=-1)), "passages must be 0 or more, got -1; use 0 for closed book"),
    ],
)
def test_errors_name_the_thing_and_the_way_out(call, says):
    with pytest.raises(FloatLensError, match=says):
        call()


def test_ids_are_written_in_ascii():
    assert slug("capital-São Tomé") == "capital-sao-tome"
