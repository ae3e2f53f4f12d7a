"""Prose: short stories in ordinary English, written for FloatLens, which no model has been trained on.

Each is a text to continue: its first 50 words, with the rest as the answer. Claims about anchors are tested on it, because
real punctuation matters for where attention goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from floatlens.data.read import NamedData, register_reader
from floatlens.data.sample import Sample

GIVEN = 50  # words of a story that the model reads


@cache
def stories() -> list[str]:
    """The stories, one paragraph each."""
    return files("floatlens.data").joinpath("prose.txt").read_text(encoding="utf-8").strip().split("\n\n")


def samples(name: str, split: str | None = None, limit: int | None = None, **choices: Any) -> Iterator[Sample]:
    """The stories as texts to continue; they have no passages and one split."""
    for number, story in enumerate(stories()[:limit], 1):
        words = story.split(" ")
        given, rest = " ".join(words[:GIVEN]), " " + " ".join(words[GIVEN:])
        yield Sample(f"prose-{number}", given, [rest], continuation=True)


register_reader(NamedData("prose", ["prose"], samples))
