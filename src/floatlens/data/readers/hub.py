"""Data sets of the Hugging Face Hub, streamed (extra `floatlens[datasets]`). Remote code is never run."""

from __future__ import annotations

from collections.abc import Iterator

from floatlens.data.readers.fields import Record
from floatlens.errors import FloatLensError


def records(name: str, split: str | None) -> Iterator[tuple[int, Record]]:
    """Yield row numbers and rows of the data set `owner/name` or `owner/name:config`."""
    try:
        import datasets
    except ImportError:
        raise FloatLensError(
            f"{name!r} is not a local file, and reading it from the Hub needs the package datasets; "
            "check the path, or pip install 'floatlens[datasets]'"
        ) from None
    path, _, config = name.partition(":")
    try:
        stream = datasets.load_dataset(path, config or None, split=split or "validation", streaming=True)
    except Exception as error:  # the Hub's client raises many kinds
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FloatLensError(
            f"data set {name!r} cannot be opened ({reason}); check name, config and --split"
        ) from error
    yield from enumerate(stream, 1)
