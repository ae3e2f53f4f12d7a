"""BM25 retrieval at run time, over a collection of passages that may change between questions.

The index is bm25s's (arXiv 2407.03618), with Lucene's scoring. That of a corpus file is kept in the user's cache and opened
again while the file is unchanged. After documents were added, replaced or withdrawn, scores are exactly those of an index
built from the new collection: they are recomputed at the next search.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import bm25s
import numpy as np
from numpy.typing import NDArray

from floatlens.data.formats import records_of
from floatlens.data.layouts import id_of, passages_of
from floatlens.data.read import Problems
from floatlens.data.sample import Passage, Sample, contains_words, normalise
from floatlens.errors import FloatLensError
from floatlens.files import atomic_write, cache_folder

WORD = re.compile(r"\w+")
FORMAT = "2"


class Document(NamedTuple):
    """A passage of a collection and its id."""

    id: str
    passage: Passage


class Index:
    """BM25 over a collection of documents. Those of a saved index stay on disk until the collection is changed."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._documents: Any = list(documents)  # or the lines of a saved index
        self._words: list[list[str]] = []  # of each document, once they are needed
        self._bm25: bm25s.BM25 | None = None

    @classmethod
    def open(cls, folder: Path) -> Index:
        """Open an index that was saved in `folder`."""
        index = cls(())
        index._bm25 = bm25s.BM25.load(folder, load_corpus=True, mmap=True, show_progress=False, verbosity=0)
        index._documents = index._bm25.corpus
        return index

    def save(self, folder: Path) -> None:
        """Save the index and its documents in `folder`."""
        lines = [[id_, passage.title, passage.text] for id_, passage in self]
        self._scores().save(folder, corpus=lines, show_progress=False)

    def __len__(self) -> int:
        return len(self._documents)

    def __iter__(self) -> Iterator[Document]:
        """Yield the documents of the collection, in their order."""
        return map(self._document, range(len(self)))

    def add(self, documents: Iterable[Document]) -> None:
        """Add documents to the end of the collection; the next search includes them."""
        self._prepare_change()
        for document in documents:
            self._documents.append(document)
            self._words.append(words(document.passage.line))

    def replace(self, documents: Iterable[Document]) -> None:
        """Replace the documents with the same ids; the next search includes only the new ones."""
        self._prepare_change()
        for document in documents:
            at = self._position(document.id)
            self._documents[at], self._words[at] = document, words(document.passage.line)

    def withdraw(self, ids: Iterable[str]) -> None:
        """Remove the documents with these ids from the collection."""
        self._prepare_change()
        for id_ in ids:
            at = self._position(id_)
            del self._documents[at], self._words[at]

    def search(self, question: str, count: int) -> list[tuple[Document, float]]:
        """Return the best `count` documents with their scores, best first; on a tie the earlier one comes first."""
        if not len(self):
            return []
        bm25 = self._scores()
        known = [word for word in words(question) if word in bm25.vocab_dict]
        if not known:
            return []
        scores: NDArray[np.float32] = bm25.get_scores(known)
        best = np.lexsort((np.arange(len(scores)), -scores))[:count]
        return [(self._document(int(i)), float(scores[i])) for i in best if scores[i] > 0]

    def _document(self, position: int) -> Document:
        found = self._documents[position]
        if isinstance(found, Document):
            return found
        id_, title, text = found
        return Document(id_, Passage(text, title))

    def _prepare_change(self) -> None:
        """Hold the documents and their words in memory; the next search computes new scores."""
        self._documents = list(self)
        self._words = self._words or [words(passage.line) for _, passage in self]
        self._bm25 = None

    def _scores(self) -> bm25s.BM25:
        if self._bm25 is None:
            self._prepare_change()
            vocabulary: dict[str, int] = {}
            ids = [[vocabulary.setdefault(word, len(vocabulary)) for word in each] for each in self._words]
            self._bm25 = bm25s.BM25(method="lucene")
            self._bm25.index((ids, vocabulary), show_progress=False)
        return self._bm25

    def _position(self, id_: str) -> int:
        """Return the position of the one document with this id."""
        positions = [position for position, document in enumerate(self._documents) if document.id == id_]
        if len(positions) != 1:
            found = f"{len(positions)} documents" if positions else "no document"
            raise FloatLensError(
                f"the collection has {found} with the id {id_!r}; only a document with a unique id can be changed"
            )
        return positions[0]


def words(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return [sys.intern(word) for word in WORD.findall(text.lower())]


def read_documents(path: Path, problems: Problems) -> Iterator[Document]:
    """Yield the documents of a JSONL, CSV or parquet file: `text` (or `segment`, `contents`), `title` and `id` if any."""
    for line, record in records_of(path, problems):
        try:
            (passage,) = passages_of([record], "document")
            yield Document(id_of(record) or str(line), Passage(passage.text, passage.title))
        except FloatLensError as problem:
            problems.add(path.name, line, str(problem))


def index_of(corpus: str | Path, problems: Problems | None = None, cache: Path | None = None) -> Index:
    """Return the index of a corpus file: from the cache, or built and kept there."""
    path = Path(corpus)
    if not path.is_file():
        raise FloatLensError(f"corpus {corpus} does not exist; pass a JSONL, CSV or parquet file of passages")
    state = path.stat()
    key = f"{FORMAT} {path.resolve()} {state.st_size} {state.st_mtime_ns}"
    folder = (cache or cache_folder() / "bm25") / f"{path.name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if folder.is_dir():
        try:
            return Index.open(folder)
        except (OSError, EOFError, ValueError, KeyError):  # damaged: build it again
            shutil.rmtree(folder, ignore_errors=True)
    index = Index(read_documents(path, problems if problems is not None else Problems()))
    if not len(index):
        raise FloatLensError("the corpus has no documents; pass a file with one passage per line")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder) as temporary:
            index.save(temporary)
    except OSError:  # the cache cannot be written: the index stays in memory
        return index
    return Index.open(folder)


def retrieve(sample: Sample, index: Index, count: int) -> Sample:
    """Return the question with retrieved passages instead of its own, and their recall in `meta`.

    `recall` is the share of the sample's gold passages that were found, if it has any; `answer_recall` is 1 if any
    retrieved passage contains an answer.
    """
    gold = [normalise(passage.text) for passage in sample.passages if passage.gold]
    hits = [document.passage for document, _ in index.search(sample.question, count)]
    same = [[_same(wanted, normalise(hit.text)) for wanted in gold] for hit in hits]
    passages = [Passage(hit.text, hit.title, gold=any(row)) for hit, row in zip(hits, same, strict=True)]
    meta = dict(sample.meta)
    if gold:
        meta["recall"] = sum(any(row[i] for row in same) for i in range(len(gold))) / len(gold)
    meta["answer_recall"] = float(any(contains_words(p.line, a) for p in passages for a in sample.answers))
    return replace(sample, passages=passages, meta=meta)


def _same(wanted: str, text: str) -> bool:
    """Whether two texts are the same passage, possibly cut differently in the corpus."""
    return bool(wanted and text) and (wanted in text or (text in wanted and len(text) > 80))
