"""Rows as they come, so that a killed run resumes with what it has and ends with the same numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict

from floatlens.runs.folder import RunFolder
from floatlens.tasks.evaluate import Row
from floatlens.tasks.sample import Sample

Key = tuple[str, str, str]  # model, data, condition
NAME = "progress.jsonl"


class Journal:
    """Rows as they come, on disk if there is a run folder; what a resumed run need not ask again."""

    def __init__(self, folder: RunFolder | None, kind: type[Row] = Row) -> None:
        self.folder = folder
        self.found: dict[Key, dict[str, Row]] = {}
        if folder is not None and (folder.path / NAME).exists():
            for line in (folder.path / NAME).read_text(encoding="utf-8").splitlines():
                try:
                    self._keep(kind(**json.loads(line)))
                except (ValueError, TypeError):
                    break  # the line that was being written when the run was killed
            self._rewrite()

    def unanswered(
        self, samples: Iterable[Sample], key: Key, asked: list[str], done: Callable[[], None]
    ) -> Iterator[Sample]:
        """The samples without a row; all ids are noted in `asked`, in their order."""
        for sample in samples:
            asked.append(sample.id)
            if sample.id in self.found.get(key, {}):
                done()
            else:
                yield sample

    def add(self, row: Row) -> None:
        self._keep(row)
        if self.folder is not None:
            with (self.folder.path / NAME).open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")
            if row.error:
                self.folder.record_error(f"{row.model}, {row.data}, {row.condition}, {row.id}", row.error)

    def rows(self, key: Key, ids: list[str]) -> list[Row]:
        return [self.found[key][id_] for id_ in ids]

    def close(self) -> None:
        """The run is whole: its rows are in answers.parquet."""
        if self.folder is not None:
            (self.folder.path / NAME).unlink(missing_ok=True)

    def _keep(self, row: Row) -> None:
        self.found.setdefault((row.model, row.data, row.condition), {})[row.id] = row

    def _rewrite(self) -> None:
        assert self.folder is not None
        whole = [json.dumps(asdict(row)) + "\n" for rows in self.found.values() for row in rows.values()]
        (self.folder.path / NAME).write_text("".join(whole), encoding="utf-8")
