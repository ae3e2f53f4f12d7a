"""Load the tokenizer of a checkpoint with native classes only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from floatlens.errors import FloatLensError
from floatlens.models.checkpoint import Checkpoint
from floatlens.models.quiet import quietly

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

MASK_TOKENS = ("<|mask|>", "<empty_output>")  # the second is unused in SmolLM2
FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "tokenizer.model")


def load_tokenizer(checkpoint: Checkpoint) -> Any | None:
    """The tokenizer, or None if the folder has none (such a lens takes token ids)."""
    import transformers

    folder = checkpoint.folder
    if folder and not checkpoint.gguf_file and not any((folder / name).exists() for name in FILES):
        return None
    options: dict[str, Any] = {"revision": checkpoint.revision, "trust_remote_code": False}
    try:
        if checkpoint.gguf_file:
            from floatlens.models.gguf import load_tokenizer as load_from_gguf

            return load_from_gguf(Path(checkpoint.source) / checkpoint.gguf_file)
        # A family whose tokenizer is published as remote code names the native class that reads the same files.
        named = checkpoint.family.tokenizer
        has_fast = folder is not None and (folder / "tokenizer.json").exists()
        kind = getattr(transformers, named) if named and not has_fast else transformers.AutoTokenizer
        with quietly():
            return kind.from_pretrained(checkpoint.source, **options)
    except Exception as error:  # the tokenizers library raises Exception itself for a file that it cannot read
        reason = " ".join(str(error).split())
        raise FloatLensError(f"{checkpoint.name}: its tokenizer cannot be read: {reason[:300]}") from error


def find_mask_id(config: PreTrainedConfig | None, tokenizer: PreTrainedTokenizerBase | None) -> int | None:
    """The mask token of a model, from its config or otherwise from its tokenizer; None if there is none."""
    for source in (config, tokenizer):
        found = getattr(source, "mask_token_id", None)
        if found is not None:
            return int(found)
    vocabulary = {} if tokenizer is None else tokenizer.get_vocab()
    return next((int(vocabulary[token]) for token in MASK_TOKENS if token in vocabulary), None)
