"""Rows as they come, so that a killed run resumes with what it has and ends with the same numbers."""

from __future__ import annotations

from dataclasses import asdict

from floatlens.evaluation.evaluate import Key, Row
from floatlens.runs.folder import RunFolder


class Journal:
    """The rows that a run has, from its folder if it has one; what a resumed run need not ask again."""

    def __init__(self, folder: RunFolder | None, retry_errors: bool = False, kind: type[Row] = Row) -> None:
        self.folder = folder
        self.found: dict[Key, dict[str, Row]] = {}
        if folder is not None:
            results = [result for result in folder.results() if len(result.key) == 4]
            if retry_errors:
                failed = [result for result in results if result.value.get("error")]
                folder.forget(failed)
                results = [result for result in results if not result.value.get("error")]
            for result in results:
                self._note(kind(**result.value))
            self._write_errors()

    def add(self, row: Row) -> None:
        """Keep a row that no worker has put into the folder."""
        if self.folder is not None:
            self.folder.put((row.model, row.data, row.condition, row.id), asdict(row))
        self.keep(row)

    def keep(self, row: Row) -> None:
        """Note a row that is in the folder."""
        self._note(row)
        if self.folder is not None and row.error:
            self.folder.record_error(_named(row), row.error)

    def rows(self, key: Key, ids: list[str]) -> list[Row]:
        return [self.found[key][id_] for id_ in ids]

    def _note(self, row: Row) -> None:
        self.found.setdefault((row.model, row.data, row.condition), {})[row.id] = row

    def _write_errors(self) -> None:
        assert self.folder is not None
        every = (row for rows in self.found.values() for row in rows.values())
        self.folder.write_errors((_named(row), row.error) for row in every if row.error)


def _named(row: Row) -> str:
    return f"{row.model}, {row.data}, {row.condition}, {row.id}"
