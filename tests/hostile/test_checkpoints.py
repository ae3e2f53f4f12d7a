"""A checkpoint whose files do not belong together is refused in one sentence, before it takes memory or time."""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, example, given, settings

import floatlens as fl
from floatlens.errors import FloatLensError
from floatlens.models.checkpoint import find
from floatlens.models.weights import read_header
from floatlens.options import Load
from tests.fuzz.mutations import mutate_bytes, mutate_json
from tests.models import checkpoints
from tests.small_tokenizers import byte_level

MEMORY = 300_000  # kilobytes by which a refused checkpoint may make the process grow


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def grown(before: int) -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return checkpoints.native(tmp_path / "llama", "llama")


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"hidden_size": 2**16, "head_dim": 2**14}, "numbers in the weights|more than its weights can hold"),
        ({"intermediate_size": 2**26}, "numbers in the weights|more than its weights can hold"),
        ({"vocab_size": 2**27}, "numbers in the weights|more than its weights can hold"),
        ({"num_hidden_layers": 9_999}, "describes 9,999 layers, but the weights have 30 tensors"),
        ({"num_attention_heads": 3}, "cannot be read as llama"),
    ],
)
def test_a_config_of_a_larger_model_takes_no_memory(llama: Path, fields: dict[str, Any], said: str) -> None:
    fl.load(str(llama))
    edit(llama / "config.json", **fields)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FloatLensError, match=said) as caught:
        fl.load(str(llama))
    assert "\n" not in str(caught.value)
    assert grown(before) < MEMORY


# --- headers ----------------------------------------------------------------------------------------------------------

HEADER = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    "c": {"dtype": "BOOL", "shape": [], "data_offsets": [32, 33]},
    "d": {"dtype": "F8_E4M3", "shape": [3], "data_offsets": [33, 36]},
}


def safetensors(header: Any, size: int = 36) -> bytes:
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(size)


def test_a_header_lists_types_and_sizes(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(safetensors(HEADER))
    assert read_header(tmp_path / "x") == {"a": ("F32", 6), "b": ("BF16", 4), "c": ("BOOL", 1), "d": ("F8_E4M3", 3)}


@pytest.mark.parametrize("shape", [[2, 2], [3, 3], [2**60, 2**60]], ids=["smaller", "larger", "overflowing"])
def test_a_tensor_of_another_size_than_its_data_is_refused(tmp_path: Path, shape: list[int]) -> None:
    """Such a count would tell how much memory the weights may take, and whether they fit the config."""
    (tmp_path / "x").write_bytes(safetensors(HEADER | {"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 24]}}))
    with pytest.raises(FloatLensError, match="is not a complete safetensors file"):
        read_header(tmp_path / "x")


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(mutate_json(HEADER).map(safetensors) | mutate_bytes(safetensors(HEADER)) | st.binary(max_size=60))
@example(safetensors([]))
@example(safetensors(HEADER | {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, "24"]}}))
@example(safetensors(HEADER | {"a": {"dtype": "F32", "shape": [2**60, 2**60], "data_offsets": [0, 24]}}))
@example(safetensors(HEADER | {"a": {"dtype": 3, "shape": [6], "data_offsets": [0, 24]}}))
@example(struct.pack("<Q", 200_000) + b"[" * 200_000)
def test_any_header_is_read_or_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "x").write_bytes(raw)
    try:
        assert all(count >= 0 for _, count in read_header(tmp_path / "x").values())
    except FloatLensError as error:
        assert "\n" not in str(error)


# --- fields -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["</s>", [[2]], {"a": 1}, 1.5, True, 2**70])
def test_a_token_id_that_is_none_is_named(llama: Path, value: Any) -> None:
    edit(llama / "config.json", eos_token_id=value)
    with pytest.raises(FloatLensError, match="eos_token_id"):
        fl.load(str(llama))


@pytest.mark.parametrize("value", ["</s>", [[2]], {"a": 1}, 1.5])
def test_a_generation_config_with_another_end_token_is_named(llama: Path, value: Any) -> None:
    (llama / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(FloatLensError, match=r"eos_token_id|generation_config|cannot be loaded"):
        fl.load(str(llama))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(mutate_json({"eos_token_id": [1, 2], "temperature": 0.5, "max_length": 20, "transformers_version": "5.0.0"}))
def test_any_generation_config_is_read_or_refused(tmp_path_factory: Any, content: Any) -> None:
    folder = tmp_path_factory.getbasetemp() / "generation"
    if not folder.exists():
        checkpoints.native(folder, "llama")
    (folder / "generation_config.json").write_text(json.dumps(content))
    try:
        assert all(isinstance(number, int) for number in fl.load(str(folder)).end_ids)
    except FloatLensError as error:
        assert "\n" not in str(error)


TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>",
    "eos_token": {"content": "<|eos|>", "__type": "AddedToken"},
    "added_tokens_decoder": {"0": {"content": "<|bos|>", "special": True}}, "chat_template": "{{ messages[0].content }}",
    "model_max_length": 512, "additional_special_tokens": ["<|user|>"], "extra_special_tokens": {"image": "<image>"},
    "padding_side": "left", "model_input_names": ["input_ids"], "vocab": ".env", "init_inputs": [".env"],
}  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(mutate_json(TOKENIZER), st.sampled_from(["tokenizer_config.json", "special_tokens_map.json"]))
def test_any_tokenizer_config_is_read_or_refused(tmp_path_factory: Any, content: Any, name: str) -> None:
    from floatlens.models.tokenizer import load_tokenizer

    folder = tmp_path_factory.getbasetemp() / f"tokenizer-{name}"
    if not folder.exists():
        byte_level().save_pretrained(folder)
        (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / name).write_text(json.dumps(content))
    try:
        tokenizer = load_tokenizer(find(str(folder)))
        assert tokenizer is not None and tokenizer("Where?")["input_ids"]
    except FloatLensError as error:
        assert "\n" not in str(error)


ADAPTER = {
    "peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none", "use_rslora": False,
    "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.q_proj": 16}, "modules_to_save": None,
    "init_lora_weights": True, "base_model_name_or_path": "org/name",
}  # fmt: skip


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(mutate_json(ADAPTER))
@example(ADAPTER | {"lora_alpha": float("nan")})
@example(ADAPTER | {"base_model_name_or_path": ["\n"]})
@example(ADAPTER | {"peft_type": "\n"})
def test_any_adapter_config_is_read_or_refused(tmp_path: Path, content: Any) -> None:
    from floatlens.models.adapter import read_config

    (tmp_path / "adapter_config.json").write_text(json.dumps(content))
    try:
        assert read_config(tmp_path)["r"] >= 1
    except FloatLensError as error:
        assert "\n" not in str(error)


