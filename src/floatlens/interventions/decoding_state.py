"""The state of a run that interventions can read: positions, regions, token kinds and the current step.

Positions count from each row's first real token; tensors here count the padding, so row b's position j is column
`pads[b] + j`. Shapes: B rows, N positions of the whole run, T positions so far.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from floatlens.attention.prompt_batch import PromptBatch
from floatlens.data.token_kinds import GROUPS as GROUP_OF
from floatlens.data.token_kinds import classify
from floatlens.errors import FloatLensError
from floatlens.models.family import Family

GOLD, DOCS, PROMPT, TEMPLATE = "gold", "docs", "prompt", "template"
GROUPS = (GOLD, DOCS, PROMPT, TEMPLATE)  # names for several regions, or for positions in no region


@dataclass
class DecodingState:
    """One run of a batch. `strings` converts token ids to the tokenizer's pieces; `notes` is kept from step to step."""

    batch: PromptBatch
    new_tokens: int
    family: Family
    strings: Callable[[Sequence[int]], list[str]]
    tokens_BT: torch.Tensor
    step: int = 0
    notes: dict[Any, Any] = field(default_factory=dict)

    @property
    def B(self) -> int:
        return len(self.batch.prompts)

    @property
    def P(self) -> int:
        return self.batch.ids_BP.shape[1]

    @property
    def N(self) -> int:
        return self.P + self.new_tokens

    @property
    def length(self) -> int:
        """Number of positions so far, including padding."""
        return self.tokens_BT.shape[1]

    @property
    def pads(self) -> list[int]:
        return self.batch.pads

    @property
    def shortest(self) -> int:
        """Number of positions of the shortest row at the first step."""
        return min(len(p.ids) for p in self.batch.prompts) + (0 if self.family.cached else self.new_tokens)

    def real_BN(self) -> np.ndarray[Any, Any]:
        """True for positions that are not padding."""
        return np.arange(self.N)[None] >= np.array(self.pads)[:, None]

    def seed(self, row: int, *parts: int) -> np.random.Generator:
        """A random generator that depends on the prompt, not on its row in the batch."""
        ids = np.asarray(self.batch.prompts[row].ids, dtype=np.int64)
        return np.random.default_rng([zlib.crc32(ids.tobytes()), *parts])

    def positions_BN(self, choice: str) -> np.ndarray[Any, Any]:
        """Columns of chosen positions; raise an error if a row does not have one of them."""
        from floatlens.interventions.selection import select_numbers

        found = np.zeros((self.B, self.N), bool)
        for row, (prompt, pad) in enumerate(zip(self.batch.prompts, self.pads, strict=True)):
            found[row, [pad + j for j in select_numbers(choice, len(prompt.ids) + self.new_tokens, "position")]] = True
        return found

    def regions_BN(self, names: Sequence[str], everywhere: bool = True) -> np.ndarray[Any, Any]:
        """Columns of named regions. `everywhere`: each row must have each of them; otherwise at least one row."""
        found = np.zeros((self.B, self.N), bool)
        for name in names:
            missing: list[int] = []
            for row, pad in enumerate(self.pads):
                spans = self._spans(row, name)
                for start, end in spans:
                    found[row, pad + start : pad + end] = True
                if not spans:
                    missing.append(row)
            if missing and (everywhere or len(missing) == self.B):
                there = [region.name for region in self.batch.regions(missing[0], self.new_tokens)]
                raise FloatLensError(
                    f"region {name!r} is not in the prompt; its regions are {', '.join([*there, *GROUPS])}"
                )
        return found

    def _spans(self, row: int, name: str) -> list[tuple[int, int]]:
        regions = self.batch.regions(row, self.new_tokens)
        if name == PROMPT:
            return [(0, len(self.batch.prompts[row].ids))]
        if name == TEMPLATE:
            return [(j, j + 1) for j, inside in enumerate(self._template(row)) if inside]
        if name == GOLD:
            wanted = set(self.batch.gold(row))
        elif name == DOCS:
            wanted = {r.name for r in regions if r.name.startswith("doc") and r.name[3:].isdecimal()}
        else:
            wanted = {name}
        return [(r.start, r.end) for r in regions if r.name in wanted and r.end > r.start]

    def _template(self, row: int) -> list[bool]:
        """Prompt positions that belong to no region; none if the prompt has no regions."""
        prompt = self.batch.prompts[row]
        outside = [bool(prompt.regions)] * len(prompt.ids)
        for region in prompt.regions:
            outside[region.start : region.end] = [False] * (region.end - region.start)
        return outside[: len(prompt.ids)]  # a given answer may have its own regions

    def kinds_BT(self, kinds: Sequence[str]) -> np.ndarray[Any, Any]:
        """Columns whose current token is of one of these kinds, or of a group of kinds (structural, lexical)."""
        found = np.zeros((self.B, self.length), bool)
        for row, (prompt, pad) in enumerate(zip(self.batch.prompts, self.pads, strict=True)):
            before = self.notes.setdefault(("kinds", row), None)
            if before is None:  # the prompt's kinds never change
                before = classify(self.strings(prompt.ids), self._template(row))
                self.notes["kinds", row] = before
            written = self.tokens_BT[row, self.P :].tolist()
            now = [*before, *(classify(self.strings(written)) if written else [])]
            found[row, pad:] = [kind in kinds or GROUP_OF.get(kind) in kinds for kind in now]
        return found
