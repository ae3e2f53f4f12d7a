"""How much a page may ask for: enough for every prompt that a person types, too little to bring the machine down."""

from __future__ import annotations

from dataclasses import dataclass

QUESTION = 4_000  # characters
PASSAGES = 64
PASSAGE = 8_000  # characters of one passage
CHARACTERS = 64_000  # of question and passages together
NEW_TOKENS = 512
STEPS = 512
INTERVENTIONS = 8
SPEC = 300  # characters of one intervention


@dataclass(frozen=True)
class Limits:
    """What the server takes upon itself.

    message_bytes      the longest message that is read; one of more than four times that length ends the connection
    waiting            runs that may wait, of all pages together
    waiting_each       runs that one page may have waiting or running
    connections        pages that may be connected
    unsent             messages that a page which does not read may leave unread, before it is let go
    idle_seconds       a page that neither asks nor runs anything for so long is let go; it connects again when it asks
    attention_bytes    memory for attention matrices of all runs that are kept for questions about single tokens
    trace_bytes        memory for the traces of the last runs, which a page may save
    """

    message_bytes: int = 256 * 1024
    waiting: int = 32
    waiting_each: int = 8
    connections: int = 32
    unsent: int = 4_096
    idle_seconds: float = 1_800.0
    attention_bytes: int = 256 << 20
    trace_bytes: int = 256 << 20


def shown() -> dict[str, int]:
    """What the page needs to know, to refuse at once what the server would refuse."""
    return {
        "question": QUESTION,
        "passages": PASSAGES,
        "passage": PASSAGE,
        "characters": CHARACTERS,
        "max_new_tokens": NEW_TOKENS,
        "steps": STEPS,
        "interventions": INTERVENTIONS,
    }
