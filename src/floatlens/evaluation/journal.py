"""The journal of a run: its existing results, so that an interrupted run resumes and ends with the same numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from floatlens.evaluation.answers import AnswerRecord
from floatlens.evaluation.planning import Key, SharedPrompts
from floatlens.store.folder import Claim, RunFolder

if TYPE_CHECKING:
    from floatlens.evaluation.jobs import ResultRecord


class Journal:
    """Results by key, read from the run folder if there is one.

    Parameters
    ----------
    retry_errors: drop the results that are errors, so that they are tried again.
    kind: the class of the records.
    share_prompts: answer a prompt only once if several questions share it.
    """

    def __init__(
        self,
        folder: RunFolder | None = None,
        *,
        retry_errors: bool = False,
        kind: type[Any] = AnswerRecord,
        share_prompts: bool = False,
    ) -> None:
        self.folder = folder
        self.shared = SharedPrompts() if share_prompts else None
        self.found: dict[Key, Any] = {}
        if folder is None:
            return
        results = folder.results()
        if retry_errors:
            folder.forget(result for result in results if result.value.get("error"))
            results = [result for result in results if not result.value.get("error")]
        self.found = {result.key: kind.from_result(result.key, result.value) for result in results}
        folder.write_errors((record.name, record.error) for record in self.found.values() if record.error)

    @property
    def claim(self) -> Claim | None:
        """The claim of the run folder, for workers."""
        return self.folder.claim if self.folder is not None else None

    def add(self, record: ResultRecord, checksums: Mapping[str, str] | None = None) -> None:
        """Write a result; an error is also listed in errors.jsonl. `checksums` are those of its traces."""
        self.found[record.key] = record
        if self.folder is not None:
            self.folder.put(record.key, record.value(), checksums)
            if record.error:
                self.folder.record_error(record.name, record.error)
