"""Nasty files, made when they are asked for: data, checkpoints, traces and archives that nobody should trust."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

GOOD = {"id": "a", "question": "Where does Ada live?", "answers": ["Molen"], "passages": ["Ada lives in Molen."]}
LINE = json.dumps(GOOD).encode()


class Evil:
    """Pickled, it asks for a file to be made when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def bomb(size: int, unit: bytes) -> bytes:
    """A gzip file that unpacks to `size` bytes of `unit`s."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9) as file:
        block = unit * (2**20 // len(unit))
        for _ in range(size // 2**20):
            file.write(block)
    return packed.getvalue()


def parquet_of(rows: int) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(pa.table({"question": ["Who?"] * rows, "answers": [["x"]] * rows}), sink)
    return sink.getvalue()


# name of the file: its bytes. None of them holds a question that can be answered.
DATA: dict[str, Callable[[], bytes]] = {
    "empty.jsonl": lambda: b"",
    "blank.jsonl": lambda: b"\n\n  \n",
    "broken.jsonl": lambda: LINE[:-5] + b"\n{]\n",
    "list.json": lambda: b"[" + LINE + b"]",
    "numbers.jsonl": lambda: b"1\n2.5\nnull\ntrue\nNaN\nInfinity\n",
    "huge-number.jsonl": lambda: b'{"question": ' + b"9" * 10_000 + b', "answers": ["x"]}\n',
    "utf16.jsonl": lambda: LINE.decode().encode("utf-16"),
    "utf16-no-mark.jsonl": lambda: LINE.decode().encode("utf-16-le"),
    "latin1.jsonl": lambda: b'{"question": "caf\xe9?", "answers": ["x"], "passages": ["y"]}\n',
    "nul.jsonl": lambda: b"\0" * 4096 + b"\n",
    "surrogate.jsonl": lambda: b'{"question": "\\ud800", "answers": ["\\udfff"]}\n',
    "deep.jsonl": lambda: b'{"question": ' + b"[" * 200_000 + b"]" * 200_000 + b"}\n",
    "deep-object.jsonl": lambda: b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n",
    "ten-megabytes.jsonl": lambda: json.dumps(GOOD | {"question": "why " * 2_500_000}).encode() + b"\n",
    "no-break.jsonl": lambda: b"x" * (40 * 2**20),
    "types.jsonl": lambda: b'{"question": {"a": 1}, "answers": 3, "passages": 7, "id": []}\n',
    "bomb.jsonl.gz": lambda: bomb(8 * 2**20, b"\0"),
    "blank-bomb.jsonl.gz": lambda: bomb(8 * 2**20, b"\n"),
    "not.jsonl.gz": lambda: b"this is no gzip file",
    "cut.jsonl.gz": lambda: gzip.compress(LINE * 9)[:20],
    "twice.csv": lambda: b"question,question\na,b\n",
    "cut.parquet": lambda: parquet_of(9)[:-20],
    "flipped.parquet": lambda: b"PAR1" + bytes(reversed(parquet_of(9)[4:-8])) + parquet_of(9)[-8:],
    "text.parquet": lambda: LINE,
    "repeating.parquet": lambda: repeating_parquet(4, 500, 1_000_000),
    "zeros.parquet": lambda: zeros_parquet(200, 500_000),
    "lying.parquet": lambda: lie(zeros_parquet(200, 500_000)),
    "long-list.parquet": lambda: lie(long_list_parquet(20_000_000)),
    "twice-the-bytes.parquet": lambda: lie(zeros_parquet(1, 20_000), compressed=10**9),
}

# These can be read as something, and need not be refused; what comes of them is a run or a sentence.
ODD: dict[str, Callable[[], bytes]] = {
    "quote.csv": lambda: b'question,answers\n"who,x\n' * 50,
    "deep.csv": lambda: b'question,answers,passages\nwho?,x,"' + b"[" * 100_000 + b'"\n',
    "nul.csv": lambda: b"question,answers\n\0,\0\n",
}


def repeating_parquet(rows: int, texts: int, size: int) -> bytes:
    """A parquet file that stores one text and repeats it in every list of every row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    indices = pa.array([0] * (rows * texts), pa.int32())
    words = pa.DictionaryArray.from_arrays(indices, pa.array(["a" * size]))
    answers = pa.ListArray.from_arrays(pa.array(range(0, rows * texts + 1, texts), pa.int32()), words)
    sink = io.BytesIO()
    pq.write_table(pa.table({"question": ["Who?"] * rows, "answers": answers}), sink, compression="zstd")
    return sink.getvalue()


def zeros_parquet(rows: int, size: int) -> bytes:
    """A parquet file of long texts that compress to nothing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"question": ["a" * size] * rows, "answers": [["x"]] * rows})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", use_dictionary=False)
    return sink.getvalue()


def long_list_parquet(length: int) -> bytes:
    """A parquet file of one row, whose list repeats one number."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    numbers = pa.array([np.zeros(length, "int64")])
    pq.write_table(pa.table({"question": ["Who?"], "answers": [["x"]], "n": numbers}), sink, compression="zstd")
    return sink.getvalue()


