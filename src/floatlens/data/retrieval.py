"""BM25 retrieval at run time, over a collection that may grow between questions.

The index is bm25s's (arXiv 2407.03618), with Lucene's scoring. It is kept in the user's cache and opened again while
the corpus file is unchanged. Documents added later are scored exactly as if they had been there from the
start: the scores are computed anew, from tokens that are kept, at the next search.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import bm25s
import numpy as np
from numpy.typing import NDArray

from floatlens.data.corpus import Document, Store, documents
from floatlens.data.metrics import accuracy_words, normalise
from floatlens.data.readers.problems import Problems
from floatlens.data.sample import Passage, Sample
from floatlens.errors import FloatLensError
from floatlens.files import atomic_write

WORD = re.compile(r"\w+")
FORMAT = "1"


class Hit(NamedTuple):
    """A retrieved document and its BM25 score."""

    document: Document
    score: float


class Index:
    """BM25 over a store of documents."""

    def __init__(self, store: Store, bm25: bm25s.BM25 | None = None, tokens: Tokens | None = None) -> None:
        self.store = store
        self._bm25 = bm25
        self._tokens = tokens

    @classmethod
    def build(cls, folder: Path, found: Iterable[Document]) -> Index:
        """Index documents, keeping them in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        tokens = Tokens()
        for document in Store.write(folder, found):
            tokens.add(document.passage)
        if not tokens.ids:
            raise FloatLensError("the corpus has no documents; give a file with one passage a line")
        index = cls(Store(folder), tokens=tokens)
        index._bm25 = tokens.index()
        index._bm25.save(folder / "bm25", show_progress=False)
        return index

    @classmethod
    def open(cls, folder: Path) -> Index:
        """Open an index that was built in `folder`."""
        return cls(Store(folder), bm25s.BM25.load(folder / "bm25", mmap=True, show_progress=False))

    def __len__(self) -> int:
        return len(self.store)

    def add(self, found: Iterable[Document]) -> None:
        """Add documents; the next search sees them."""
        if self._tokens is None:
            self._tokens = Tokens()
            for document in self.store:
                self._tokens.add(document.passage)
        for document in found:
            self.store.added.append(document)
            self._tokens.add(document.passage)
            self._bm25 = None

    def search(self, question: str, count: int) -> list[Hit]:
        """The best `count` documents, best first; of equal ones the earlier."""
        if self._bm25 is None:
            assert self._tokens is not None
            self._bm25 = self._tokens.index()
        known = [word for word in words(question) if word in self._bm25.vocab_dict]
        if not known:
            return []
        scores: NDArray[np.float32] = self._bm25.get_scores(known)
        best = np.lexsort((np.arange(len(scores)), -scores))[:count]
        return [Hit(self.store[int(i)], float(scores[i])) for i in best if scores[i] > 0]


class Tokens:
    """The words of all documents as numbers."""

    def __init__(self) -> None:
        self.vocabulary: dict[str, int] = {}
        self.ids: list[NDArray[np.int32]] = []

    def add(self, passage: Passage) -> None:
        numbers = [self.vocabulary.setdefault(word, len(self.vocabulary)) for word in words(passage.line)]
        self.ids.append(np.asarray(numbers, np.int32))

    def index(self) -> bm25s.BM25:
        bm25 = bm25s.BM25(method="lucene")
        bm25.index(([ids.tolist() for ids in self.ids], dict(self.vocabulary)), show_progress=False)
        return bm25


def words(text: str) -> list[str]:
    """
    >>> words("Who's Ada?")
    ['who', 's', 'ada']
    """
    return WORD.findall(text.lower())


def index_of(corpus: str | Path, problems: Problems | None = None, cache: Path | None = None) -> Index:
    """The index of a corpus file: opened from the cache, or built and kept there."""
    path = Path(corpus)
    if not path.is_file():
        raise FloatLensError(f"corpus {corpus} is not there; give a JSONL, CSV or parquet file of passages")
    found = documents(path, problems if problems is not None else Problems())
    state = path.stat()
    key = f"{FORMAT} {path.resolve()} {state.st_size} {state.st_mtime_ns}"
    folder = (cache or _cache()) / f"{path.name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if folder.is_dir():
        try:
            return Index.open(folder)
        except (OSError, ValueError, KeyError):  # damaged: build it again
            shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder) as temporary:
            Index.build(temporary, found)
    except OSError:  # the cache cannot be written: keep the index for this run only
        return Index.build(Path(tempfile.mkdtemp(prefix="floatlens-bm25-")), found)
    return Index.open(folder)


def retrieve(sample: Sample, index: Index, count: int) -> Sample:
    """The question with retrieved passages in place of its own, and in `meta` how much of the evidence is among them.

    `recall` is the share of the data's gold passages that were found, if it has any; `answer_recall` whether any
    passage holds an answer.
    """
    gold = [normalise(passage.text) for passage in sample.passages if passage.gold]
    hits = [hit.document.passage for hit in index.search(sample.question, count)]
    same = [[_same(wanted, normalise(hit.text)) for wanted in gold] for hit in hits]
    passages = [Passage(hit.text, hit.title, gold=any(row)) for hit, row in zip(hits, same, strict=True)]
    meta = dict(sample.meta)
    if gold:
        meta["recall"] = sum(any(row[i] for row in same) for i in range(len(gold))) / len(gold)
    meta["answer_recall"] = float(any(accuracy_words(p.line, a) for p in passages for a in sample.answers))
    return replace(sample, passages=passages, meta=meta)


def _same(wanted: str, found: str) -> bool:
    """The same passage, or one that a corpus has cut differently."""
    return bool(wanted and found) and (wanted in found or (found in wanted and len(found) > 80))


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "floatlens" / "bm25"
