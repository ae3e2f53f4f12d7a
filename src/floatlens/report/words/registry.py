"""What the report says of each finding. A new finding is a file beside this one and a name in NAMED."""

from __future__ import annotations

from importlib import import_module

from floatlens.report.section import Words

NAMED = ("drift", "absorption", "geometry", "tokens", "heads", "flow", "knowledge", "stress", "causes")


def words(name: str) -> Words | None:
    """The words for a finding; None for one that has none yet, which the report then shows by its figures and claims."""
    if name not in NAMED:
        return None
    found: Words = import_module(f"floatlens.report.words.{name}").WORDS
    return found
