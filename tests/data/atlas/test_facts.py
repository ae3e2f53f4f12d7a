"""The atlas states true, unambiguous facts in correct English, and every fact lies in one split."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from floatlens.data.atlas import RELATIONS, SPLITS, facts, family_name, fill, mentions, table, with_article
from floatlens.data.sample import normalise

from .words import fact, says, statements

# The periodic table from 1 to 118, written down independently of the atlas.
SYMBOLS = """
H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr Nb Mo Tc
Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi
Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr Rf Db Sg Bh Hs Mt Ds Rg Cn Nh Fl Mc Lv Ts Og
"""
KNOWN = {
    ("capital", "Poland"): ("Warsaw", "test"),
    ("capital", "Australia"): ("Canberra", "test"),
    ("currency", "Japan"): ("yen", "train"),
    ("continent", "Chad"): ("Africa", "test"),
    ("peak", "Greece"): ("Mount Olympus", "test"),
    ("state_capital", "Texas"): ("Austin", "train"),
    ("river", "Prague"): ("Vltava", "train"),
    ("mouth", "Danube"): ("Black Sea", "train"),
    ("city", "the Alhambra"): ("Granada", "train"),
    ("country", "Petra"): ("Jordan", "validation"),
    ("born", "Albert Einstein"): ("1879", "test"),
    ("birthplace", "Ludwig van Beethoven"): ("Bonn", "train"),
    ("author", "Moby-Dick"): ("Herman Melville", "train"),
    ("artist", "The Night Watch"): ("Rembrandt", "train"),
    ("composer", "Boléro"): ("Maurice Ravel", "test"),
    ("symbol", "Au"): ("gold", "test"),
    ("unit", "force"): ("newton", "test"),
    ("planet", "third"): ("Earth", "train"),
    ("moon_discoverer", "Titan"): ("Christiaan Huygens", "train"),
    ("first", "dynamite"): ("Alfred Nobel", "train"),
    ("year", "the Battle of Hastings"): ("1066", "train"),
    ("young", "swan"): ("cygnet", "train"),
    ("class", "bat"): ("mammals", "test"),
    ("roman", "Zeus"): ("Jupiter", "train"),
}
LOOSE = {"continent", "language", "symbol", "number", "planet"}  # a passage can name subject and answer by chance


def test_there_are_more_than_two_thousand_facts_in_thirty_relations():
    assert len(facts()) > 2000
    assert len(RELATIONS) > 30
    assert {item.relation for item in facts()} == set(RELATIONS)


def test_each_subject_has_one_fact_per_relation():
    twice = [key for key, n in Counter((item.relation, item.subject) for item in facts()).items() if n > 1]
    assert twice == []


@pytest.mark.parametrize(("relation", "subject"), KNOWN)
def test_well_known_facts_are_right_and_stay_in_their_split(relation, subject):
    found = fact(relation, subject)
    assert (found.answers[0], found.split) == KNOWN[relation, subject]


def test_atomic_numbers_agree_with_the_periodic_table():
    symbols = SYMBOLS.split()
    for row in table("elements"):
        assert symbols[int(row["number"][0]) - 1] == row["symbol"][0]


@pytest.mark.parametrize("category", sorted({relation.table for relation in RELATIONS.values()}))
def test_tables_have_no_stray_blanks_and_no_final_full_stops(category):
    for row in table(category):
        for cell in row.values():
            assert all(part == part.strip() and part for part in cell), cell
        assert not row.get("note", ("",))[0].endswith("."), row


def test_each_passage_names_the_subject_and_the_answer_as_they_are_written():
    for item in facts():
        for text in statements(item):
            assert item.subject in text or item.subject[0].upper() + item.subject[1:] in text, text
            assert item.answers[0] in text or item.answers[0][0].upper() + item.answers[0][1:] in text, text


def test_each_question_names_the_subject_but_no_accepted_answer():
    for item in facts():
        for question in item.questions:
            assert item.subject in question, question
            assert not says(question, *item.answers), question


def test_each_fact_is_told_in_three_ways_and_asked_in_two():
    for item in facts():
        assert len(set(statements(item))) >= 3, item.subject
        assert len(set(item.questions)) >= 2, item.subject


def test_passages_are_two_or_three_sentences_of_twelve_to_forty_five_words():
    for item in facts():
        for text in statements(item):
            assert 12 <= len(text.split()) <= 45, text
            plain = re.sub(r"\b(D\.C|St|Jr|Dr|No|[A-Z])\.", r"\1", text)
            assert len(re.findall(r"\.(?= |$)", plain)) in (1, 2, 3), text


def test_passages_and_questions_are_tidy_english():
    for item in facts():
        for text in [*statements(item), *item.questions]:
            assert text[0].isupper() or text[0].isdigit(), text
            assert text.endswith("." if text in statements(item) else "?"), text
            assert not re.search(r"  |\.\.| [.,;?]|[{}|\t\n]|\bthe the\b|\bThe the\b", text), text
            for begin in re.findall(r"(?<![A-Z])(?<!St)(?<!Jr)(?<!Dr)\. (\w)", text):
                assert begin.isupper() or begin.isdigit(), text


def test_indefinite_articles_fit_the_sound_that_follows():
    sounds_like_consonant = r"(?:[Uu]ni|[Ee]u|[Oo]ne\b|[Uu]kr)"
    for item in facts():
        for text in statements(item):
            for article, word in re.findall(r"\b([Aa]n?) (\w[\w-]*)", text):
                if re.search(rf"symbol {article} ", text) or re.search(rf"\b(group|groups) {article}\b", text):
                    continue  # the letter A, not the article
                vowel = word[0] in "aeiouAEIOU" and not re.match(sounds_like_consonant, word)
                assert (article.lower() == "an") == (vowel or word in {"hour", "honest", "X-ray"}), text


def test_article_goes_by_sound():
    phrases = ["opera", "Italian poet", "unit", "European", "novel", "hour"]
    assert [with_article(phrase).split()[0] for phrase in phrases] == ["an", "an", "a", "a", "a", "an"]


def test_answers_are_short_and_all_variants_differ():
    for item in facts():
        assert len(item.answers[0].split()) <= 5, item.answers
        assert len(set(item.answers)) == len(item.answers), item.answers
        assert all(normalise(answer) for answer in item.answers)


def test_a_group_lies_in_one_split_and_shares_are_seventy_ten_twenty():
    rows: dict[tuple[str, str], set[str]] = {}
    for item in facts():
        rows.setdefault((RELATIONS[item.relation].table, item.words["name"]), set()).add(item.split)
    assert all(len(splits) == 1 for splits in rows.values())
    shares = Counter(item.split for item in facts())
    for split, share in zip(SPLITS, (0.7, 0.1, 0.2), strict=True):
        assert shares[split] / len(facts()) == pytest.approx(share, abs=0.03)


def test_no_training_passage_tells_a_fact_of_another_split():
    by_word: dict[str, set[str]] = {}
    for text in {text for item in facts() if item.split == "train" for text in statements(item)}:
        for word in normalise(text).split():
            by_word.setdefault(word, set()).add(text)
    for item in facts():
        if item.split != "train" and item.relation not in LOOSE:
            told = set.intersection(*(by_word.get(word, set()) for word in normalise(item.subject).split()))
            assert not [text for text in told if says(text, item.subject) and says(text, *item.answers)], item


def test_templates_are_filled_in_correct_english():
    assert fill("{s} is wet. It rains in {s}.", {"s": "the Gambia"}) == "The Gambia is wet. It rains in the Gambia."
    assert [with_article(word) for word in ("English novel", "unit", "hour")] == [
        "an English novel",
        "a unit",
        "an hour",
    ]
    assert [family_name(name) for name in ("Ludwig van Beethoven", "Homer")] == ["van Beethoven", "Homer"]
    assert fact("capital", "the Gambia").evidence[0][0] == "The Gambia"
    poland = fact("capital", "Poland")
    assert poland.questions[0] == "What is the capital of Poland?"
    assert statements(poland)[0].startswith("Poland is a country in Europe, and its capital is Warsaw. It was the home")


def test_only_whole_words_mention_an_answer():
    assert mentions("It is 42.", ["42"]) and not mentions("It is 142.", ["42"])
