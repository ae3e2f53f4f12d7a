"""Two-hop questions of the atlas need both of their facts and have one answer."""

from __future__ import annotations

from collections import Counter

from floatlens.data.atlas import HOPS, SPLITS, chains, samples

from .words import fact, says


def test_every_hop_has_chains_and_every_split_has_hundred():
    assert {chain.relation for chain in chains()} == {f"{hop.first} of {hop.second}" for hop in HOPS}
    assert min(Counter(chain.split for chain in chains()).values()) >= 100


def test_known_chains_lead_to_the_right_answer():
    ends = {(chain.relation, chain.subject): (chain.bridge, chain.answers[0]) for chain in chains()}
    assert ends["currency of capital", "zloty"] == ("Poland", "Warsaw")
    assert ends["author of birthplace", "Moby-Dick"] == ("Herman Melville", "New York City")
    assert ends["city of river", "the Eiffel Tower"] == ("Paris", "Seine")
    assert ends["unit of unit_namesake", "force"] == ("newton", "Isaac Newton")
    assert ends["largest_moon of moon_discoverer", "Saturn"] == ("Titan", "Christiaan Huygens")
    assert ends["nickname of state_capital", "Lone Star State"] == ("Texas", "Austin")


def test_both_facts_of_a_chain_share_the_bridge_and_the_split():
    for chain in chains():
        first, second = chain.relation.split(" of ")
        end = fact(second, chain.bridge)
        assert (end.split, end.answers) == (chain.split, chain.answers)
        begin = fact(first, chain.subject) or fact(first, chain.bridge)
        assert begin.split == chain.split
        assert {chain.subject, chain.bridge} == {begin.subject, begin.answers[0]}


def test_a_start_that_fits_two_entities_is_never_asked():
    starts = Counter((chain.relation, chain.subject) for chain in chains())
    assert max(starts.values()) == 1
    assert ("peak of capital", "Mount Everest") not in starts
    assert ("currency of capital", "euro") not in starts


def test_questions_name_the_start_but_neither_the_bridge_nor_the_end():
    for chain in chains():
        assert len(set(chain.questions)) == len(chain.questions) >= 2
        for question in chain.questions:
            assert chain.subject in question, question
            assert question[0].isupper() and question.endswith("?") and "  " not in question, question
            assert not says(question, chain.bridge, *chain.answers), question


def test_each_passage_alone_leaves_the_question_open():
    for split in SPLITS:
        bridges = {(chain.relation, chain.subject): chain.bridge for chain in chains() if chain.split == split}
        for sample in samples("atlas:hops", split, passages=2, gold_at=0):
            first, second = [passage.line for passage in sample.passages]
            start, bridge = sample.meta["subject"], bridges[sample.meta["relation"], sample.meta["subject"]]
            assert says(first, start) and says(first, bridge), sample.id
            assert says(second, bridge) and says(second, sample.answers[0]), sample.id
            assert not says(first, *sample.answers), sample.id
            assert not says(second, start), sample.id
