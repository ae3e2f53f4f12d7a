"""File formats: the records of JSON lines, CSV, TSV and parquet files, and of data sets on the Hugging Face Hub.

Text files may be gzipped. They are read one line of bounded length at a time; a line that cannot be used is reported to
`problems`, and reading continues.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    from floatlens.data.read import Problems, Record

MAX_LINE = 32 * 2**20  # bytes; the largest KILT line is below 1 MB
MAX_BATCH = 256 * 2**20  # bytes of 64 rows of a parquet file
BOMB = 2**21  # unpacked bytes of a gzip file after which its ratio of compression is checked
RATIO = 500  # gzip can reach 1000; text reaches about 10
SEPARATORS = (";", "\t", ",", "|")


def lines(path: Path, problems: Problems) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without the line break) of every line that is UTF-8; a line has a maximum length."""
    with _open(path) as file:
        number = unpacked = 0
        try:
            while raw := file.readline(MAX_LINE + 1):
                number += 1
                unpacked += len(raw)
                _refuse_bomb(file, unpacked, path)
                if len(raw) > MAX_LINE:
                    raise FloatLensError(
                        f"{path}, line {number} is longer than {MAX_LINE:,} bytes; it is not a text file"
                    )
                if number == 1 and raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
                    raise FloatLensError(f"{path} is UTF-16, expected UTF-8; convert it with iconv -f UTF-16 -t UTF-8")
                if number == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                try:
                    yield number, raw.decode("utf-8").rstrip("\r\n")
                except UnicodeDecodeError as error:
                    what = f"is not UTF-8 (byte 0x{raw[error.start]:02x} at offset {error.start})"
                    problems.add(path.name, number, f"{what}; convert the file with iconv -t UTF-8")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            if number == 0:
                raise FloatLensError(f"{path} is not a complete gzip file ({error}); download it again") from None
            what = f"the gzip file is damaged from here on ({error}); the rest is not read"
            problems.add(path.name, number + 1, what)
    if number == 0:
        raise FloatLensError(f"{path} is empty; expected one record per line")


def _open(path: Path) -> IO[bytes]:
    try:
        return cast(IO[bytes], gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")
    except OSError as error:
        raise FloatLensError(f"{path} cannot be opened ({error.strerror}); check the path") from None


def _refuse_bomb(file: IO[bytes], unpacked: int, path: Path) -> None:
    """Raise an error for a gzip file that unpacks to several hundred times its size."""
    if unpacked > BOMB and isinstance(file, gzip.GzipFile):
        packed = cast(Any, file).fileobj.tell()
        if unpacked > RATIO * packed:
            raise FloatLensError(
                f"{path} unpacks to more than {unpacked // packed} times its size, so it is not a text file; it is not read"
            )


def jsonl(path: Path, problems: Problems) -> Iterator[tuple[int, Record]]:
    """Yield line numbers and objects of a file with one JSON object per line."""
    for number, line in lines(path, problems):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            if "\\ud" in line.lower():
                json.dumps(value, ensure_ascii=False).encode()  # fails for half of a surrogate pair, which is not text
        except (ValueError, RecursionError) as error:
            reason = str(error) if isinstance(error, ValueError) else "nested too deeply"
            problems.add(path.name, number, f"is not JSON ({reason})")
            continue
        if isinstance(value, dict):
            yield number, value
        else:
            problems.add(path.name, number, f"is a {type(value).__name__}; expected one JSON object per line")


def delimited(path: Path, problems: Problems) -> Iterator[tuple[int, Record]]:
    """Yield line numbers and rows of a CSV or TSV file with a header line; a cell may contain a JSON list or object."""
    separator = "\t" if ".tsv" in path.suffixes else ","
    csv.field_size_limit(MAX_LINE)  # an unclosed quote would otherwise read the rest of the file as one cell
    at = 0

    def texts() -> Iterator[str]:
        nonlocal at
        for number, line in lines(path, problems):
            at = number
            yield line + "\n"

    rows = csv.reader(texts(), delimiter=separator, strict=True)
    header: list[str] = []
    while True:
        try:
            row = next(rows)
        except StopIteration:
            break
        except csv.Error as error:
            problems.add(path.name, at, f"is not {'CSV' if separator == ',' else 'TSV'} ({error})")
            continue
        if not any(cell.strip() for cell in row):
            continue
        if not header:
            header = [name.strip() for name in row]
            _check_header(path, at, header, separator)
        elif len(row) != len(header):
            problems.add(path.name, at, f"has {len(row)} cells; the header has {len(header)}")
        else:
            yield at, {name: _value(name, cell) for name, cell in zip(header, row, strict=True)}


def _check_header(path: Path, at: int, header: list[str], separator: str) -> None:
    if len(set(header)) < len(header):
        raise FloatLensError(f"{path}, line {at}: the header names a column twice; use unique column names")
    other = next((sign for sign in SEPARATORS if sign != separator and sign in header[0]), None)
    if len(header) == 1 and other:
        raise FloatLensError(
            f"{path} seems to have the separator {other!r}; a .csv file needs commas and a .tsv file tabs "
            f"(its header is one column, {header[0][:60]!r})"
        )


def _value(name: str, cell: str) -> Any:
    if not cell.strip():
        return None
    if cell.lstrip()[0] in "[{":
        try:
            return json.loads(cell)
        except (ValueError, RecursionError):
            return cell
    return int(cell) if name == "gold" and cell.strip().isdecimal() else cell


def parquet(path: Path, problems: Problems) -> Iterator[tuple[int, Record]]:
    """Yield row numbers and rows of a parquet file, read a few rows at a time."""
    from floatlens.untrusted import parquet_batches  # pyarrow takes a moment to import

    number = 0
    for batch in parquet_batches(str(path), str(path), path.stat().st_size, MAX_BATCH, rows=64):
        for row in batch.to_pylist():
            number += 1
            yield number, row
    if number == 0:
        raise FloatLensError(f"{path} is empty; expected one record per row")


def hub(name: str, split: str | None) -> Iterator[tuple[int, Record]]:
    """Yield row numbers and rows of the data set `owner/name` or `owner/name:config`, streamed.

    Needs the extra `floatlens[datasets]`. Remote code is never run.
    """
    try:
        import datasets
    except ImportError:
        raise FloatLensError(
            f"{name!r} is not a local file, and reading it from the Hub needs the package datasets; "
            "check the path, or pip install 'floatlens[datasets]'"
        ) from None
    from huggingface_hub import dataset_info

    path, _, config = name.partition(":")
    try:
        if not Path(path).exists():
            dataset_info(path, timeout=10)  # fails at once if the Hub is not reachable; the stream would be retried
        stream = datasets.load_dataset(path, config or None, split=split or "validation", streaming=True)
    except Exception as error:  # the Hub's client raises many kinds
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FloatLensError(
            f"data set {name!r} cannot be opened ({reason}); check name, config and --split"
        ) from error
    yield from enumerate(stream, 1)


FORMATS = {".jsonl": jsonl, ".json": jsonl, ".csv": delimited, ".tsv": delimited, ".parquet": parquet}


def records_of(path: Path, problems: Problems) -> Iterator[tuple[int, Record]]:
    """Yield line numbers and records of a file, by its ending."""
    ending = ending_of(path)
    if ending not in FORMATS:
        raise FloatLensError(
            f"{path} has the ending {ending or 'none'!r}, which is not supported; "
            f"use one of {', '.join([*FORMATS, '.jsonl.gz'])}"
        )
    return FORMATS[ending](path, problems)


def ending_of(path: Path) -> str:
    """Return the extension that determines the format of a file, without `.gz`."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()
