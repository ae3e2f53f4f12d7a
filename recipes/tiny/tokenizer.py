"""The tokenizer of the synthetic world.

Byte-level BPE, trained on the world, so that any text can be encoded; in addition, every word of the world is one
token (`ignore_merges`, as in Llama 3). A word has the same token at any position: a space is added before the first
word of each line when encoding and removed when decoding, so that the name in a passage and the name at the start of an
answer are the same token.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from floatlens.data.world import ASIDES, HOPS, NAMES, RELATIONS, WORDS, names, samples
from recipes.tiny.prompts import ASSISTANT, BOS, CHAT_TEMPLATE, CLOSED_BOOK, EOS, MASK, USER, WITH_PASSAGES

SPECIAL = [BOS, EOS, MASK, USER, ASSISTANT]
MERGES = 600  # size of the trained byte-level vocabulary, without the whole words
# GPT-2's pattern, with numbered markers and slot separators such as [3] and [SEP] in one piece
PATTERN = r" ?\[\w+\]| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}\[]+| ?\[|\s+(?!\S)|\s+"
CONTEXT = 512


def _vocabulary_lines() -> Iterator[str]:
    """Every word of the world at least once."""
    yield from map(" ".join, names().values())
    plain = ("trades", "firm_kinds", "colours", "animals", "instrument_kinds", "passwords", "months", "years", "days")
    yield from (" ".join(WORDS[kind]) for kind in plain)
    for relation in RELATIONS.values():
        yield from (text.replace("{s}", " ").replace("{o}", " ") for text in relation.statements + relation.questions)
        yield f"[SEP] {relation.slot}"
    for hop in HOPS:
        yield hop.direct.replace("{s}", " ")
    yield from (*ASIDES, WITH_PASSAGES, CLOSED_BOOK, "Question: What is known about ? Who was ?")
    yield " ".join(f"[{number}]" for number in range(1, 41))
    yield "\n\n"


def _corpus() -> Iterator[str]:
    for name in NAMES:
        for sample in samples(name, "train", limit=150, passages=5):
            question, answer = sample.question, sample.answers[0]
            if name == "hops":  # the direct form
                hop = next(hop for hop in HOPS if f"{hop.first} of {hop.second}" == sample.meta["relation"])
                question, answer = hop.direct.format(s=sample.meta["subject"]), answer.split(", ")[1]
            yield "\n".join([question, answer, *(passage.text for passage in sample.passages)])


def build() -> Tokenizer:
    """Train the tokenizer; the same on every machine."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(r"\n(?=[^\n])"), "\n "),
            normalizers.Prepend(" "),
            normalizers.Replace(Regex(r"\A \n"), "\n"),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteLevel(), decoders.Replace("\n ", "\n"), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=MERGES,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    state = json.loads(tokenizer.to_str())
    vocabulary = state["model"]["vocab"]
    # words that only occur in two-hop questions come last, so that the ids of the rest do not depend on them
    for lines in (_vocabulary_lines(), (text.replace("{s}", " ") for hop in HOPS for text in hop.questions)):
        found: set[str] = set()
        for line in lines:
            pieces = tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(line))
            found.update(piece for piece, _ in pieces)
        for word in sorted(found - set(vocabulary)):
            vocabulary[word] = len(vocabulary)
    state["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(state))


def save(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, as `AutoTokenizer.from_pretrained` reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    build().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": EOS,
        "mask_token": MASK,
        "additional_special_tokens": [USER, ASSISTANT],
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


@cache
def shared() -> Tokenizer:
    """The tokenizer for training, made once per process."""
    return build()


def token_id(token: str) -> int:
    """The id of a token as the vocabulary writes it (`Ġ` for a space before it).

    >>> token_id("<|mask|>")
    2
    """
    found = shared().token_to_id(token)
    if found is None:
        raise KeyError(token)
    return int(found)
