"""BM25 retrieval at run time, over a collection of passages on disk that may change between questions.

The index is bm25s's (arXiv 2407.03618), with Lucene's scoring. It is kept in the user's cache and opened again while the
corpus file is unchanged. After documents were added, replaced or withdrawn, scores are exactly those of an index built from
the new collection: they are recomputed at the next search, from the tokens, which are kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import bm25s
import numpy as np
from numpy.typing import NDArray

from floatlens.data.read import Problems, records_of
from floatlens.data.readers.fields import ID, BadRecord, id_of, passages_of
from floatlens.data.sample import Passage, Sample, contains_words, normalise
from floatlens.errors import FloatLensError
from floatlens.files import atomic_write, cache_folder, temporary_folder

WORD = re.compile(r"\w+")
FORMAT = "1"


class Document(NamedTuple):
    """A passage of a collection and its id."""

    id: str
    passage: Passage


class Hit(NamedTuple):
    """A retrieved document and its BM25 score."""

    document: Document
    score: float


class Index:
    """BM25 over a collection of documents that may change.

    Documents stay on disk and are fetched by their offsets; those that were added since are in memory. Each has a number;
    `live` are the numbers of those in the collection, in their order.
    """

    def __init__(self, folder: Path, bm25: bm25s.BM25 | None = None) -> None:
        self.path = folder / "documents.jsonl"
        self.offsets = np.load(folder / "places.npy")
        self.added: list[Document] = []
        self.live = list(range(len(self.offsets)))
        self._bm25 = bm25
        # The words of all documents as integers, and the numbers of the live ones by id, once they are needed.
        self._vocabulary: dict[str, int] = {}
        self._word_ids: list[NDArray[np.int32]] = []
        self._numbers: dict[str, list[int]] = {}

    @classmethod
    def build(cls, folder: Path, documents: Iterable[Document]) -> Index:
        """Index documents and keep them in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        offsets = []
        with (folder / "documents.jsonl").open("wb") as file:
            for id_, passage in documents:
                offsets.append(file.tell())
                file.write(json.dumps([id_, passage.title, passage.text]).encode() + b"\n")
        if not offsets:
            raise FloatLensError("the corpus has no documents; pass a file with one passage per line")
        np.save(folder / "places.npy", np.asarray(offsets, np.int64))
        index = cls(folder)
        index._prepare_change()
        index._bm25 = index._score_live()
        index._bm25.save(folder / "bm25", show_progress=False)
        return index

    @classmethod
    def open(cls, folder: Path) -> Index:
        """Open an index that was built in `folder`."""
        return cls(folder, bm25s.BM25.load(folder / "bm25", mmap=True, show_progress=False))

    def __len__(self) -> int:
        return len(self.live)

    def __iter__(self) -> Iterator[Document]:
        """Yield the documents of the collection, in their order."""
        return map(self._document, self.live)

    def add(self, documents: Iterable[Document]) -> None:
        """Add documents to the end of the collection; the next search includes them."""
        self._prepare_change()
        for document in documents:
            self.live.append(self._append(document))
            self._numbers.setdefault(document.id, []).append(self.live[-1])

    def replace(self, documents: Iterable[Document]) -> None:
        """Replace the documents with the same ids; the next search includes only the new ones."""
        self._prepare_change()
        for document in documents:
            index = self.live.index(self._number(document.id))
            self.live[index] = self._append(document)
            self._numbers[document.id] = [self.live[index]]

    def withdraw(self, ids: Iterable[str]) -> None:
        """Remove the documents with these ids from the collection."""
        self._prepare_change()
        for id_ in ids:
            self.live.remove(self._number(id_))
            del self._numbers[id_]

    def search(self, question: str, count: int) -> list[Hit]:
        """Return the best `count` documents, best first; on a tie the earlier one comes first."""
        if not self.live:
            return []
        if self._bm25 is None:
            self._bm25 = self._score_live()
        known = [word for word in words(question) if word in self._bm25.vocab_dict]
        if not known:
            return []
        scores: NDArray[np.float32] = self._bm25.get_scores(known)
        best = np.lexsort((np.arange(len(scores)), -scores))[:count]
        return [Hit(self._document(self.live[int(i)]), float(scores[i])) for i in best if scores[i] > 0]

    def _document(self, number: int) -> Document:
        if number >= len(self.offsets):
            return self.added[number - len(self.offsets)]
        with self.path.open("rb") as file:
            file.seek(int(self.offsets[number]))
            return _parse(file.readline())

    def _append(self, document: Document) -> int:
        self.added.append(document)
        self._add_words(document)
        return len(self.offsets) + len(self.added) - 1

    def _add_words(self, document: Document) -> None:
        ids = [self._vocabulary.setdefault(word, len(self._vocabulary)) for word in words(document.passage.line)]
        self._word_ids.append(np.asarray(ids, np.int32))

    def _prepare_change(self) -> None:
        """Read the words and ids of the documents on disk if that was not done yet; the next search computes new scores."""
        self._bm25 = None
        if self._word_ids:
            return
        with self.path.open("rb") as file:
            for number, document in enumerate(map(_parse, file)):
                self._add_words(document)
                self._numbers.setdefault(document.id, []).append(number)

    def _score_live(self) -> bm25s.BM25:
        """Return a BM25 index of the live documents only."""
        chosen = [self._word_ids[number] for number in self.live]
        used = np.unique(np.concatenate(chosen))
        names = list(self._vocabulary)
        bm25 = bm25s.BM25(method="lucene")
        ids = [np.searchsorted(used, each).tolist() for each in chosen]
        bm25.index((ids, {names[word]: new for new, word in enumerate(used.tolist())}), show_progress=False)
        return bm25

    def _number(self, id_: str) -> int:
        """Return the number of the one live document with this id."""
        numbers = self._numbers.get(id_, [])
        if len(numbers) != 1:
            text = "no document" if not numbers else f"{len(numbers)} documents"
            raise FloatLensError(
                f"the collection has {text} with the id {id_!r}; only a document with a unique id can be changed"
            )
        return numbers[0]


