"""Small BERTs and GPT-2s whose attention is planted: one key gets a known amount more than every other one.

Queries are constant and only the planted key has a key vector, so that its score is `bias` in every layer and head, and
that of all others 0. With n visible keys it therefore receives e^bias / (e^bias + n − 1) of each row.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

LAYERS, HEADS, WIDTH = 4, 2, 16
MARKS = ["[PAD]", "[UNK]", "[MASK]", ",", ";", "."]
WORDS = [
    "and",
    "the",
    *(f"{a}{b}" for a in ("ka", "lo", "mi", "nu", "pe", "ro") for b in ("ba", "do", "fi", "gu", "ha")),
]


def tokenizer() -> PreTrainedTokenizerFast:
    """Words and punctuation marks, one token each, with the space before a word as part of it."""
    vocabulary = {token: i for i, token in enumerate([*MARKS, *(f"▁{word}" for word in WORDS)])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
    core.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="[UNK]", pad_token="[PAD]", mask_token="[MASK]", eos_token="[PAD]"
    )


def texts(count: int, length: int = 420) -> list[str]:
    """Different texts with a comma after every ninth word and a full stop after every twentieth, from word 4 on."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for number in range(count):
        words = [WORDS[int(i)] for i in torch.randint(0, len(WORDS), (length,), generator=generator)]
        words[0] = WORDS[2 + number % (len(WORDS) - 2)]
        for n in range(4, length, 9):
            words[n] += ","
        for n in range(10, length, 20):
            words[n] += "."
        made.append(" ".join(words))
    return made


def planted(kind: str, *, position: int | None = None, token: str | None = None, bias: float = 6.0) -> PreTrainedModel:
    """A model ("mdm" or "arm") with a sink at a position, at every token of an id, or without one."""
    known = tokenizer()
    torch.manual_seed(0)
    about = {"vocab_size": len(known), "pad_token_id": 0}
    if kind == "mdm":
        config = BertConfig(
            **about, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=WIDTH,
            max_position_embeddings=512, mask_token_id=known.mask_token_id, tie_word_embeddings=False,
        )  # fmt: skip
        model: PreTrainedModel = BertForMaskedLM(config)
        parts = model.bert.embeddings
        words, positions = parts.word_embeddings.weight, parts.position_embeddings.weight
        parts.token_type_embeddings.weight.data.zero_()
    else:
        sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_inner": WIDTH, "n_positions": 512}
        model = GPT2LMHeadModel(GPT2Config(**about, **sizes, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False))
        words, positions = model.transformer.wte.weight, model.transformer.wpe.weight
    plain, chosen = torch.zeros(WIDTH), torch.zeros(WIDTH)
    plain[0], plain[1] = 1.0, -1.0
    chosen[2], chosen[3] = 10.0, -10.0
    words.data[:] = plain
    positions.data.zero_()
    if position is not None:
        positions.data[position] = chosen
    if token is not None:
        words.data[known.convert_tokens_to_ids(token)] = plain + chosen
    # after a layer norm, the difference of channels 2 and 3 is 0 without the plant and `height` with it
    size = (plain + chosen) / (plain + chosen).std(correction=0)
    height = float(size[2] - size[3])
    width = WIDTH // HEADS
    query = torch.zeros(WIDTH)
    query[::width] = 1.0
    key = torch.zeros(WIDTH, WIDTH)
    for head in range(HEADS):
        key[head * width, 2], key[head * width, 3] = 1.0, -1.0
    key *= bias * math.sqrt(width) / height
    _plant(model, query, key)
    return model.eval()


def _plant(model: PreTrainedModel, query: torch.Tensor, key: torch.Tensor) -> None:
    """Constant queries, keys by the plant, and blocks that add nothing, so that every layer is alike."""
    with torch.no_grad():
        if isinstance(model, BertForMaskedLM):
            for layer in model.bert.encoder.layer:
                for part in (layer.attention.self.query, layer.attention.output.dense, layer.output.dense):
                    part.weight.zero_()
                    part.bias.zero_()
                layer.attention.self.query.bias.copy_(query)
                layer.attention.self.key.weight.copy_(key)
                layer.attention.self.key.bias.zero_()
            return
        for block in model.transformer.h:
            for part in (block.attn.c_attn, block.attn.c_proj, block.mlp.c_proj):
                part.weight.zero_()
                part.bias.zero_()
            block.attn.c_attn.bias[:WIDTH] = query
            block.attn.c_attn.weight[:, WIDTH : 2 * WIDTH] = key.T


def save(model: PreTrainedModel, folder: Path) -> Path:
    """Write a checkpoint with its tokenizer."""
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def share(bias: float, keys: int) -> float:
    """The planted key's share of a row with so many visible keys."""
    return math.exp(bias) / (math.exp(bias) + keys - 1)
