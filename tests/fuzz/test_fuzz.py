"""For any input, the result is a value or a `FloatLensError`: no other exception, no stray file, bounded memory.

Every target gets a fixed share of more than 20,000 inputs, generated from a fixed seed, so that a run can be repeated;
FLOATLENS_FUZZ=10 runs ten times as many. Inputs that once failed are kept as `@example`s or in tests/hostile/corpus.py.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, seed, settings
from hypothesis import strategies as st

from floatlens.anchors import parse_rule
from floatlens.data.read import read
from floatlens.data.template import parse as parse_template
from floatlens.errors import FloatLensError
from floatlens.explorer import messages
from floatlens.explorer.film import film
from floatlens.findings.finding import FINDINGS
from floatlens.interventions.intervention import parse_intervention
from floatlens.models.checkpoint import find
from floatlens.store.folder import RunFolder
from floatlens.trace.attributes import PLAIN, STRUCTURED
from floatlens.trace.npz import read_npz
from floatlens.trace.trace import Trace
from tests.explorer.traces import planted
from tests.fuzz.mutations import JSON, dumps, mutate_bytes, mutate_json

TIMES = float(os.environ.get("FLOATLENS_FUZZ", "1"))
MEMORY = 600 << 20  # bytes by which the process may grow over all inputs of a target


def fuzz(count: int) -> Callable[[Any], Any]:
    """Run a test on `count` inputs from a fixed seed."""
    chosen = settings(
        max_examples=int(count * TIMES), deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    return lambda test: seed(20260)(chosen(test))


def tried(action: Callable[[], Any]) -> Any:
    """Run an action; a `FloatLensError` must be one line of text, any other exception is a failure."""
    try:
        return action()
    except FloatLensError as error:
        assert str(error).strip(), "the error says nothing"
        return error


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < MEMORY, f"the inputs made the process grow by {grown:,} bytes"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        inside = Path(name) / "inside"
        inside.mkdir()
        yield inside
        assert [p.name for p in Path(name).iterdir()] == ["inside"], "something was written outside the given folder"


# --- texts ------------------------------------------------------------------------------------------------------------

SPEC = st.text(alphabet="abcdefghmnoprstuxyz-_()[],=.:0123456789 ∞é\n", max_size=40)
RULES = ["sigma", "top", "excess", "first", "share", "x"]
RULE = st.builds("{}({}){}".format, st.sampled_from(RULES), SPEC, st.sampled_from(["", ")", " "]))
NAMES = ["mask-anchors", "pin-anchors", "ablate-heads", "mask-positions", "scale-attention", "soft-cap", "add-sink"]
INTERVENTION = st.builds("{}({})".format, st.sampled_from(NAMES), SPEC)


@fuzz(4000)
@given(st.one_of(SPEC, RULE))
@example("sigma(inf)")
@example("top(1e400)")
def test_anchor_rules(text: str) -> None:
    tried(lambda: parse_rule(text))


@fuzz(4000)
@given(st.one_of(SPEC, INTERVENTION))
def test_interventions(text: str) -> None:
    tried(lambda: parse_intervention(text))


@fuzz(1500)
@given(st.text(max_size=80) | st.builds("{}{{passages}}{}{{question}}{}".format, SPEC, SPEC, SPEC))
def test_templates(text: str) -> None:
    tried(lambda: parse_template(text))


# --- messages of a page -------------------------------------------------------------------------------------------------

RUN = {
    "type": "run", "id": 1, "model": "m", "question": "q", "passages": [{"title": "", "text": "p", "gold": True}],
    "max_new_tokens": 4, "steps": 4, "block_length": None, "seed": 0, "interventions": ["mask-anchors(top(1))"],
}  # fmt: skip
ATTENTION = {"type": "attention", "id": 1, "step": 0, "layer": None, "position": 3, "direction": "from"}


@fuzz(5000)
@given(st.one_of(mutate_json(RUN), mutate_json(ATTENTION), JSON).map(dumps) | mutate_bytes(dumps(RUN)))
def test_messages_to_the_server(raw: bytes) -> None:
    tried(lambda: messages.check(messages.read(raw.decode("utf-8", "surrogateescape"), 4096)))


# --- data ----------------------------------------------------------------------------------------------------------------

RECORDS: dict[str, Any] = {
    "columns": {"id": "a", "question": "Who?", "answers": ["x"], "passages": ["p", {"title": "t", "text": "x"}]},
    "kilt": {"id": 1, "input": "Who?", "output": [{"answer": "x"}], "passage": [{"segment": "p"}]},
    "middle": {"question": "Who?", "answers": ["x"], "ctxs": [{"title": "t", "text": "x", "isgold": True}]},
    "hotpot": {
        "_id": "a",
        "question": "Who?",
        "answer": "x",
        "context": [["t", ["s"]]],
        "supporting_facts": [["t", 0]],
    },
    "keyvalue": {"ordered_kv_records": [["k", "v"]], "key": "k", "value": "v"},
}


@fuzz(2500)
@given(st.data())
def test_lines_of_json(folder: Path, data: st.DataObject) -> None:
    layout = data.draw(st.sampled_from(sorted(RECORDS)))
    lines = data.draw(st.lists(mutate_json(RECORDS[layout]).map(dumps), min_size=1, max_size=3))
    path = folder / "data.jsonl"
    path.write_bytes(b"\n".join(lines))
    tried(lambda: list(read(str(path))))
    tried(lambda: list(read(str(path), layout=layout)))


@fuzz(1500)
@given(mutate_bytes(b'id,question,answers,passages\n1,Who?,"[""x""]","[""p""]"\n2,Where?,y,z\n'))
def test_tables_of_text(folder: Path, raw: bytes) -> None:
    path = folder / "data.csv"
    path.write_bytes(raw)
    tried(lambda: list(read(str(path))))


# --- stored results -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def without_checksum(folder: Path) -> Path:
    """A trace whose metadata have no checksum, which an attacker would compute again."""
    path = planted(steps=2, layers=1, heads=1, positions=20).save(folder / "open")
    group = json.loads((path / "zarr.json").read_text())
    del group["attributes"]["crc32c"]
    (path / "zarr.json").write_text(json.dumps(group))
    return path


EVERY = [*PLAIN, *STRUCTURED]


@fuzz(600)
@given(st.sampled_from(EVERY), JSON, st.booleans())
@example("model", "\ud800", False)
@example("sample_id", "\ud800", False)
@example("output", "\ud800", False)
def test_attributes_of_a_stored_trace(without_checksum: Path, name: str, value: Any, as_text: bool) -> None:
    file = without_checksum / "zarr.json"
    before = file.read_bytes()
    group = json.loads(before)
    group["attributes"][name] = json.dumps(value) if as_text else value
    try:
        file.write_bytes(dumps(group))
        tried(lambda: _use(Trace.open(without_checksum)))
    finally:
        file.write_bytes(before)


def _use(trace: Trace) -> None:
    """Everything that a command does with a trace reads it through these."""
    assert repr(trace) and trace._repr_html_() and trace.strings() and trace.order
    json.dumps(film(trace), allow_nan=False)
    for name in ("drift", "absorption", "tokens", "flow"):
        tried(lambda name=name: FINDINGS[name].measure([trace]))


@fuzz(700)
@given(st.data())
def test_metadata_of_a_stored_trace(without_checksum: Path, data: st.DataObject) -> None:
    stored = without_checksum
    files = sorted(stored.rglob("zarr.json"))
    file = files[data.draw(st.integers(0, len(files) - 1))]
    before = file.read_bytes()
    changed = data.draw(mutate_json(json.loads(before)).map(dumps) | mutate_bytes(before))
    try:
        file.write_bytes(changed)
        tried(lambda: Trace.open(stored))
    finally:
        file.write_bytes(before)


def _npz(payload: bytes) -> bytes:
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (), }".ljust(117) + b"\n"
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("data.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + payload)
    return made.getvalue()


HOLDER = np.array({"step": 1, "a": np.arange(4.0), "b": [np.float32(2), "x"]}, dtype=object)


@fuzz(1500)
@given(mutate_bytes(pickle.dumps(HOLDER, 3)))
def test_pickled_arrays(folder: Path, payload: bytes) -> None:
    path = folder / "x.npz"
    path.write_bytes(_npz(payload))
    tried(lambda: read_npz(path))


@fuzz(500)
@given(mutate_bytes(_npz(pickle.dumps(HOLDER, 3))))
def test_archives_of_arrays(folder: Path, raw: bytes) -> None:
    path = folder / "y.npz"
    path.write_bytes(raw)
    tried(lambda: read_npz(path))


CONFIG = {
    "model_type": "llada", "architectures": ["LLaDAModelLM"], "d_model": 32, "n_layers": 1, "n_heads": 2, "n_kv_heads": 2,
    "mlp_hidden_size": 64, "vocab_size": 64, "embedding_size": 64, "mask_token_id": 63, "eos_token_id": 1,
    "pad_token_id": 1, "rope_theta": 1e4, "rms_norm_eps": 1e-5, "max_sequence_length": 64, "weight_tying": False,
}  # fmt: skip


NATIVE = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 64,
    "vocab_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    "attn_implementation": "stranger/kernel",
}  # fmt: skip


@fuzz(1200)
@given(st.sampled_from([CONFIG, NATIVE]).flatmap(lambda c: mutate_json(c).map(dumps) | mutate_bytes(dumps(c))))
def test_configs_of_checkpoints(folder: Path, raw: bytes) -> None:
    path = folder / "checkpoint"
    path.mkdir(exist_ok=True)
    (path / "config.json").write_bytes(raw)
    found = tried(lambda: find(str(path)))
    if not isinstance(found, FloatLensError):
        tried(found.native_config)


@fuzz(400)
@given(st.data())
def test_files_of_a_run_folder(folder: Path, data: st.DataObject) -> None:
    path = folder / "run"
    if not path.exists():
        with RunFolder.create(path, {"command": "eval", "asked": {}}) as run:
            run.put(("m", "d", "c", "1"), {"answer": "x", "error": None})
            run.finish()
    files = sorted(p for p in path.rglob("*") if p.is_file() and p.suffix in (".json", ".jsonl"))
    file = files[data.draw(st.integers(0, len(files) - 1))]
    before = file.read_bytes()
    try:
        file.write_bytes(data.draw(mutate_bytes(before)))
        opened = tried(lambda: RunFolder.open(path))
        if isinstance(opened, RunFolder):
            tried(lambda: list(opened.results()))
            tried(opened.samples)
    finally:
        file.write_bytes(before)
