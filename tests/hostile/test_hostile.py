"""Input that nobody should trust: always exit code 2 and one sentence, never a traceback, nothing written half."""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from hypothesis import HealthCheck, given, settings

from floatlens.cli import main
from floatlens.data import chat_template
from floatlens.data.read import Problems, layouts, read, samples
from floatlens.errors import FloatLensError
from floatlens.store.folder import RunFolder
from floatlens.trace.trace import Trace
from tests.hostile import corpus
from tests.models import checkpoints
from tests.small_tokenizers import byte_level

FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def refused(*words: object, out: Path | None = None) -> str:
    """Run a command that must be refused; returns its one sentence."""
    said = io.StringIO()
    with redirect_stderr(said), redirect_stdout(io.StringIO()):
        code = main.run([str(word) for word in words])
    text = said.getvalue()
    assert code == 2, text
    last = text.strip().splitlines()[-1]
    assert last.startswith("floatlens: ") and "Traceback" not in text and "a bug" not in text
    assert text.count("floatlens: ") == 1
    assert out is None or not out.exists() or not list(out.rglob(".*"))
    return last


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = byte_level()
    tokenizer.save_pretrained(folder)
    return checkpoints.llada(folder, vocab=len(tokenizer) + 8)


# --- data -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", corpus.DATA)
def test_nasty_data_is_refused_in_one_sentence(model: Path, tmp_path: Path, name: str) -> None:
    path, out = tmp_path / name, tmp_path / "out"
    path.write_bytes(corpus.DATA[name]())
    for command in ("eval", "trace"):
        refused(command, model, "--data", path, "--max-new-tokens", 4, "--out", out / command, out=out)


