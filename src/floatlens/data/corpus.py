"""A collection of passages on disk: written while it is read, fetched one at a time, never whole in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from floatlens.data.readers.fields import ID, id_of, passages_of
from floatlens.data.readers.problems import BadRecord, Problems
from floatlens.data.readers.registry import records_of
from floatlens.data.sample import Passage
from floatlens.errors import FloatLensError


class Document(NamedTuple):
    """A passage of a collection and its id."""

    id: str
    passage: Passage


def documents(path: Path, problems: Problems) -> Iterator[Document]:
    """Documents of a JSONL, CSV or parquet file: `text` (or `segment`, `contents`), `title` and `id` if any."""
    if not path.is_file():
        raise FloatLensError(f"corpus {path} is not there; give a JSONL, CSV or parquet file of passages")
    for line, record in records_of(path, problems):
        try:
            (passage,) = passages_of([record], "document")
            yield Document(id_of(record, str(line), ID), Passage(passage.text, passage.title))
        except BadRecord as problem:
            problems.add(path.name, line, str(problem))


class Store:
    """Documents in one file with the place of each; more can be appended."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "documents.jsonl"
        self.places = np.load(folder / "places.npy")
        self.added: list[Document] = []

    @staticmethod
    def write(folder: Path, found: Iterable[Document]) -> Iterator[Document]:
        """Write documents while they pass through."""
        places = []
        with (folder / "documents.jsonl").open("wb") as file:
            for document in found:
                places.append(file.tell())
                line = [document.id, document.passage.title, document.passage.text]
                file.write(json.dumps(line).encode() + b"\n")
                yield document
        np.save(folder / "places.npy", np.asarray(places, np.int64))

    def __len__(self) -> int:
        return len(self.places) + len(self.added)

    def __getitem__(self, index: int) -> Document:
        if index >= len(self.places):
            return self.added[index - len(self.places)]
        with self.path.open("rb") as file:
            file.seek(int(self.places[index]))
            id_, title, text = json.loads(file.readline())
        return Document(id_, Passage(text, title))

    def __iter__(self) -> Iterator[Document]:
        with self.path.open("rb") as file:
            for line in file:
                id_, title, text = json.loads(line)
                yield Document(id_, Passage(text, title))
        yield from self.added