def test_tensors_of_a_type_that_torch_has_not_are_named(tmp_path: Path) -> None:
    from floatlens.models.adapter import read_safetensors

    header = {"mask": {"dtype": "F128", "shape": [1], "data_offsets": [0, 16]}}
    (tmp_path / "mask.safetensors").write_bytes(safetensors(header, 16))
    with pytest.raises(FloatLensError, match="mask.safetensors cannot be read"):
        read_safetensors(tmp_path / "mask.safetensors")


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["./model", "../model", "~/model", "here/model", "out/checkpoint-500"])
def test_a_missing_folder_is_never_asked_of_the_hub(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*args: Any, **options: Any) -> None:
        raise ValueError("the Hub was asked")

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", ask)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", ask)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    with pytest.raises(FloatLensError, match="does not exist"):
        find(name)
    with pytest.raises(FloatLensError, match="not found on the Hub: the Hub was asked"):
        find("here/model", Load(revision="main"))


@pytest.mark.parametrize("kind", ["model", "data"])
def test_an_unreachable_hub_is_one_sentence_without_retries(kind: str) -> None:
    find = "from floatlens.models.checkpoint import find; find('org/no-model')"
    script = {"model": find, "data": "import floatlens as fl; next(iter(fl.read('org/no-data')))"}[kind]
    code = f"try: {script}\nexcept Exception as e: print(e)"
    away = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=away, capture_output=True, text=True)
    assert "Connection refused" in done.stdout and len(done.stdout.splitlines()) == 1
    assert "etry" not in done.stdout + done.stderr, done.stderr


def test_a_hub_model_is_checked_like_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the Hub's cache: no network, and a config that does not belong to the weights is refused."""
    llama = checkpoints.native(tmp_path / "llama", "llama")
    byte_level().save_pretrained(llama)
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", lambda url: None)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda name, file, revision: str(llama / file))
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, revision, allow_patterns: str(llama))
    lens = fl.load("org/llama")
    assert lens.tokenizer is not None and lens.tokenizer.name_or_path == "org/llama"
    edit(llama / "config.json", intermediate_size=2**26)
    with pytest.raises(FloatLensError, match="numbers in the weights|more than its weights can hold"):
        fl.load("org/llama")


@pytest.mark.parametrize("temperature", [float("nan"), float("inf"), -1.0])
def test_a_temperature_is_a_finite_number(temperature: float) -> None:
    with pytest.raises(FloatLensError, match="temperature should be a number of 0 or more"):
        fl.load("tiny-arm").generate("Where?", max_new_tokens=1, temperature=temperature)
