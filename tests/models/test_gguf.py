"""A GGUF file is converted once; later loads come from the cache and give the same numbers."""

from __future__ import annotations

import json
import resource
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import floatlens
from floatlens import FloatLensError
from floatlens.data import chat_template
from floatlens.models import gguf as converted
from tests.commands import run
from tests.small_tokenizers import byte_level

gguf = pytest.importorskip("gguf")
IDS = torch.arange(5, 25)[None]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with the tokens of a small tokenizer."""
    return write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def write(path: Path, layers: Any = 2, template: Any = None) -> Path:
    """Write such a file; layers and template may have any value."""
    tokenizer = json.loads(byte_level().backend_tokenizer.to_str())
    words = {word: number for word, number in tokenizer["model"]["vocab"].items()}
    words |= {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    tokens = sorted(words, key=words.__getitem__)
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in tokenizer["model"]["merges"]]
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in (("llama.block_count", layers), ("tokenizer.chat_template", template)):
        if value is not None:
            kinds = {int: "INT64", float: "FLOAT32", bool: "BOOL", str: "STRING", list: "ARRAY"}
            writer.add_key_value(key, value, gguf.GGUFValueType[kinds[type(value)]])
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(tokens))
    writer.add_token_merges(merges)
    writer.add_eos_token_id(0)
    draw = np.random.default_rng(0)
    shapes = {"token_embd": (len(tokens), 32), "output_norm": (32,), "output": (len(tokens), 32)}
    for layer in range(2):
        shapes |= {f"blk.{layer}.{name}": (32,) for name in ("attn_norm", "ffn_norm")}
        shapes |= {f"blk.{layer}.{name}": (32, 32) for name in ("attn_q", "attn_output")}
        shapes |= {f"blk.{layer}.{name}": (16, 32) for name in ("attn_k", "attn_v")}
        shapes |= {f"blk.{layer}.{name}": (48, 32) for name in ("ffn_gate", "ffn_up")}
        shapes |= {f"blk.{layer}.ffn_down": (32, 48)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", draw.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Every parse of a file, with an empty cache."""
    monkeypatch.setenv("FLOATLENS_CACHE", str(tmp_path / "cache"))
    seen: list[Any] = []

    class Counted(gguf.GGUFReader):  # type: ignore[misc, name-defined]
        def __init__(self, *args: Any, **options: Any) -> None:
            seen.append(args)
            super().__init__(*args, **options)

    monkeypatch.setattr(gguf, "GGUFReader", Counted)
    return seen


def logits(file: Path) -> torch.Tensor:
    lens = floatlens.load(str(file))
    assert lens.tokenizer is not None and lens.tokenizer("Ada was born").input_ids
    with torch.no_grad():
        return lens.model(IDS).logits


def test_a_file_is_converted_once_and_later_loads_give_the_same_numbers(
    file: Path, parses: list[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    first = logits(file)
    parses.clear()
    assert "it/s" not in capfd.readouterr().err  # no progress bar where there is no terminal
    again = logits(file)
    assert not parses
    assert torch.equal(first, again)


def test_a_cached_file_that_was_damaged_is_made_again(file: Path, parses: list[Any], tmp_path: Path) -> None:
    first = logits(file)
    parses.clear()
    [weights] = (tmp_path / "cache").rglob("model.safetensors")
    raw = bytearray(weights.read_bytes())
    raw[-4:] = b"\x00\x00\xc0\x7f"
    weights.write_bytes(raw)
    assert torch.equal(logits(file), first)
    assert parses


def test_a_cache_that_cannot_be_written_is_not_needed(
    file: Path, parses: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("a file, not a folder")
    monkeypatch.setenv("FLOATLENS_CACHE", str(tmp_path / "taken"))
    assert logits(file).isfinite().all()


def test_a_file_that_is_cut_off_is_named(file: Path, parses: list[Any], tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:400])
    with pytest.raises(FloatLensError, match=r"the GGUF file .*cut\.gguf cannot be read"):
        floatlens.load(str(cut))
    assert not list(converted.cache_folder().rglob("gguf-config.json"))


def test_nothing_beside_the_file_is_read(file: Path, parses: list[Any], tmp_path: Path) -> None:
    """The cache is that of the content alone, so a folder with other files would also change later loads elsewhere."""
    beside = {"tokenizer_class": "BertTokenizer", "vocab": str(tmp_path / "secret"), "chat_template": "{{ 1 }}"}
    (tmp_path / "secret").write_text("[UNK]\nTOP\nSECRET\n")
    for name in ("tokenizer_config.json", "config.json", "adapter_config.json", "generation_config.json"):
        (tmp_path / name).write_text(json.dumps(beside | {"model_type": "bert", "eos_token_id": 7}))
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(file.read_bytes())
    lens, own = floatlens.load(str(copy)), floatlens.load(str(file))
    assert type(lens.tokenizer) is type(own.tokenizer) and "SECRET" not in lens.tokenizer.get_vocab()
    assert lens.tokenizer.chat_template is None and lens.end_ids == own.end_ids


BOMBS = {
    "as many layers as a config may have": ("llama.block_count", "<4xI", 9_999, "describes 9,999 layers"),
    "more layers than any model": ("llama.block_count", "<4xI", 2**31, "expected between 1 and 10,000"),
    "wide layers": ("llama.feed_forward_length", "<4xI", 2**28, "more than its weights can hold"),
    "a long list of tokens": ("tokenizer.ggml.tokens", "<8xQ", 2**50, "cannot be read"),
    "a long token": ("tokenizer.ggml.tokens", "<16xQ", 2**60, "cannot be read"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_header_that_promises_too_much_is_refused_before_it_takes_memory(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("FLOATLENS_CACHE", str(tmp_path / "cache"))
    field, layout, value, said = BOMBS[name]
    raw = bytearray(file.read_bytes())
    place = raw.index(field.encode()) + len(field) + struct.calcsize(layout) - struct.calcsize(layout[-1])
    struct.pack_into(f"<{layout[-1]}", raw, place, value)
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(raw)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FloatLensError, match=said):
        floatlens.load(str(bad))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes


@pytest.mark.parametrize("layers", [0, -3, 2.5, "many", True, [2, 2], 2**62])
def test_a_number_of_layers_that_no_model_has_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layers: Any
) -> None:
    monkeypatch.setenv("FLOATLENS_CACHE", str(tmp_path / "cache"))
    bad = write(tmp_path / "bad.gguf", layers=layers)
    for command in (
        ("models", bad),
        ("trace", bad, "--prompt", "Who?", "--max-new-tokens", 1, "--out", tmp_path / "run"),
    ):
        refused(run(*command, code=2).stderr)


TEMPLATES = {
    "endless": "{% for i in range(10**9) %}{% for j in range(10**9) %}{% endfor %}{% endfor %}",
    "multiplied": "{{ 'x' * 10**11 }}",
    "long": "{{ 'x' * 10**7 }}",
    "broken": "{% for",
    "reads a file": "{% include '/etc/passwd' %}",
    "runs code": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a number": 7,
    "true": True,
    "a list": ["{{ messages }}", "x"],
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_chat_template_that_cannot_be_rendered_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("FLOATLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(chat_template, "SECONDS", 3)
    bad = write(tmp_path / "bad.gguf", template=TEMPLATES[name])
    refused(run("trace", bad, "--prompt", "Who?", "--max-new-tokens", 1, "--out", tmp_path / "run", code=2).stderr)


def refused(said: str) -> None:
    assert said.startswith("floatlens: ") and said.count("\n") == 1 and len(said) < 700, said
    assert "root:" not in said and "Traceback" not in said
