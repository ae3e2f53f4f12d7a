"""An answer that was given once is not generated again.

Greedy or seeded, an answer depends on the prompt's tokens and the sampler's settings alone, never on its batch. So the
gold passage at the place where it already stood, the usual number of masks, and the question where it usually stands
are answered by Table 1's own answers, and those of traced questions by their traces.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from floatlens.lens import Generation
from floatlens.tasks.prompt import Prompt

Memory = dict[tuple[Any, ...], Generation]


class Shared:
    """Stands for a lens, and remembers what it wrote. With `fresh` it only remembers, and always generates."""

    def __init__(self, lens: Any, memory: Memory, fresh: bool = False) -> None:
        self.lens, self.memory, self.fresh = lens, memory, fresh
        self.changed: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lens, name)

    def generate(self, prompts: Sequence[Prompt], **settings: Any) -> list[Generation]:
        keys = [self._key(prompt, settings) for prompt in prompts]
        known = {} if self.fresh else self.memory
        new = {key: prompt for key, prompt in zip(keys, prompts, strict=True) if key not in known}
        if self.fresh:  # every prompt leaves its own trace, also one that is asked twice
            written = dict(zip(keys, self.lens.generate(list(prompts), **settings), strict=True))
        else:
            written = dict(zip(new, self.lens.generate(list(new.values()), **settings), strict=True)) if new else {}
        self.memory.update(written)
        return [self.memory[key] for key in keys]

    @contextmanager
    def intervene(self, *interventions: Any) -> Iterator[Any]:
        """The lens with interventions: what it writes then is remembered as theirs."""
        before, self.changed = self.changed, (*self.changed, *map(str, interventions))
        try:
            with self.lens.intervene(*interventions) as entered:
                yield entered
        finally:
            self.changed = before

    def _key(self, prompt: Prompt, settings: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(prompt.ids), json.dumps(settings, sort_keys=True, default=str), self.changed
