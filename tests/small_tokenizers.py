"""Small tokenizers of each kind, trained on a few sentences, as a user's checkpoint would bring them."""

from __future__ import annotations

import json

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TEXTS = [
    "Answer the question from the passages. Reply with the answer only.",
    "Question: Where does Ada Tarn live? [1] Ada Tarn lives in Molen. [2] Ben Oder: a baker in Rusk, 42 years old.",
    "The café is naïve; 東京 is big. Weather: it rains. <|user|> [MASK] user mask",
]
CHAT = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
MARKERS = ["<|bos|>", "<|eos|>", "<|mask|>", "<|user|>", "<|assistant|>"]


def byte_level() -> PreTrainedTokenizerFast:
    """GPT-2, Llama 3, Qwen, LLaDA, Dream, SmolLM."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, special_tokens=MARKERS)
    core.train_from_iterator(TEXTS, trainer)
    return _wrapped(core)


def metaspace() -> PreTrainedTokenizerFast:
    """Llama 2, Mistral, Gemma: SentencePiece BPE with byte fallback."""
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    core = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=["<unk>", *MARKERS, *bytes_], limit_alphabet=60)
    core.pre_tokenizer = pre_tokenizers.Split(Regex("(?=▁)"), "isolated")
    core.train_from_iterator(TEXTS, trainer)
    return _wrapped(_without_added(core, bytes_), unk_token="<unk>")


def unigram() -> PreTrainedTokenizerFast:
    """T5, XLM-R, ALBERT: SentencePiece unigram; its model knows the special strings as pieces."""
    core = Tokenizer(models.Unigram())
    core.normalizer = normalizers.NFKC()
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    core.train_from_iterator(
        TEXTS, trainers.UnigramTrainer(vocab_size=150, special_tokens=["<unk>", *MARKERS], unk_token="<unk>")
    )
    return _wrapped(core, unk_token="<unk>")


def word_piece() -> PreTrainedTokenizerFast:
    """BERT."""
    core = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    special = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", "[PAD]"]
    core.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special))
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[("[CLS]", core.token_to_id("[CLS]")), ("[SEP]", core.token_to_id("[SEP]"))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]", pad_token="[PAD]",
    )  # fmt: skip


def word_level() -> PreTrainedTokenizerFast:
    """The simplest: whole words and punctuation."""
    core = Tokenizer(models.WordLevel(unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.train_from_iterator(TEXTS, trainers.WordLevelTrainer(special_tokens=["<unk>", *MARKERS]))
    return _wrapped(core, unk_token="<unk>")


class WithoutOffsets:
    """The same tokenizer as a slow one would be: no offsets."""

    is_fast = False

    def __init__(self, inner: PreTrainedTokenizerFast) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def __call__(self, text: str, **options: object) -> object:
        assert "return_offsets_mapping" not in options
        return self.inner(text, **options)


KINDS = {
    "byte_level": byte_level,
    "metaspace": metaspace,
    "unigram": unigram,
    "word_piece": word_piece,
    "word_level": word_level,
}


def _wrapped(core: Tokenizer, **names: str) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<|bos|>", eos_token="<|eos|>", mask_token="<|mask|>", pad_token="<|eos|>",
        additional_special_tokens=["<|user|>", "<|assistant|>"], **names,
    )  # fmt: skip
    tokenizer.chat_template = CHAT
    return tokenizer


def _without_added(core: Tokenizer, pieces: list[str]) -> Tokenizer:
    """Byte pieces belong to the vocabulary and are not special, as in a converted SentencePiece model."""
    state = json.loads(core.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in set(pieces)]
    state["pre_tokenizer"] = None
    return Tokenizer.from_str(json.dumps(state))
