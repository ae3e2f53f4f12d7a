"""A checkpoint's tokenizer reads the checkpoint's own files, whatever its config asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from floatlens.errors import FloatLensError
from floatlens.models.checkpoint import find
from floatlens.models.tokenizer import load_tokenizer
from tests.small_tokenizers import KINDS, byte_level

CLASSES = sorted({name for name in TOKENIZER_MAPPING_NAMES.values() if name})
SECRET = "hunter2"
FILE_FIELDS = ("vocab", "merges", "vocab_file", "merges_file", "tokenizer_file", "spm_file", "emoji_file", "gguf_file",
               "source_spm", "target_spm", "normalizer_file", "monolingual_vocab_file", "entity_vocab")  # fmt: skip


def checkpoint(folder: Path, **files: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def tokens(folder: Path) -> str:
    """Every token and every message that a folder's tokenizer gives away."""
    try:
        loaded = load_tokenizer(find(str(folder)))
    except FloatLensError as error:
        return str(error)
    return repr(loaded.get_vocab()) + repr(loaded) if loaded is not None else ""


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / ".env"
    path.write_text(f"[UNK]\n<unk>\n{SECRET} 1\n[CLS]\n[SEP]\n[MASK]\n[PAD]\n")
    return path


@pytest.mark.parametrize("name", CLASSES)
def test_no_class_opens_a_file_that_a_field_names(tmp_path: Path, secret: Path, name: str) -> None:
    fields = {"tokenizer_class": name, **dict.fromkeys(FILE_FIELDS, str(secret)), "init_inputs": [str(secret)]}
    assert SECRET not in tokens(checkpoint(tmp_path / "config", tokenizer_config__json=fields))
    alone = {"tokenizer_class": name, "vocab": str(secret)}
    assert SECRET not in tokens(checkpoint(tmp_path / "vocab", tokenizer_config__json=alone))
    plain = {"tokenizer_class": name}
    folder = checkpoint(tmp_path / "map", tokenizer_config__json=plain, special_tokens_map__json=alone)
    assert SECRET not in tokens(folder)


@pytest.mark.parametrize("name", CLASSES)
def test_no_class_opens_a_vocabulary_of_tokenizer_json(tmp_path: Path, secret: Path, name: str) -> None:
    core = {"model": {"type": "WordPiece", "vocab": str(secret), "unk_token": "[UNK]", "merges": str(secret)}}
    folder = checkpoint(tmp_path / "a", tokenizer__json=core, tokenizer_config__json={"tokenizer_class": name})
    assert SECRET not in tokens(folder)


def test_links_are_refused_before_anything_is_read(tmp_path: Path, secret: Path) -> None:
    for linked in ("config.json", "vocab.txt", "tokenizer_config.json"):
        folder = checkpoint(tmp_path / linked, tokenizer_config__json={"tokenizer_class": "BertTokenizer"})
        (folder / linked).unlink(missing_ok=True)
        (folder / linked).symlink_to(secret)
        with pytest.raises(FloatLensError, match="leads out of"):
            find(str(folder))


@pytest.mark.parametrize("kind", KINDS)
def test_the_copy_gives_the_tokens_of_the_original(tmp_path: Path, kind: str) -> None:
    original = KINDS[kind]()
    original.save_pretrained(tmp_path)
    checkpoint(tmp_path)
    loaded = load_tokenizer(find(str(tmp_path)))
    assert loaded is not None
    text = "Where does Ada Tarn live? [MASK] <|user|> café 東京"
    assert loaded(text)["input_ids"] == original(text)["input_ids"]
    assert loaded.special_tokens_map == original.special_tokens_map
    assert loaded.chat_template == original.chat_template
    assert loaded.name_or_path == str(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("chat_template", 3),
        ("chat_template", [{"name": "default"}]),
        ("eos_token", ["a"]),
        ("extra_ids", 10**9),
        ("added_tokens_decoder", {"999999999": {"content": "x"}}),
        ("added_tokens_decoder", {"0": {"content": 3}}),
        ("model_max_length", "long"),
        ("additional_special_tokens", "x"),
        ("tokenizer_class", 3),
    ],
)
def test_a_field_of_another_type_is_named(tmp_path: Path, name: str, value: Any) -> None:
    byte_level().save_pretrained(tmp_path)
    checkpoint(tmp_path, tokenizer_config__json={name: value})
    with pytest.raises(FloatLensError, match=f"tokenizer_config.json: field '{name}' has the unexpected value"):
        load_tokenizer(find(str(tmp_path)))
