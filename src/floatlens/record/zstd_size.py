"""The size that a Zstandard file unpacks to, from its headers alone (RFC 8878).

A few kilobytes can unpack to gigabytes, and numcodecs sets aside whatever the file declares.
"""

from __future__ import annotations

from pathlib import Path

MAGIC = bytes.fromhex("28b52ffd")
REPEATED = 1  # a block of one byte that is repeated


def unpacked_size(file: Path) -> int | None:
    """Return the sum of the sizes that the frames declare; None if one declares none, or if the file is damaged."""
    total, end = 0, file.stat().st_size
    with file.open("rb") as stream:
        while stream.tell() < end:
            header = stream.read(5)
            if len(header) < 5 or header[:4] != MAGIC:
                return None
            flags = header[4]
            single = flags >> 5 & 1
            width = (single, 2, 4, 8)[flags >> 6]
            fields = stream.read((1 - single) + (0, 1, 2, 4)[flags & 3] + width)
            if not width:
                return None
            total += int.from_bytes(fields[-width:], "little") + (256 if width == 2 else 0)
            last = 0
            while not last:
                block = stream.read(3)
                if len(block) < 3:
                    return None
                number = int.from_bytes(block, "little")
                last, kind, size = number & 1, number >> 1 & 3, number >> 3
                stream.seek(1 if kind == REPEATED else size, 1)
            stream.seek(4 if flags & 4 else 0, 1)  # the checksum
        return total if stream.tell() == end else None
