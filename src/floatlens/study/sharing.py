"""An answer that was given once is not generated again.

Greedy or seeded, an answer depends on the prompt's tokens and the sampler's settings alone, never on its batch. So the
gold passage at the place where it already stood, the usual number of masks, and the question where it usually stands
are answered by Table 1's own answers, and those of traced questions by their traces.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from floatlens.interventions.run import in_force
from floatlens.lens import Generation
from floatlens.tasks.prompt import Prompt
from floatlens.tasks.tracing import generation_of
from floatlens.trace import Trace

Memory = dict[tuple[tuple[int, ...], str], Generation]  # by the prompt's tokens and the sampler's settings


class Shared:
    """Stands for a lens, and remembers what it wrote, unless interventions change what it writes."""

    def __init__(self, lens: Any, memory: Memory) -> None:
        self.lens, self.memory = lens, memory

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lens, name)

    def generate(self, prompts: Sequence[Prompt], **settings: Any) -> list[Generation]:
        if in_force(self.lens):
            return list(self.lens.generate(list(prompts), **settings))
        keys = [key(prompt, settings) for prompt in prompts]
        new = {one: prompt for one, prompt in zip(keys, prompts, strict=True) if one not in self.memory}
        if new:
            self.memory.update(zip(new, self.lens.generate(list(new.values()), **settings), strict=True))
        return [self.memory[one] for one in keys]

    def traces(self, prompts: Sequence[Prompt], *, sample_ids: Sequence[str], **settings: Any) -> list[Trace]:
        """Traces are made anew, since what was seen is not remembered; what was written is."""
        made: list[Trace] = self.lens.traces(prompts, sample_ids=sample_ids, **settings)
        if not in_force(self.lens):
            for prompt, trace in zip(prompts, made, strict=True):
                self.memory[key(prompt, settings)] = generation_of(self.lens, trace)
        return made


def key(prompt: Prompt, settings: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    """What an answer depends on."""
    return tuple(prompt.ids), json.dumps(settings, sort_keys=True, default=str)
