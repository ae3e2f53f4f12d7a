"""Lines of a text file, plain or gzip, one at a time: only one line of bounded length is in memory."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from floatlens.data.readers.problems import Problems
from floatlens.errors import FloatLensError

MAX_LINE = 32 * 2**20  # bytes; the largest KILT line is below 1 MB
MAX_SKIPPED = 2**30  # bytes without a line break after which this is not a text file (or a gzip bomb)
BOMB = 2**21  # unpacked bytes of a gzip file after which its ratio of compression is checked
RATIO = 500  # gzip can reach 1000; text reaches about 10
MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


def lines(path: Path, problems: Problems, max_line: int = MAX_LINE) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without the line break) of every line that is UTF-8 and within bounds."""
    with _open(path) as file:
        number = unpacked = 0
        try:
            while raw := file.readline(max_line + 1):
                number += 1
                unpacked += len(raw)
                _refuse_bomb(file, unpacked, path)
                if number == 1:
                    raw = _strip_byte_order_mark(raw, path)
                if len(raw) > max_line:
                    unpacked += _skip_rest(file, raw, path, number)
                    problems.add(path.name, number, f"is longer than {max_line:,} bytes")
                    continue
                try:
                    yield number, raw.decode("utf-8").rstrip("\r\n")
                except UnicodeDecodeError as error:
                    what = f"is not UTF-8 (byte 0x{raw[error.start]:02x} at offset {error.start})"
                    problems.add(path.name, number, f"{what}; convert the file with iconv -t UTF-8")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            if number == 0:
                raise FloatLensError(f"{path} is not a complete gzip file ({error}); download it again") from None
            problems.add(
                path.name, number + 1, f"the gzip file is damaged from here on ({error}); the rest is not read"
            )
    if number == 0:
        raise FloatLensError(f"{path} is empty; expected one record per line")


def _open(path: Path) -> IO[bytes]:
    try:
        if path.suffix == ".gz":
            return cast(IO[bytes], gzip.open(path, "rb"))
        return path.open("rb")
    except OSError as error:
        raise FloatLensError(f"{path} cannot be opened ({error.strerror}); check the path") from None


def _strip_byte_order_mark(raw: bytes, path: Path) -> bytes:
    if raw[:2] in MARKS:
        name = MARKS[raw[:2]]
        raise FloatLensError(f"{path} is {name}, expected UTF-8; convert it with iconv -f {name} -t UTF-8")
    return raw.removeprefix(b"\xef\xbb\xbf")


def _refuse_bomb(file: IO[bytes], unpacked: int, path: Path) -> None:
    """Raise an error for a gzip file that unpacks to several hundred times its size."""
    if unpacked > BOMB and isinstance(file, gzip.GzipFile):
        packed = cast(Any, file).fileobj.tell()
        if unpacked > RATIO * packed:
            raise FloatLensError(
                f"{path} unpacks to more than {unpacked // packed} times its size, so it is not a text file; it is not read"
            )


def _skip_rest(file: IO[bytes], raw: bytes, path: Path, number: int) -> int:
    skipped = len(raw)
    while raw and not raw.endswith(b"\n"):
        raw = file.readline(2**20)
        skipped += len(raw)
        _refuse_bomb(file, skipped, path)
        if skipped > MAX_SKIPPED:
            raise FloatLensError(
                f"{path}, line {number}: no line break in {MAX_SKIPPED:,} bytes; this is not a text file"
            )
    return skipped
