"""Untrusted files: stored traces and .npz files that would run code, read memory or exhaust it."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from floatlens import FloatLensError, Trace
from floatlens.trace.npz import read_npz, unpickle
from tests.explorer.traces import planted


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    return planted(steps=2, layers=1, heads=1, positions=20).save(tmp_path / "trace")


def edit(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    found = json.loads(file.read_text())
    change(found)
    file.write_text(json.dumps(found))


def test_an_untouched_trace_opens(stored: Path) -> None:
    assert Trace.open(stored).data.sizes["position"] == 20


def test_a_trace_with_a_missing_file_is_refused(stored: Path) -> None:
    """Zarr reads a missing chunk as zeros, and a group without an array as a trace that never had it."""
    files = [path for path in sorted(stored.rglob("*")) if path.is_file()]
    for file in files:
        content = file.read_bytes()
        file.unlink()
        with pytest.raises(FloatLensError, match=r"is missing|has no zarr\.json|it has no zarr\.json"):
            Trace.open(stored)
        file.write_bytes(content)
    shutil.rmtree(stored / "received")
    with pytest.raises(FloatLensError, match="metadata do not match their checksum"):
        Trace.open(stored)


def test_a_changed_bit_is_refused_or_changes_nothing(stored: Path) -> None:
    before, rng = Trace.open(stored).load().data, np.random.default_rng(0)
    refused = 0
    for file in sorted(path for path in stored.rglob("*") if path.is_file()):
        content = file.read_bytes()
        for bit in rng.choice(8 * len(content), min(24, 8 * len(content)), replace=False):
            changed = bytearray(content)
            changed[bit // 8] ^= 1 << (bit % 8)
            file.write_bytes(changed)
            try:
                xr.testing.assert_identical(Trace.open(stored).load().data, before)
            except FloatLensError:
                refused += 1
        file.write_bytes(content)
    assert refused > 200
    assert Trace.open(stored).load().data.identical(before)


def test_a_store_of_format_2_with_pickled_objects_is_refused_and_runs_nothing(stored: Path, tmp_path: Path) -> None:
    import numcodecs

    target = tmp_path / "ran"
    array = np.empty(1, object)
    array[0] = Evil(target)
    group = zarr.open_group(tmp_path / "old", mode="w", zarr_format=2)
    group.create_array("tokens", shape=(1,), dtype=np.int64)
    folder = tmp_path / "old" / "tokens"
    about = json.loads((folder / ".zarray").read_text())
    about |= {"dtype": "|O", "filters": [{"id": "pickle", "protocol": 5}], "compressor": None, "fill_value": None}
    (folder / ".zarray").write_text(json.dumps(about))
    (folder / "0").write_bytes(
        numcodecs.Pickle().encode(array) if hasattr(numcodecs, "Pickle") else pickle.dumps(array)
    )
    (tmp_path / "old" / "zarr.json").write_text('{"zarr_format": 2, "node_type": "group", "attributes": {}}')
    with pytest.raises(FloatLensError, match="'zarr_format'"):
        Trace.open(tmp_path / "old").load()
    assert not target.exists()


def set_field(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda found: found.__setitem__(name, value)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (set_field("zarr_format", 2), "zarr_format"),
        (set_field("node_type", "group"), "node_type"),
        (set_field("data_type", "object"), "data_type"),
        (set_field("data_type", {"name": "numpy.void", "configuration": {}}), "data_type"),
        (set_field("codecs", [{"name": "numcodecs.pickle", "configuration": {}}]), "codecs"),
        (set_field("codecs", [{"name": "vlen-utf8"}]), "codecs"),
        (set_field("codecs", []), "codecs"),
        (set_field("codecs", "bytes"), "codecs"),
        (set_field("shape", [-1, 6]), "shape"),
        (set_field("shape", ["2", 6]), "shape"),
        (set_field("shape", [True, 6]), "shape"),
        (set_field("chunk_grid", {"name": "regular", "configuration": {"chunk_shape": [0, 6]}}), "chunk_grid"),
        (set_field("chunk_grid", {"name": "regular", "configuration": {"chunk_shape": [2**34, 6]}}), "chunk_grid"),
        (set_field("chunk_grid", {"name": "rectangular"}), "chunk_grid"),
        (set_field("storage_transformers", [{"name": "x"}]), "storage_transformers"),
        (set_field("chunk_key_encoding", {"name": "../x"}), "chunk_key_encoding"),
        (set_field("dimension_names", ["step"]), "dimension_names"),
        (set_field("must_understand", True), "must_understand"),
    ],
)
def test_an_array_that_floatlens_does_not_write_is_refused_by_its_field(
    stored: Path, change: Callable[[dict[str, Any]], None], field: str
) -> None:
    edit(stored / "tokens" / "zarr.json", change)
    with pytest.raises(FloatLensError, match=f"tokens.*'{field}'"):
        Trace.open(stored)


def test_an_absurd_shape_is_refused_before_anything_is_read(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xarray.open_dataset", lambda *a, **k: pytest.fail("opened before it was checked"))

    def grow(found: dict[str, Any]) -> None:
        found["shape"] = [100_000_000]
        found["chunk_grid"]["configuration"]["chunk_shape"] = [1_000_000]

    edit(stored / "committed_at" / "zarr.json", grow)
    for number in range(1, 100):
        shutil.copy(stored / "committed_at" / "c.0", stored / "committed_at" / f"c.{number}")
    with pytest.raises(FloatLensError, match="declares"):
        Trace.open(stored)


def test_metadata_that_declare_millions_of_chunks_are_refused_before_anything_is_read(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xarray.open_dataset", lambda *a, **k: pytest.fail("opened before it was checked"))

    def grow(found: dict[str, Any]) -> None:
        found["shape"], found["data_type"] = [2, 4_000_000], "int8"
        found["chunk_grid"]["configuration"]["chunk_shape"] = [1, 1]

    edit(stored / "tokens" / "zarr.json", grow)
    with pytest.raises(FloatLensError, match=r"tokens declares 8,.* chunks; at most"):
        Trace.open(stored)


def test_the_layout_of_xarray_is_refused_since_a_missing_chunk_would_be_zeros(stored: Path) -> None:
    """xarray leaves out chunks of zeros, so that a chunk that was lost reads as zeros too."""
    data = Trace(Trace.open(stored).data.load()).data
    shutil.rmtree(stored)
    data.to_zarr(stored, mode="w", zarr_format=3, consolidated=False)
    (stored / "received" / "c" / "0" / "0" / "0" / "0").unlink()
    with pytest.raises(FloatLensError, match="FloatLens reads"):
        Trace.open(stored)


def test_a_trace_of_before_there_were_checksums_still_opens(stored: Path) -> None:
    before = Trace.open(stored).load().data
    for file in stored.glob("*/zarr.json"):
        edit(file, lambda array: array["codecs"].pop())
        for chunk in file.parent.glob("c*"):
            chunk.write_bytes(chunk.read_bytes()[:-4])
    edit(stored / "zarr.json", lambda group: group["attributes"].pop("crc32c"))
    assert Trace.open(stored).load().data.identical(before)


@pytest.mark.parametrize("order", [[0, 0], [0], [1, 2], ["1", "0"], None])
def test_a_transposition_that_does_not_name_each_dimension_once_is_refused(stored: Path, order: Any) -> None:
    def change(found: dict[str, Any]) -> None:
        assert found["codecs"][0] == {"name": "transpose", "configuration": {"order": [1, 0]}}
        found["codecs"][0]["configuration"]["order"] = order

    edit(stored / "tokens" / "zarr.json", change)
    with pytest.raises(FloatLensError, match=r"tokens.*'codecs'"):
        Trace.open(stored)


def test_a_shuffled_chunk_that_unpacks_to_more_than_its_array_is_refused(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numcodecs

    from floatlens.untrusted import blosc_size

    chunk = next(file for file in (stored / "received").rglob("c*") if file.is_file())
    assert blosc_size(chunk, 4) == len(numcodecs.Blosc().decode(chunk.read_bytes()[:-4]))
    chunk.write_bytes(bytes(numcodecs.Blosc("zstd").encode(np.zeros(50 << 20, np.uint8))) + bytes(4))
    assert chunk.stat().st_size < 1 << 20
    monkeypatch.setattr(xr, "open_dataset", lambda *a, **k: pytest.fail("the store was opened"))
    with pytest.raises(FloatLensError, match="unpacks to 52,4.* bytes; a chunk of its array has"):
        Trace.open(stored)


def test_a_shuffled_chunk_of_another_compressor_or_length_is_refused(stored: Path) -> None:
    import numcodecs

    chunk = next(file for file in (stored / "received").rglob("c*") if file.is_file())
    good = chunk.read_bytes()
    for bad in (good[:-1], good + b"x", numcodecs.Blosc("lz4").encode(numcodecs.Blosc().decode(good[:-4])), b"x"):
        chunk.write_bytes(bad)
        with pytest.raises(FloatLensError, match="is damaged"):
            Trace.open(stored)
    chunk.write_bytes(good)
    Trace.open(stored)


@pytest.mark.parametrize("raw", [b"", b"28b52ffd", bytes.fromhex("28b52ffd00"), bytes.fromhex("28b52ffd200a510000")])
def test_a_chunk_that_does_not_say_its_size_is_refused(stored: Path, raw: bytes) -> None:
    chunk = next(file for file in (stored / "received").rglob("c*") if file.is_file())
    chunk.write_bytes(raw or b"x")
    with pytest.raises(FloatLensError, match="is not a complete Blosc file"):
        Trace.open(stored)


def test_links_and_pipes_inside_a_trace_are_refused(stored: Path, tmp_path: Path) -> None:
    chunk = next(file for file in (stored / "received").rglob("c*") if file.is_file())
    (tmp_path / "secret").write_bytes(chunk.read_bytes())
    chunk.unlink()
    chunk.symlink_to(tmp_path / "secret")
    with pytest.raises(FloatLensError, match=r"c\.0\.0\.0\.0 is a link"):
        Trace.open(stored)
    chunk.unlink()
    shutil.copytree(stored / "received", tmp_path / "copy")
    shutil.rmtree(stored / "received")
    (stored / "received").symlink_to(
        stored / "tokens"
    )  # inside the trace: its size would be counted once, and read twice
    with pytest.raises(FloatLensError, match="received is a link"):
        Trace.open(stored)
    (stored / "received").unlink()
    shutil.copytree(tmp_path / "copy", stored / "received")
    os.mkfifo(chunk)
    with pytest.raises(FloatLensError, match="is not a regular file"):
        Trace.open(stored)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kind", "diffusion"),
        ("attention", "full"),
        ("cached", "yes"),
        ("infill", 2),
        ("prompt_length", 21),
        ("prompt_length", -1),
        ("n_layers", 10**12),
        ("model", ["a"]),
        ("question", 3),
        ("settings", "[]"),
        ("settings", '{"max_new_tokens": {}}'),
        ("vocabulary", '{"1": null}'),
        ("gold", "doc1"),
        ("special_ids", '["a"]'),
        ("regions", '[{"name": "doc1"}]'),
        ("regions", '[{"name": "doc1", "start": 0, "end": 1000000000000}]'),
        ("replay", "{}"),
        ("answers", "[" * 100_000),
    ],
)
def test_an_attribute_that_floatlens_does_not_write_is_refused_by_its_name(stored: Path, name: str, value: Any) -> None:
    without_checksum(stored)
    edit(stored / "zarr.json", lambda group: group["attributes"].__setitem__(name, value))
    with pytest.raises(FloatLensError, match=f"attribute {name!r} is .*; expected"):
        Trace.open(stored)


def without_checksum(stored: Path) -> None:
    """Remove the checksum of the metadata, which an attacker would compute again; traces without one are opened."""
    edit(stored / "zarr.json", lambda group: group["attributes"].pop("crc32c"))
    Trace.open(stored)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("committed_at", lambda values: values + 10**9, "reach from"),
        ("step", lambda values: values * 0, "not in order"),
        ("step", lambda values: values.astype(np.float32), "not whole numbers"),
        ("tokens", lambda values: values.astype(np.float32), "not whole numbers"),
    ],
)
def test_steps_and_tokens_that_cannot_be_are_refused(tmp_path: Path, name: str, change: Any, said: str) -> None:
    data = planted(steps=2, layers=1, heads=1, positions=20).data
    Trace(data.assign({name: (data[name].dims, change(data[name].values))})).save(tmp_path / "trace")
    with pytest.raises(FloatLensError, match=f"'{name}'.*{said}"):
        Trace.open(tmp_path / "trace")


def test_texts_are_printable(stored: Path) -> None:
    without_checksum(stored)
    edit(stored / "zarr.json", lambda group: group["attributes"].update(model="a\x1b[2J\ud800", output="\udfff\t1"))
    trace = Trace.open(stored)
    assert trace.model == "a\ufffd[2J\ufffd" and trace.answer == "\ufffd\t1"


def test_a_truncated_file_is_one_sentence(stored: Path) -> None:
    (stored / "received" / "zarr.json").write_text('{"zarr_format": 3, "no')
    with pytest.raises(FloatLensError, match="is not valid JSON"):
        Trace.open(stored)


def test_metadata_nested_without_end_is_one_sentence(stored: Path) -> None:
    (stored / "received" / "zarr.json").write_text('{"a":' * 50_000 + "1" + "}" * 50_000)
    with pytest.raises(FloatLensError, match="received"):
        Trace.open(stored)


# --- .npz -------------------------------------------------------------------------------------------------------------


def npz(path: Path, payload: bytes) -> Path:
    """An .npz whose only member is an object array with this pickle."""
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (), }"
    header += b" " * (118 - len(header) - 1) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + payload)
    return path


@pytest.mark.parametrize(
    "value",
    [
        np.array([[1.5, 2.5], [3.5, 4.5]]),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array([1, 2, 3], ">i4"),
        np.array(["ab", "c"]),
        np.array([], np.float32),
        np.float16(0.5),
        {"step": 3, "layer_0_attention_avg": np.eye(2, dtype=np.float16), "names": ["a", ("b", None)]},
        np.array([{"a": 1}, None, [2.5]], dtype=object),
    ],
)
def test_values_of_the_papers_files_come_back_as_they_were(value: Any, tmp_path: Path) -> None:
    holder = np.empty((), object)
    holder[()] = value
    found = read_npz(npz(tmp_path / "x.npz", pickle.dumps(holder, protocol=3)))["data"]
    assert type(found) is type(value)
    np.testing.assert_equal(found, value)


def test_a_pickle_that_calls_a_function_is_refused_by_its_name(tmp_path: Path) -> None:
    path = npz(tmp_path / "x.npz", pickle.dumps(Evil(tmp_path / "ran"), protocol=3))
    with pytest.raises(FloatLensError, match="mkdir"):
        read_npz(path)
    assert not (tmp_path / "ran").exists()


def build(module_name: str, arguments: Any, state: Any) -> bytes:
    """A pickle that calls a NumPy constructor and sets a state by hand."""
    module, name = module_name.rsplit(".", 1)
    parts = [b"\x80\x03", f"c{module}\n{name}\n".encode()]
    parts += [pickle.dumps(arguments, 3)[2:-1], b"R", pickle.dumps(state, 3)[2:-1], b"b."]
    return b"".join(parts)


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        # the proof of concept: a void type whose field is an object, so that bytes of the file become pointers
        (build("numpy.dtype", ("V8", False, True), (3, "|", None, ("a",), {"a": ("O", 0)}, 8, 1, 27)), "type 'V8'"),
        (build("numpy.dtype", ("f8", False, True), (3, "<", None, ("a",), {"a": ("O", 0)}, 8, 1, 63)), "fields"),
        (build("numpy.dtype", ("f8", False, True), (3, "x", None, None, None, -1, -1, 0)), "byte order"),
        (build("numpy.dtype", ("M8[ns]", False, True), (3, "<", None, None, None, -1, -1, 0)), "type"),
        (build("numpy.ndarray", ((2,),), (1, (2,), "f8", False, b"0" * 16)), "without a type|is not a readable"),
    ],
)
def test_types_that_read_memory_are_refused(payload: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(FloatLensError, match=said):
        read_npz(npz(tmp_path / "x.npz", payload))


def test_an_array_whose_bytes_do_not_fit_its_shape_is_refused(tmp_path: Path) -> None:
    text = pickle.dumps(np.zeros(2), 3)
    sizes = (pickle.dumps((2,), 3)[2:-1], pickle.dumps((2**30,), 3)[2:-1])
    shape = [(a[:-2] if a.endswith(b"q\x00") else a) for a in sizes]  # the memo's number differs within another pickle
    assert text.count(shape[0]) == 1
    with pytest.raises(FloatLensError, match="number of bytes does not match"):
        read_npz(npz(tmp_path / "x.npz", text.replace(*shape)))


def test_shared_references_cost_nothing_and_endless_nesting_is_refused(tmp_path: Path) -> None:
    shared: list[Any] = []
    for _ in range(60):
        shared = [shared, shared]
    assert len(unpickle(io.BytesIO(pickle.dumps(shared, 3)))) == 2
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(FloatLensError, match="levels deep"):
        read_npz(npz(tmp_path / "x.npz", pickle.dumps(loop, 3)))


def test_a_small_archive_that_unpacks_to_gigabytes_is_left_packed(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.npy", bytes(100 << 20))
    assert path.stat().st_size < 200_000
    with pytest.raises(FloatLensError, match="unpacks to 104,857,600 bytes; at most"):
        read_npz(path)