def _parse(line: bytes) -> Document:
    id_, title, text = json.loads(line)
    return Document(id_, Passage(text, title))


def words(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return WORD.findall(text.lower())


def read_documents(path: Path, problems: Problems) -> Iterator[Document]:
    """Yield the documents of a JSONL, CSV or parquet file: `text` (or `segment`, `contents`), `title` and `id` if any."""
    for line, record in records_of(path, problems):
        try:
            (passage,) = passages_of([record], "document")
            yield Document(id_of(record, str(line), ID), Passage(passage.text, passage.title))
        except BadRecord as problem:
            problems.add(path.name, line, str(problem))


def index_of(corpus: str | Path, problems: Problems | None = None, cache: Path | None = None) -> Index:
    """Return the index of a corpus file: from the cache, or built and kept there."""
    path = Path(corpus)
    if not path.is_file():
        raise FloatLensError(f"corpus {corpus} does not exist; pass a JSONL, CSV or parquet file of passages")
    documents = read_documents(path, problems if problems is not None else Problems())
    state = path.stat()
    key = f"{FORMAT} {path.resolve()} {state.st_size} {state.st_mtime_ns}"
    folder = (cache or cache_folder() / "bm25") / f"{path.name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if folder.is_dir():
        try:
            return Index.open(folder)
        except (OSError, ValueError, KeyError):  # damaged: build it again
            shutil.rmtree(folder, ignore_errors=True)
    if not _writable(folder.parent):  # keep the index for this process only
        return Index.build(temporary_folder("bm25"), documents)
    with atomic_write(folder) as temporary:
        Index.build(temporary, documents)
    return Index.open(folder)


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def retrieve(sample: Sample, index: Index, count: int) -> Sample:
    """Return the question with retrieved passages instead of its own, and their recall in `meta`.

    `recall` is the share of the sample's gold passages that were found, if it has any; `answer_recall` is 1 if any
    retrieved passage contains an answer.
    """
    gold = [normalise(passage.text) for passage in sample.passages if passage.gold]
    hits = [hit.document.passage for hit in index.search(sample.question, count)]
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
