"""The prompt of a question with its passages.

It is the same text as FloatLens's default prompt (`floatlens.data.prompt`), built without a tokenizer so that training can
make thousands per second; a test compares the two.
"""

from collections.abc import Sequence

from floatlens.data.sample import Passage

BOS, EOS, MASK, USER, ASSISTANT = "<|bos|>", "<|eos|>", "<|mask|>", "<|user|>", "<|assistant|>"
WITH_PASSAGES = "Answer the question from the passages. Reply with the answer only."
CLOSED_BOOK = "Answer the question. Reply with the answer only."
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>\n{{ message['content'] }}{{ eos_token }}"
    "{% else %}<|user|>\n{{ message['content'] }}\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def body(question: str, passages: Sequence[Passage], order: str = "last") -> str:
    """The user's message for a question."""
    question = f"Question: {question}"
    if not passages:
        return f"{CLOSED_BOOK}\n\n{question}"
    shown = "\n".join(f"[{number}] {passage.line}" for number, passage in enumerate(passages, 1))
    parts = {"last": [shown, question], "first": [question, shown], "both": [question, shown, question]}
    return "\n\n".join([WITH_PASSAGES, *parts[order]])


def chat(message: str, first: bool = True) -> str:
    """The message in the chat template, up to where the answer starts.

    >>> chat("Question: Who?")
    '<|bos|><|user|>\\nQuestion: Who?\\n<|assistant|>\\n'
    """
    return f"{BOS if first else ''}{USER}\n{message}\n{ASSISTANT}\n"
