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

Memory = dict[tuple[tuple[int, ...], str], Generation]  # by the prompt's tokens and the sampler's settings


class Shared:
    """Stands for a lens, and remembers what it wrote, unless interventions change what it writes.

    With `fresh` it only remembers and always generates, so that every prompt leaves its own trace.
    """

    def __init__(self, lens: Any, memory: Memory, fresh: bool = False) -> None:
        self.lens, self.memory, self.fresh = lens, memory, fresh

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lens, name)

    def generate(self, prompts: Sequence[Prompt], **settings: Any) -> list[Generation]:
        if in_force(getattr(self.lens, "lens", self.lens)):
            return list(self.lens.generate(list(prompts), **settings))
        keys = [(tuple(prompt.ids), json.dumps(settings, sort_keys=True, default=str)) for prompt in prompts]
        if self.fresh:
            self.memory.update(zip(keys, self.lens.generate(list(prompts), **settings), strict=True))
        new = {key: prompt for key, prompt in zip(keys, prompts, strict=True) if key not in self.memory}
        if new:
            self.memory.update(zip(new, self.lens.generate(list(new.values()), **settings), strict=True))
        return [self.memory[key] for key in keys]
