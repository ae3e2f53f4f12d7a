"""Load the tokenizer of a checkpoint with native classes only, from a cleaned copy of its files.

transformers passes every field of tokenizer_config.json to the tokenizer's class, and several of them open a `vocab` that
is text as a file: a checkpoint could show any file of the user as its vocabulary. So the classes read a folder that holds
only regular files of the checkpoint, with the fields of FIELDS in them.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floatlens.errors import FloatLensError
from floatlens.models.checkpoint import Checkpoint, download, one_line, read_json
from floatlens.models.quiet import quietly

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

MASK_TOKENS = ("<|mask|>", "<empty_output>")  # the second is unused in SmolLM2
FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "tokenizer.model")
# Endings of the vocabulary files of all tokenizer classes; files of JSON are checked before they are copied.
COPIED = (".txt", ".model", ".jinja", ".codes", ".spm", ".tokenizer", ".tiktoken", ".v1", ".v2", ".v3")
LARGEST_FILE = 200 << 20
LARGEST_ID = 1 << 21  # of an added token: some classes fill the numbers below it with placeholders


TOKEN = (str, bool, {"content": str})  # text, a flag such as add_bos_token, or the fields of transformers' AddedToken
# The fields of tokenizer_config.json that reach a tokenizer's class, none of which names a file, and what they may be (see
# `untrusted.matches`).
FIELDS: dict[str, Any] = {
    **dict.fromkeys(
        ("errors", "language", "padding_side", "source_lang", "src_lang", "target_lang", "task", "tgt_lang",
         "token_type_ids_pattern", "tokenizer_class", "truncation_side", "wordpieces_prefix"), str),
    **dict.fromkeys(
        ("add_prefix_space", "clean_text", "clean_up_tokenization_spaces", "do_basic_tokenize", "do_lower_case",
         "do_lowercase", "do_lowercase_and_remove_accent", "fix_mistral_regex", "keep_accents", "legacy",
         "legacy_behaviour", "normalize", "remove_space", "spaces_between_special_tokens", "split_by_punct",
         "split_special_tokens", "strip_accents", "tokenize_chinese_chars", "trim_offsets", "use_default_system_prompt"),
        bool),
    **dict.fromkeys(("extra_ids", "offset", "unk_id"), range(10_001)),
    "model_input_names": [str],
    "never_split": [str],
    **dict.fromkeys(("additional_special_tokens", "extra_special_tokens"), ([TOKEN], {str: TOKEN})),
    "added_tokens_decoder": {str: {"content": str}},
    "chat_template": (str, {str: str}, [{"template": str}]),
    "model_max_length": (int, float),
}  # fmt: skip


def load_tokenizer(checkpoint: Checkpoint) -> Any | None:
    """The tokenizer, or None if the folder has none (such a lens takes token ids)."""
    import transformers

    if checkpoint.gguf_file:
        from floatlens.models.gguf import load_tokenizer as load_from_gguf

        return load_from_gguf(Path(checkpoint.source) / checkpoint.gguf_file)
    folder = checkpoint.folder or download(checkpoint, ("*.json", *(f"*{ending}" for ending in COPIED)))
    if not any((folder / name).exists() for name in FILES):
        return None
    with tempfile.TemporaryDirectory(prefix="floatlens-tokenizer-") as name, quietly():
        copy_clean(folder, Path(name), checkpoint.config)
        try:
            # A family whose tokenizer is published as remote code names the native class that reads the same files.
            if (named := checkpoint.family.tokenizer) and not (folder / "tokenizer.json").exists():
                tokenizer = getattr(transformers, named).from_pretrained(name)
            else:
                options = {"config": _config(name, checkpoint.source), "trust_remote_code": False}
                tokenizer = transformers.AutoTokenizer.from_pretrained(name, **options)
            if not hasattr(tokenizer, "get_vocab"):
                raise TypeError(f"a {type(tokenizer).__name__} has no vocabulary of its own")
            tokenizer.name_or_path = checkpoint.source
            return tokenizer
        except Exception as error:  # the tokenizers library raises Exception itself for a file that it cannot read
            reason = one_line(error).replace(name, str(folder))
            raise FloatLensError(f"{checkpoint.name}: its tokenizer cannot be read: {reason}") from error


def copy_clean(folder: Path, target: Path, config: dict[str, Any]) -> None:
    """Copy the files that tokenizer classes read, without the fields that would make them read others."""
    for path in sorted(folder.iterdir()):
        if not path.is_file() or path.suffix not in (".json", *COPIED) or path.name.endswith(".index.json"):
            continue
        if path.stat().st_size > LARGEST_FILE:
            raise FloatLensError(f"{path} is larger than {LARGEST_FILE >> 20} MB; expected the file of a tokenizer")
        if path.name in ("tokenizer_config.json", "special_tokens_map.json"):
            fields = _clean(read_json(path, str(folder)), path)
            (target / path.name).write_text(json.dumps(fields), encoding="utf-8")
            continue
        if path.name == "tokenizer.json":
            _check_core(read_json(path, str(folder)), path)
        elif path.name == "added_tokens.json":
            for token, number in read_json(path, str(folder)).items():
                if type(number) is not int or not 0 <= number < LARGEST_ID:
                    raise FloatLensError(
                        f"{path}: the token {token!r} has the number {number!r}; expected 0 to {LARGEST_ID - 1:,}"
                    )
        shutil.copyfile(path, target / path.name)
    kept = ("model_type", "tokenizer_class", "transformers_version")
    named = {key: config[key] for key in kept if isinstance(config.get(key), str)}
    (target / "config.json").write_text(json.dumps(named), encoding="utf-8")


def _clean(fields: dict[str, Any], path: Path) -> dict[str, Any]:
    """The allowed fields; raise an error for an allowed field of the wrong type."""
    from floatlens.untrusted import matches  # which imports pandas

    found = {}
    for name, value in fields.items():
        schema = FIELDS.get(name) or (TOKEN if name.endswith("_token") else None)
        if schema is None or value is None:
            continue
        ids = value if name == "added_tokens_decoder" else ()
        if not matches(value, schema) or not all(
            re.fullmatch(r"\d{1,7}", id_) and int(id_) < LARGEST_ID for id_ in ids
        ):
            raise FloatLensError(f"{path}: field {name!r} has the unexpected value {repr(value)[:100]}")
        found[name] = value
    return found


def _check_core(tokenizer: dict[str, Any], path: Path) -> None:
    """Raise an error for a tokenizer.json whose vocabulary or merges are text: some classes open it as a file."""
    model = tokenizer.get("model")
    if not isinstance(model, dict):
        raise FloatLensError(f"{path}: field 'model' should be an object, found {type(model).__name__}")
    for name in ("vocab", "merges"):
        if not isinstance(model.get(name, []), dict | list):
            raise FloatLensError(f"{path}: field 'model.{name}' should list tokens, found {repr(model[name])[:100]}")


def _config(folder: str, source: str) -> Any:
    """The config by which transformers chooses a tokenizer class; for some models it also looks at the Hub id."""
    from transformers import AutoConfig, PreTrainedConfig

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (ValueError, OSError):  # a model type that transformers does not know
        config = PreTrainedConfig.from_pretrained(folder)
    config._name_or_path = source
    return config


def find_mask_id(config: PreTrainedConfig | None, tokenizer: PreTrainedTokenizerBase | None) -> int | None:
    """The mask token of a model, from its config or otherwise from its tokenizer; None if there is none."""
    for source in (config, tokenizer):
        found = getattr(source, "mask_token_id", None)
        if found is not None:
            return int(found)
    vocabulary = {} if tokenizer is None else tokenizer.get_vocab()
    return next((int(vocabulary[token]) for token in MASK_TOKENS if token in vocabulary), None)
