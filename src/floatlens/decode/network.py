"""The forward pass that samplers call: token ids in, logits of the last positions out."""

from __future__ import annotations

import inspect
from typing import Any, Literal

import torch


class Network:
    """A loaded model as a function of token ids.

    `positions` says how a left-padded row is counted: "plain" counts the pads (LLaDA), "real" starts at the first real
    token. Without padding nothing but the ids is passed, so that the model runs as its own code would run it.
    """

    def __init__(self, model: Any, positions: Literal["plain", "real"] = "real") -> None:
        self.model = model
        self.positions = positions
        self._accepts = set(inspect.signature(model.forward).parameters)

    @property
    def device(self) -> torch.device:
        return self.model.get_input_embeddings().weight.device

    @torch.no_grad()
    def logits(self, ids_BT: torch.Tensor, real_BT: torch.Tensor | None, keep: int) -> torch.Tensor:
        """Logits (B, keep, V) of the last `keep` positions, from a pass over the whole sequence without a cache."""
        options = self._options(ids_BT.shape[1], real_BT, keep)
        if "use_cache" in self._accepts:
            options["use_cache"] = False
        return self.model(input_ids=ids_BT, **options).logits[:, -keep:]

    @torch.no_grad()
    def extend(self, ids_BQ: torch.Tensor, real_BT: torch.Tensor | None, cache: Any) -> tuple[torch.Tensor, Any]:
        """Logits (B, 1, V) after new tokens, and the cache grown by them."""
        options = self._options(ids_BQ.shape[1], real_BT, 1)
        out = self.model(input_ids=ids_BQ, past_key_values=cache, use_cache=True, **options)
        return out.logits[:, -1:], out.past_key_values

    def _options(self, length: int, real_BT: torch.Tensor | None, keep: int) -> dict[str, Any]:
        options: dict[str, Any] = {"logits_to_keep": keep} if "logits_to_keep" in self._accepts else {}
        if real_BT is not None and not bool(real_BT.all()):
            options["attention_mask"] = real_BT.long()
            if self.positions == "real" and "position_ids" in self._accepts and not self._counts_for_itself():
                options["position_ids"] = (real_BT.long().cumsum(-1) - 1).masked_fill(~real_BT, 1)[:, -length:]
        return options

    def _counts_for_itself(self) -> bool:
        """RoBERTa-like embeddings number the positions from the padding token on their own."""
        return any(hasattr(module, "create_position_ids_from_input_ids") for module in self.model.modules())
