"""A prompt that was asked once is not asked again: its answer is copied.

Greedy or seeded, an answer depends on the prompt's tokens and the sampler's settings alone. So the gold passage at the
place where it already stood, the usual number of masks, and the question where it usually stands are answered by Table
1's own answers, and those of traced questions by their traces. Who asks first is settled when the batches are planned,
not when they are done: so it is the same in a run that was cut off, and however many workers there are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from floatlens.data.prompt import Prompt
from floatlens.evaluation.evaluate import Asking, Key, Origin
from floatlens.evaluation.journal import Journal


class Sharing:
    """Knows which question was the first with its prompt and settings. For runs without interventions."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.first: dict[tuple[str, tuple[int, ...], str], tuple[Origin, object]] = {}

    def begin(self) -> None:
        """Forget questions that should have been asked and were not: the work on them failed."""
        rows = self.journal.found
        self.first = {about: one for about, one in self.first.items() if one[0][1] in rows.get(one[0][0], {})}

    def origins(self, key: Key, asking: Asking, again: bool = False) -> Callable[[Prompt], Origin | None]:
        """What says, of the prompts of a task one by one, which question has or will have the answer; None: ask.

        With `again` every prompt is asked, since more is wanted than its answer.
        """
        task = object()

        def origin(prompt: Prompt) -> Origin | None:
            mine = (key, prompt.sample_id)
            about = (key[0], *depends_on(prompt, asking.generation()))
            first, of = self.first.setdefault(about, (mine, task))
            if again or (first == mine and of is task):
                return None
            return first

        return origin


def depends_on(prompt: Prompt, settings: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    """What an answer of a model depends on."""
    return tuple(prompt.ids), json.dumps(settings, sort_keys=True, default=str)
