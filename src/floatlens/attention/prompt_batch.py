"""Prompts of different lengths as one left-padded batch, with metadata of its positions.

Every `Lens` makes one per call: samplers read its ids, sessions and the recorder its layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from floatlens.attention.call import PositionLayout
from floatlens.data.prompt import Prompt, Region
from floatlens.data.sequences import Script
from floatlens.errors import FloatLensError

OTHER = "other"  # positions of the chat template that belong to no region
ANSWER = "answer"


def scripts_of(prompts: Sequence[Prompt]) -> list[Script] | None:
    """The texts to replay, one per prompt; None if the model writes the answers."""
    scripts = [prompt.script for prompt in prompts if prompt.script is not None]
    if scripts and len(scripts) < len(prompts):
        raise FloatLensError("some prompts have a text to replay and some do not; run them in separate batches")
    return scripts or None


def tails_of(prompts: Sequence[Prompt]) -> list[tuple[int, ...]] | None:
    """The tokens from the first mask on, for prompts that are texts with masks; None for other prompts."""
    tails = [prompt.tail for prompt in prompts if prompt.tail is not None]
    if tails and (len(tails) < len(prompts) or any(len(tail) != len(tails[0]) for tail in tails)):
        raise FloatLensError(
            "texts with masks that share a batch must have the same number of tokens from the first mask on; "
            "fill them one by one"
        )
    return tails or None


@dataclass(frozen=True)
class PromptBatch:
    """B prompts, padded on the left. `pads` is the number of padding tokens per row.

    P is the column where all prompts end, or where the last one ends if rows are padded by whole blocks.
    """

    prompts: list[Prompt]
    ids_BP: torch.Tensor
    real_BP: torch.Tensor | None
    pads: list[int]

    @classmethod
    def of(
        cls,
        prompts: Sequence[Prompt],
        pad_id: int,
        device: torch.device,
        *,
        block: int | None = None,
        filler: int | None = None,
    ) -> PromptBatch:
        """Make one batch by padding prompts.

        With `block` each row is padded by whole blocks of that length, so that the blocks of all rows, counted from their
        first tokens, begin at the same columns. Prompts then end at different columns, and `filler` follows short ones.
        """
        if not prompts:
            raise FloatLensError("there are no prompts to run; pass at least one")
        if any(not prompt.ids and prompt.tail is None for prompt in prompts):
            raise FloatLensError("a prompt has no tokens; pass some text or token ids")
        lengths = [len(prompt.ids) for prompt in prompts]
        whole = [length if block is None else length // block * block for length in lengths]
        pads = [max(whole) - length for length in whole]
        end = max(pad + length for pad, length in zip(pads, lengths, strict=True))
        rows = []
        for pad, prompt in zip(pads, prompts, strict=True):
            row = [pad_id] * pad + list(prompt.ids)
            rows.append(row + [pad_id if filler is None else filler] * (end - len(row)))
        ids = torch.tensor(rows, dtype=torch.long, device=device)
        real = None
        if any(pads):
            real = torch.arange(end, device=device)[None] >= torch.tensor(pads, device=device)[:, None]
        return cls(list(prompts), ids, real, pads)

    @property
    def ends(self) -> list[int]:
        """The column at which each prompt ends."""
        return [pad + len(prompt.ids) for pad, prompt in zip(self.pads, self.prompts, strict=True)]

    @property
    def scripts(self) -> list[Script] | None:
        """The texts to replay, one per prompt; None if the model writes the answers."""
        return scripts_of(self.prompts)

    def tail_BN(self) -> torch.Tensor | None:
        """The tokens after the prompts of texts with masks; None if the model writes after its prompts."""
        tails = tails_of(self.prompts)
        return None if tails is None else torch.tensor(tails, dtype=torch.long, device=self.ids_BP.device)

    def regions(self, row: int, new_tokens: int) -> list[Region]:
        """The regions of a row's prompt, and the answer of `new_tokens` positions after it.

        A prompt with regions beyond its own tokens names those of a given answer, or of a text with masks, itself.
        """
        prompt = self.prompts[row]
        if any(region.end > len(prompt.ids) for region in prompt.regions):
            return list(prompt.regions)
        return [*prompt.regions, Region(ANSWER, len(prompt.ids), len(prompt.ids) + new_tokens)]

    def gold(self, row: int) -> list[str]:
        """Names of the gold documents' regions."""
        present = {region.name for region in self.prompts[row].regions}
        return [name for index in self.prompts[row].gold if (name := f"doc{index + 1}") in present]

    def layout(self, new_tokens: int, shifted: bool, mask_id: int | None = None) -> PositionLayout:
        """The metadata of the positions that observation needs, for N = P + new_tokens."""
        B, P = self.ids_BP.shape
        device = self.ids_BP.device
        region = torch.zeros(B, P + new_tokens, dtype=torch.long)
        gold = torch.zeros(B, P + new_tokens, dtype=torch.bool)
        names = []
        for row, pad in enumerate(self.pads):
            regions = self.regions(row, P + new_tokens - self.ends[row])
            evidence = self.gold(row)
            region[row, :pad] = -1
            named = [OTHER, *dict.fromkeys(part.name for part in regions)]  # spans of one name are one region
            for part in regions:
                region[row, pad + part.start : pad + part.end] = named.index(part.name)
                gold[row, pad + part.start : pad + part.end] |= part.name in evidence
            names.append(named)
        writes = torch.zeros(B, P + new_tokens, dtype=torch.bool)
        for row, end in enumerate(self.ends):
            writes[row, max(0, end - shifted) : P + new_tokens - shifted] = True
        real = None
        if self.real_BP is not None:
            real = torch.cat([self.real_BP, self.real_BP.new_ones((B, new_tokens))], 1)
        return PositionLayout(real, region.to(device), names, gold.to(device), writes.to(device), mask_id)
