"""Samples: gold passages, and texts compared by whole words after normalisation."""

from __future__ import annotations

from floatlens.data.sample import Passage, Sample, contains_words, gold_among, move_gold, normalise


def test_gold_passages_are_named_by_index_and_kept_first():
    sample = Sample("1", "Q?", ["a"], [Passage("x"), Passage("y"), Passage("z", gold=True)])
    assert sample.gold == [2]
    assert [passage.text for passage in gold_among(sample, 2).passages] == ["x", "z"]


def test_texts_are_compared_by_whole_words_without_case_articles_and_punctuation():
    assert normalise("The  U.S.A.!") == "usa"
    assert contains_words("It is 42.", "42") and not contains_words("It is 142", "42")


def test_gold_passages_are_moved_among_the_others():
    sample = Sample("1", "Q?", ["a"], [Passage("g", gold=True), Passage("x"), Passage("y")])
    assert [p.text for p in move_gold(sample, 1, 3).passages] == ["x", "g", "y"]