def lie(content: bytes, compressed: int | None = None) -> bytes:
    """Replace the sizes in the footer of a parquet file: it unpacks to a kilobyte, or claims so many compressed bytes."""
    import pyarrow.parquet as pq

    group = pq.read_metadata(io.BytesIO(content)).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    sizes = {group.total_byte_size, *(column.total_uncompressed_size for column in columns)}
    if compressed is not None:
        sizes = {columns[0].total_compressed_size}
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = content[start:-8]
    for size in sizes:
        new = varint(compressed or 1000)
        if size > 10_000 or compressed:
            assert varint(size) in footer
            footer = footer.replace(varint(size), new)
    return content[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def varint(number: int) -> bytes:
    """A positive number as Thrift's compact protocol writes it: doubled, seven bits per byte."""
    number, written = 2 * number, []
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    return bytes([*written, number])


def archive(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def npy(value: object) -> bytes:
    sink = io.BytesIO()
    np.save(sink, np.asarray(value, object), allow_pickle=True)
    return sink.getvalue()


def evil_npy(path: Path) -> bytes:
    """An object array whose pickle makes a folder."""
    sink = io.BytesIO()
    np.lib.format.write_array_header_1_0(sink, {"descr": "|O", "fortran_order": False, "shape": ()})
    return sink.getvalue() + pickle.dumps(Evil(path))


def absurd_npy(shape: tuple[int, ...] = (2**30, 2**30), descr: str = "<f8", content: bytes = b"\0" * 64) -> bytes:
    """A header that claims 2**60 numbers."""
    sink = io.BytesIO()
    np.lib.format.write_array_header_1_0(sink, {"descr": descr, "fortran_order": False, "shape": shape})
    return sink.getvalue() + content


def shared_steps() -> bytes:
    """Steps that all refer to one matrix, so that a small file becomes large arrays."""
    step = {"sequence": np.arange(200), "layer_0_attention_avg": np.eye(200, dtype=np.float16)}
    return npy([{**step, "step": number} for number in range(5000)])


# Members of an .npz file that is none of the paper's: empty arrays that claim a long sequence, values of other types.
ARCHIVES: dict[str, Callable[[], dict[str, bytes]]] = {
    "wide": lambda: {"layer_0_full_attention.npy": absurd_npy((0, 660_000_000), content=b"")},
    "no bytes": lambda: {"layer_0_full_attention.npy": absurd_npy((10**9, 1), "<U0", b"")},
    "shared": lambda: {"step_attention_data.npy": shared_steps()},
    "steps of text": lambda: {"step_attention_data.npy": npy("abc")},
    "steps without a number": lambda: {"step_attention_data.npy": npy([{"step": None}])},
    "not square": lambda: {"layer_0_full_attention.npy": plain_npy(np.ones((3, 4)))},
    "text": lambda: {"layer_0_full_attention.npy": plain_npy(np.full((3, 3), "x"))},
    "unequal": lambda: {f"layer_{n}_full_attention.npy": plain_npy(np.ones((n + 2, n + 2))) for n in range(2)},
    "length": lambda: {"layer_0_full_attention.npy": plain_npy(np.eye(3)), "input_length.npy": npy({"a": 1})},
    "long prompt": lambda: {"layer_0_full_attention.npy": plain_npy(np.eye(3)), "input_length.npy": npy(10**9)},
    "question": lambda: {"layer_0_full_attention.npy": plain_npy(np.eye(3)), "question.npy": npy([["a"], ["b"]])},
    "no heads": lambda: {
        "layer_0_full_attention.npy": plain_npy(np.eye(3)),
        "layer_0_full_attention_heads.npy": plain_npy(np.eye(3)[None]),
        "layer_0_query_states.npy": plain_npy(np.ones((1, 3, 2))),
        "layer_0_key_states.npy": plain_npy(np.ones((0, 3, 2))),
    },
}


def plain_npy(array: np.ndarray) -> bytes:
    sink = io.BytesIO()
    np.save(sink, array)
    return sink.getvalue()


# Chat templates that would take hours or all memory. Rendered where they may, each ends in a sentence.
TEMPLATES = {
    "multiplies a string": "{{ 'x' * 10000000000 }}",
    "pads a string": "{{ 'x'.center(9999999999) }}",
    "doubles a string": "{% set n = namespace(x='xx') %}"
    "{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    "{{ messages[0].content }}",
    "writes too much": "{{ messages[0].content }}{% for i in range(99999) %}{{ 'x' * 100 }}{% endfor %}",
    "raises a power": "{{ 9 ** 9 ** 9 ** 9 }}",
    "does not parse": "{% for",
}
