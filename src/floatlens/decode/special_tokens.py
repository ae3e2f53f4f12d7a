"""The special tokens that samplers use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of a model's special tokens.

    mask_id   the token that means "not yet written"; None for an autoregressive model
    end_ids   tokens that end an answer, the config's own first
    pad_id    the token that pads shorter prompts
    """

    mask_id: int | None = None
    end_ids: tuple[int, ...] = ()
    pad_id: int = 0

    @property
    def mask(self) -> int:
        """The mask token of a model that must have one."""
        assert self.mask_id is not None, "a diffusion sampler was given no mask token"
        return self.mask_id

    @property
    def eos_id(self) -> int | None:
        """The end-of-text token."""
        return self.end_ids[0] if self.end_ids else None

    @property
    def eot_id(self) -> int | None:
        """The end-of-turn token, if it differs from the end-of-text token."""
        return self.end_ids[1] if len(self.end_ids) > 1 else None
