"""Limits on requests: enough for any prompt that a person types, too little to exhaust the machine."""

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
    """Limits on the work of the server.

    message_bytes      longest message that is parsed; one of more than four times that length closes the connection
    waiting            queued runs, over all pages
    waiting_each       queued or running runs per page
    connections        connected pages
    unsent             messages queued for a page that does not read them, before it is disconnected
    idle_seconds       seconds without requests or runs before a page is disconnected; it reconnects when needed
    attention_bytes    memory for the attention matrices that answer requests about single tokens
    trace_bytes        memory for the traces of recent runs, which a page may save
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
    """Return the limits that the page checks before it sends a request."""
    return {
        "question": QUESTION,
        "passages": PASSAGES,
        "passage": PASSAGE,
        "characters": CHARACTERS,
        "max_new_tokens": NEW_TOKENS,
        "steps": STEPS,
        "interventions": INTERVENTIONS,
    }