@pytest.mark.parametrize("name", corpus.ODD)
def test_odd_data_is_read_or_refused(model: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(corpus.ODD[name]())
    for command in ("eval", "trace"):
        said = io.StringIO()
        line = [command, model, "--data", path, "--max-new-tokens", 4, "--out", tmp_path / command]
        with redirect_stderr(said), redirect_stdout(io.StringIO()):
            assert main.run([str(word) for word in line]) in (0, 2), said.getvalue()
        assert "Traceback" not in said.getvalue()


BOMBS = {
    "bomb.jsonl.gz": "times its size",
    "blank-bomb.jsonl.gz": "times its size",
    "lying.parquet": "unpacks to 100,",
    "long-list.parquet": "unpacks to 160,",
    "twice-the-bytes.parquet": "claims more bytes than it has",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_left_packed(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(corpus.DATA[name]())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FloatLensError, match=BOMBS[name]):
        list(read(str(path)))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


def test_text_that_packs_well_is_no_bomb(tmp_path: Path) -> None:
    import gzip

    rows = "".join(json.dumps(corpus.GOOD | {"id": str(i)}) + "\n" for i in range(3000))
    (tmp_path / "good.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    assert len(list(read(str(tmp_path / "good.jsonl.gz")))) == 3000


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_parquet_file_of_any_writer_is_read(tmp_path: Path, compression: str, version: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [corpus.GOOD | {"id": str(number), "n": number, "f": number / 7, "none": None} for number in range(500)]
    options = {"compression": compression, "data_page_version": version, "row_group_size": 100}
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "good.parquet", **options, write_page_checksum=True)
    samples = list(read(str(tmp_path / "good.parquet")))
    assert [sample.id for sample in samples] == [str(number) for number in range(500)]
    assert {sample.passages[0].text for sample in samples} == set(corpus.GOOD["passages"])


@FEW
@given(
    content=st.binary(max_size=400) | st.text(max_size=200).map(str.encode),
    ending=st.sampled_from([".jsonl", ".json", ".csv", ".tsv", ".parquet", ".jsonl.gz", ".csv.gz"]),
)
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes, ending: str) -> None:
    path = tmp_path / f"data{ending}"
    path.write_bytes(content)
    try:
        for sample in read(str(path)):
            assert isinstance(sample.question, str) and sample.answers
    except FloatLensError as error:
        assert "\n" not in str(error) or len(str(error)) < 2000


VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=9,
)
FIELDS = ["id", "question", "input", "answer", "answers", "output", "ctxs", "passages", "context", "supporting_facts",
          "ordered_kv_records", "key", "value", "gold", "_id"]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(record=st.dictionaries(st.sampled_from(FIELDS), VALUES), layout=st.sampled_from([None, *layouts()]))
def test_any_record_becomes_a_sample_or_a_problem(record: dict[str, Any], layout: str | None) -> None:
    problems = Problems()
    made = list(samples([(1, record)], "data.jsonl", problems, chosen=layouts()[layout] if layout else None))
    assert len(made) + problems.skipped == 1


@pytest.mark.parametrize("sample_id", ["../../outside", "/etc/passwd", "a\0b", "..", "con", "x" * 5000])
def test_an_id_is_never_a_path(model: Path, tmp_path: Path, sample_id: str) -> None:
    data, out = tmp_path / "in" / "data.jsonl", tmp_path / "in" / "out"
    data.parent.mkdir()
    data.write_text(json.dumps(corpus.GOOD | {"id": sample_id}) + "\n")
    before = {path for path in tmp_path.rglob("*")}
    for command in ("eval", "trace"):
        line = [command, model, "--data", data, "--max-new-tokens", 4, "--out", out / command]
        assert main.run([str(word) for word in line]) == 0
    assert all(path.is_relative_to(out) for path in {*tmp_path.rglob("*")} - before)
    assert [name for name, _ in RunFolder.open(out / "trace").samples()] == [sample_id]


def test_a_template_that_is_no_text_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_bytes(corpus.LINE)
    for content in (b"\xff\xfe\0", b"", b"{question", b"{question.__class__} {passages}", b"no slot"):
        (tmp_path / "template.txt").write_bytes(content)
        words = ("--template", tmp_path / "template.txt", "--out", tmp_path / "out")
        refused("eval", model, "--data", tmp_path / "data.jsonl", *words)
        assert not (tmp_path / "out").exists()


# --- checkpoints ------------------------------------------------------------------------------------------------------

CONFIGS = {
    "not JSON": b"{",
    "a list": b"[]",
    "deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "less deep": b'{"model_type": "llama", "a": ' + b"[" * 900 + b"]" * 900 + b"}",
    "binary": bytes(range(256)),
    "no type": b"{}",
    "type of another kind": b'{"model_type": ["llama"]}',
    "absurd layers": b'{"model_type": "llama", "num_hidden_layers": 1000000000}',
    "negative heads": b'{"model_type": "llama", "num_attention_heads": -4}',
    "absurd vocabulary": b'{"model_type": "llama", "vocab_size": 99999999999999}',
    "text for a number": b'{"model_type": "llama", "hidden_size": "large"}',
    "remote code": b'{"model_type": "mystery", "auto_map": {"AutoModelForCausalLM": "evil.Model"}}',
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_nasty_config_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_bytes(CONFIGS[name])
    refused("models", tmp_path / "model")
    refused("trace", tmp_path / "model", "--prompt", "x", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b"{", b'{"model": 3}', b"\xff" * 64, b"[" * 100_000])
