"""Arguments are split at commas outside brackets."""

from __future__ import annotations

from floatlens.specs import split_arguments, split_list


def test_arguments_are_split_at_commas_outside_brackets():
    assert split_arguments("a, b(c, d), [e, f]") == ["a", "b(c, d)", "[e, f]"]
    assert split_arguments("a), (b") is None


def test_a_list_may_have_brackets():
    assert [split_list(text) for text in ("[doc1, gold]", "query")] == [["doc1", "gold"], ["query"]]
