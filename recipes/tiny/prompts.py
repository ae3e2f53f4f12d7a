"""The prompt of a question with its passages.

It is the same text as FloatLens's default prompt (`floatlens.data.prompt`), built without a tokenizer so that training can
make thousands per second; a test compares the two.
"""

from floatlens.data.world.episodes import Episode

BOS, EOS, MASK, USER, ASSISTANT = "<|bos|>", "<|eos|>", "<|mask|>", "<|user|>", "<|assistant|>"
WITH_PASSAGES = "Answer the question from the passages. Reply with the answer only."
CLOSED_BOOK = "Answer the question. Reply with the answer only."
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>\n{{ message['content'] }}{{ eos_token }}"
    "{% else %}<|user|>\n{{ message['content'] }}\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def body(episode: Episode) -> str:
    """The user's message for the first question of an episode."""
    question = f"Question: {episode.turns[0].question}"
    if not episode.passages:
        return f"{CLOSED_BOOK}\n\n{question}"
    lines = []
    for number, passage in enumerate(episode.passages, 1):
        title = f"{passage.title}: " if passage.title else ""
        lines.append(f"[{number}] {title}{passage.text}")
    passages = "\n".join(lines)
    parts = {"last": [passages, question], "first": [question, passages], "both": [question, passages, question]}
    return "\n\n".join([WITH_PASSAGES, *parts[episode.order]])


def chat(message: str, first: bool = True) -> str:
    """The message in the chat template, up to where the answer starts.

    >>> chat("Question: Who?")
    '<|bos|><|user|>\\nQuestion: Who?\\n<|assistant|>\\n'
    """
    return f"{BOS if first else ''}{USER}\n{message}\n{ASSISTANT}\n"