def test_a_nasty_tokenizer_is_refused(model: Path, tmp_path: Path, content: bytes) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / "tokenizer.json").write_bytes(content)
    refused("trace", folder, "--prompt", "x", "--max-new-tokens", 4, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", corpus.TEMPLATES)
def test_a_nasty_chat_template_is_bounded(
    model: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", 2)
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(corpus.TEMPLATES[name])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = refused("trace", folder, "--prompt", "x", "--max-new-tokens", 4, "--out", tmp_path / "out")
    assert "chat template" in said
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000  # kilobytes, with what loading takes
    assert not (tmp_path / "out").exists()


def pickled(model: Path, folder: Path, weights: Any) -> Path:
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(weights, folder / "pytorch_model.bin")
    return folder


def test_a_pickle_is_opened_only_if_allowed_and_then_runs_nothing(model: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    weights = load_file(model / "model.safetensors")
    words = ("--prompt", "Where?", "--max-new-tokens", 4)
    good = pickled(model, tmp_path / "good", weights)
    assert "--allow-pickle" in refused("trace", good, *words, "--out", tmp_path / "no")
    line = ["trace", str(good), *map(str, words), "--allow-pickle", "--out", str(tmp_path / "yes")]
    assert main.run(line) == 0
    plain = ["trace", str(model), *map(str, words), "--out", str(tmp_path / "plain")]
    assert main.run(plain) == 0
    [(_, a)], [(_, b)] = RunFolder.open(tmp_path / "yes").samples(), RunFolder.open(tmp_path / "plain").samples()
    np.testing.assert_array_equal(Trace.open(a).data["received"], Trace.open(b).data["received"])
    evil = pickled(model, tmp_path / "evil", {"x": corpus.Evil(tmp_path / "owned")})
    refused("trace", evil, *words, "--allow-pickle", "--out", tmp_path / "evil-out")
    assert not (tmp_path / "owned").exists()


def test_links_out_of_a_checkpoint_are_refused_but_not_those_of_the_hubs_cache(model: Path, tmp_path: Path) -> None:
    words = ("--prompt", "Where?", "--max-new-tokens", 4)
    linked = shutil.copytree(model, tmp_path / "linked")
    (linked / "model.safetensors").unlink()
    (linked / "model.safetensors").symlink_to(model / "model.safetensors")
    assert "leads out of" in refused("trace", linked, *words, "--out", tmp_path / "no")
    cache = tmp_path / "models--a--b"
    (cache / "blobs").mkdir(parents=True)
    snapshot = cache / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(model.iterdir())):
        shutil.copy(path, cache / "blobs" / str(number))
        (snapshot / path.name).symlink_to(Path("../../blobs") / str(number))
    assert main.run(["trace", str(snapshot), *map(str, words), "--out", str(tmp_path / "yes")]) == 0


# --- traces, archives and manifests -----------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    data = xr.Dataset(
        {
            "tokens": (("step", "position"), np.array([[1, 2, 3], [1, 2, 4]])),
            "committed_at": (("position",), np.array([-1, 0, 1])),
            "confidence": (("step", "position"), np.ones((2, 3), np.float32)),
            "received": (("step", "layer", "head", "position"), np.full((2, 1, 1, 3), 1 / 3, np.float32)),
        },
        attrs={"sample_id": "a", "kind": "mdm", "attention": "bidirectional", "cached": 0, "prompt_length": 1},
    )
    with RunFolder.create(tmp_path / "run", {"command": "trace", "asked": {}}) as made:
        made.put(("m", "a"), {"error": None}, made.save_trace("a", Trace(data)))
    return made


def edited(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"shape": [2**20, 2**10, 2**10, 2**20]},
        {"shape": [-1, 1, 1, 3]},
        {"shape": "large"},
        {"data_type": "object"},
        {"data_type": {"name": "numpy.void", "configuration": {}}},
        {"codecs": [{"name": "pickle"}]},
        {"zarr_format": 99},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0, 0, 0, 0]}}},
        {"dimension_names": ["step"]},
    ],
)
def test_an_absurd_store_is_refused(run: RunFolder, fields: dict[str, Any], tmp_path: Path) -> None:
    [(_, path)] = run.samples()
    edited(path / "received" / "zarr.json", **fields)
    refused("figure", "drift", run.path, "--out", tmp_path / "figures")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"node_type": "array"}'])
def test_a_nasty_group_is_refused(run: RunFolder, content: bytes, tmp_path: Path) -> None:
    [(_, path)] = run.samples()
    (path / "zarr.json").write_bytes(content)
    refused("figure", "drift", run.path, "--out", tmp_path / "figures")


def test_a_damaged_chunk_is_refused(run: RunFolder, tmp_path: Path) -> None:
    [(_, path)] = run.samples()
    for chunk in (path / "received").glob("c.*"):
        chunk.write_bytes(b"\xff" * 40)
    refused("figure", "drift", run.path, "--out", tmp_path / "figures")


