"""Retrieval: BM25 over a collection that grows, and recall."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys

import pandas
import pytest

from floatlens.data.read import Problems
from floatlens.data.retrieval import Document, Index, index_of, retrieve, words
from floatlens.data.sample import Passage, Sample
from floatlens.errors import FloatLensError

TEXTS = [
    "Ada Tarn lives in Molen.",
    "Ben Oder lives in Rusk.",
    "Molen has a mill.",
    "The mill of Rusk burnt down in 1802.",
]


def document(number, text):
    return Document(str(number), Passage(text))


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(TEXTS)))
    return path


def lucene(question, texts, k1=1.5, b=0.75):
    """BM25 by its formula, for comparison."""
    split = [words(t) for t in texts]
    average = sum(map(len, split)) / len(split)
    scores = []
    for doc in split:
        total = 0.0
        for word in words(question):
            containing = sum(word in d for d in split)
            if containing:
                idf = math.log(1 + (len(split) - containing + 0.5) / (containing + 0.5))
                tf = doc.count(word)
                total += idf * tf / (tf + k1 * (1 - b + b * len(doc) / average))
        scores.append(total)
    return scores


def test_scores_are_bm25_s(tmp_path):
    index = Index((document(i, t) for i, t in enumerate(TEXTS)))
    wanted = lucene("Where is the mill of Molen?", TEXTS)
    hits = index.search("Where is the mill of Molen?", 10)
    assert {found.id: pytest.approx(score, rel=1e-5) for found, score in hits} == {
        str(i): s for i, s in enumerate(wanted) if s > 0
    }
    assert [score for _, score in hits] == sorted((score for _, score in hits), reverse=True)
    assert index.search("xyzzy", 3) == [] and len(index.search("mill", 1)) == 1


def test_documents_added_between_questions_score_as_if_they_had_always_been_there(tmp_path, corpus):
    grown = index_of(corpus, cache=tmp_path / "cache")
    assert grown.search("Cleo Vann", 3) == []
    grown.add([document(9, "Cleo Vann lives in Molen.")])
    whole = Index([*(document(i, t) for i, t in enumerate(TEXTS)), document(9, "Cleo Vann lives in Molen.")])
    for question in ("Cleo Vann", "Who lives in Molen?", "mill"):
        assert grown.search(question, 5) == whole.search(question, 5)
    assert len(grown) == 5


def test_a_changed_collection_answers_like_a_fresh_index_of_what_is_left(tmp_path, corpus):
    """Random changes, and after each of them the same hits and scores as an index built anew, in the same order."""
    draw = random.Random(7)
    index = index_of(corpus, cache=tmp_path / "cache")
    wanted = [document(i, t) for i, t in enumerate(TEXTS)]
    vocabulary = sorted({word for text in TEXTS for word in words(text)})
    for number in range(24):
        kind = draw.choice(["add", "replace", "withdraw"] if len(wanted) > 2 else ["add"])
        at = draw.randrange(len(wanted))
        if kind == "add":
            wanted.append(document(100 + number, " ".join(draw.choices(vocabulary, k=6))))
            index.add([wanted[-1]])
        elif kind == "replace":
            wanted[at] = Document(wanted[at].id, Passage(" ".join(draw.choices(vocabulary, k=6))))
            index.replace([wanted[at]])
        else:
            index.withdraw([wanted.pop(at).id])
        fresh = Index(wanted)
        assert list(index) == wanted and len(index) == len(wanted)
        for question in ("Who lives in Molen?", "mill", "cleo burnt", "1802"):
            assert index.search(question, 5) == fresh.search(question, 5)
    index.withdraw([each.id for each in wanted])
    assert index.search("mill", 3) == []
    index.add([document(1, "A mill.")])
    assert [found.id for found, _ in index.search("mill", 3)] == ["1"]


def test_only_a_document_that_is_there_once_can_be_changed(tmp_path):
    index = Index([document(1, "a b"), document(2, "c"), document(2, "d")])
    for ids in (["9"], ["2"]):
        with pytest.raises(FloatLensError, match="only a document with a unique id can be changed"):
            index.withdraw(ids)
    with pytest.raises(FloatLensError, match="no document with the id '9'"):
        index.replace([document(9, "x")])


def test_the_index_is_opened_again_while_the_corpus_is_unchanged(tmp_path, corpus, monkeypatch):
    cache = tmp_path / "cache"
    first = index_of(corpus, cache=cache).search("Ada lives", 2)
    save = Index.save
    monkeypatch.setattr(Index, "save", lambda *a: pytest.fail("built again"))
    assert index_of(corpus, cache=cache).search("Ada lives", 2) == first
    monkeypatch.setattr(Index, "save", save)
    corpus.write_text(json.dumps({"text": "Ada lives nowhere."}) + "\n")
    assert index_of(corpus, cache=cache).search("Ada", 2)[0][0].passage.text == "Ada lives nowhere."
    for part in cache.glob("*/*"):
        part.write_bytes(b"")
    assert index_of(corpus, cache=cache).search("Ada", 2)  # a damaged index is built again


def test_parquet_and_titles(tmp_path):
    pandas.DataFrame({"id": ["x"], "title": ["Ada Tarn"], "contents": ["lives in Molen"]}).to_parquet(
        tmp_path / "c.parquet"
    )
    ((found, _),) = index_of(tmp_path / "c.parquet", cache=tmp_path / "cache").search("ada", 3)
    assert found == Document("x", Passage("lives in Molen", "Ada Tarn"))


def test_recall_of_gold_and_of_the_answer(tmp_path, corpus):
    index = index_of(corpus, cache=tmp_path / "cache")
    gold = [Passage("Ada Tarn lives in Molen", gold=True), Passage("Something else entirely.", gold=True), Passage("x")]
    found = retrieve(Sample("1", "Where does Ada Tarn live?", ["Molen"], gold), index, 2)
    assert found.meta == {"recall": 0.5, "answer_recall": 1.0}
    assert found.passages[0].text == TEXTS[0] and found.gold == [0]
    missed = retrieve(Sample("1", "Who is xyzzy?", ["Molen"]), index, 2)
    assert missed.passages == [] and missed.meta == {"answer_recall": 0.0}


def test_a_corpus_that_cannot_be_used_is_named(tmp_path):
    with pytest.raises(FloatLensError, match=r"corpus .*gone\.jsonl does not exist"):
        index_of(tmp_path / "gone.jsonl")
    path = tmp_path / "c.jsonl"
    path.write_text('{"n": 1}\n{"text": "good"}\n')
    problems = Problems()
    assert len(index_of(path, problems, cache=tmp_path / "cache")) == 1
    assert "c.jsonl, line 1: document[0] has no text" in problems.summary()
    path.write_text('{"n": 1}\n')
    with pytest.raises(FloatLensError, match="the corpus has no documents"):
        index_of(path, cache=tmp_path / "cache")


def test_an_index_that_cannot_be_kept_stays_in_memory(tmp_path, corpus):
    (tmp_path / "file").write_text("a file where the cache should be")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    script = (
        "import os; from pathlib import Path; from floatlens.data.retrieval import index_of; "
        f"index = index_of({str(corpus)!r}, cache=Path({str(tmp_path / 'file')!r})); "
        "assert index.search('Ada lives', 1); print(len(os.listdir(os.environ['TMPDIR'])))"
    )
    environment = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "0\n" and not list(temporary.iterdir())