@pytest.mark.parametrize(
    "change", [{"em": "high"}, {"gold": [3]}, {"question": None}, {"steps": True}, {"colour": "red"}], ids=str
)
def test_a_result_with_a_field_of_another_type_is_refused(model: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    data, out = tmp_path / "data.jsonl", tmp_path / "out"
    data.write_bytes(corpus.LINE)
    words = ["eval", str(model), "--data", str(data), "--max-new-tokens", "4", "--out", str(out)]
    assert main.run(words) == 0
    run = RunFolder.open(out)
    [result] = run.results()
    (out / result.file).write_bytes(replace(result, value=result.value | change).to_bytes())
    assert f"field {next(iter(change))!r}" in refused(*words, "--resume")


@pytest.mark.parametrize(("column", "cell"), [("accuracy", "high"), ("f1", [1.0]), ("model", 3), ("kind", None)])
def test_a_table_of_answers_with_cells_of_another_type_is_refused(
    model: Path, tmp_path: Path, column: str, cell: Any
) -> None:
    (tmp_path / "data.jsonl").write_bytes(corpus.LINE)
    out = tmp_path / "out"
    words = ["--max-new-tokens", "4", "--out", str(out)]
    assert main.run(["eval", str(model), "--data", str(tmp_path / "data.jsonl"), *words]) == 0
    table = pd.read_parquet(out / "answers.parquet")
    table[column] = pd.Series([cell] * len(table), dtype=object)
    table.to_parquet(out / "answers.parquet")
    assert f"column {column!r}" in refused("figure", "knowledge", out, "--out", tmp_path / "figures")


@pytest.mark.parametrize("attributes", [{"settings": "[]"}, {"answers": "{"}, {"model": 3}, []], ids=str)
def test_attributes_of_another_type_are_refused_wherever_they_are_read(
    run: RunFolder, tmp_path: Path, attributes: Any
) -> None:
    [(_, path)] = run.samples()
    group = json.loads((path / "zarr.json").read_text())
    given = group["attributes"] | attributes if attributes else attributes
    (path / "zarr.json").write_text(json.dumps(group | {"attributes": given}))
    for words in (("report",), ("figure", "drift")):
        refused(*words, run.path, "--out", tmp_path / "out")


def test_a_deleted_trace_is_a_difference(run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = shutil.copytree(run.path, tmp_path / "copy")
    assert main.run(["diff", str(run.path), str(copy)]) == 0
    [(_, path)] = RunFolder.open(copy).samples()
    shutil.rmtree(path)
    assert main.run(["diff", str(run.path), str(copy)]) == 1
    assert "trace: missing in the second run" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
@pytest.mark.parametrize("words", [("figure", "drift"), ("diff", "SELF")])
def test_a_nasty_manifest_is_refused(run: RunFolder, content: bytes, words: tuple[str, ...], tmp_path: Path) -> None:
    (run.path / "manifest.json").write_bytes(content)
    line = [str(run.path) if word == "SELF" else word for word in words]
    refused(*line, run.path, *(("--out", tmp_path / "figures") if words[0] != "diff" else ()))


def test_an_archive_with_a_malicious_pickle_runs_nothing(tmp_path: Path) -> None:
    owned, out = tmp_path / "owned", tmp_path / "out"
    for name, content in {
        "evil": corpus.evil_npy(owned),
        "absurd": corpus.absurd_npy(),
        "nothing": b"",
        "text": b"hello",
        "other": corpus.npy({"a": 1}),
    }.items():
        path = corpus.archive(tmp_path / f"{name}.npz", {"step_attention_data.npy": content})
        refused("import", path, "--out", out)
        assert not owned.exists() and not out.exists()
    (tmp_path / "no.npz").write_bytes(b"PK\x03\x04 and then nothing")
    refused("import", tmp_path / "no.npz", "--out", out)


@pytest.mark.parametrize("name", corpus.ARCHIVES)
def test_an_archive_that_is_none_of_the_papers_is_refused_in_little_memory(tmp_path: Path, name: str) -> None:
    path = corpus.archive(tmp_path / "x.npz", corpus.ARCHIVES[name]())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused("import", path, "--out", tmp_path / "out")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10 and not (tmp_path / "out").exists()


def test_the_program_itself_prints_one_sentence_and_with_debug_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_bytes(b"{")
    line = [sys.executable, "-m", "floatlens", "eval", "tiny-arm", "--data", str(tmp_path / "data.jsonl")]
    environment = os.environ | {"PYTHONPATH": str(Path(main.__file__).parent.parent.parent)}
    done = subprocess.run(line, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1
    said = io.StringIO()
    with redirect_stderr(said):
        assert main.run([*line[3:], "--debug"]) == 2
    assert "Traceback" in said.getvalue()
