"""Interventions by hand: eager float32 attention over whole matrices, one row of the batch at a time, as the definitions
read. It shares no code with floatlens but the anchor rules on plain arrays, which have tests of their own.

A hand is called for each layer with the logits (H, Q, T) of one row that the softmax would see, the visible mask (Q, T),
and what the row's positions are, and gives logits and, if it likes, a sink score (H,) and heads to overwrite.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

NAME = "by_hand"


@dataclass
class Seen:
    """One row of one call. `received` are the running sums of attention rows over all real queries, by layer."""

    layer: int
    step: int
    first: int  # column of the row's first real position
    row: int
    logits_HQT: torch.Tensor
    visible_QT: torch.Tensor
    received_T: np.ndarray[Any, Any]  # mean over heads and real queries so far, of real positions only
    causal: bool
    memory: dict[Any, Any]
    sink_H: torch.Tensor | None = None
    zeroed: list[int] = field(default_factory=list)
    hidden: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))  # columns by head

    def hide(self, columns: list[int], heads: list[int] | None = None) -> None:
        """Columns, counted from the first real position, become invisible, together with those hidden before."""
        H, _, T = self.logits_HQT.shape
        offset = self.first - (self.memory["length"] - T)
        for h in range(H) if heads is None else heads:
            self.hidden[h] |= {column + offset for column in columns if 0 <= column + offset < T}

    def masked_logits(self) -> torch.Tensor:
        """The logits without the hidden columns (H, Q, T); a row that would see nothing at all keeps itself."""
        H, Q, T = self.logits_HQT.shape
        found = self.logits_HQT.clone()
        for h in range(H):
            for q in range(Q):
                left = self.visible_QT[q].clone()
                left[sorted(self.hidden[h])] = False
                if not left.any() and self.visible_QT[q].any():
                    left[T - Q + q] = self.visible_QT[q, T - Q + q]
                found[h, q, ~left] = -math.inf
        return found

    def weigh(self, logs: dict[int, float], heads: list[int] | None = None) -> None:
        T = self.logits_HQT.shape[2]
        offset = self.first - (self.memory["length"] - T)
        for h in range(self.logits_HQT.shape[0]) if heads is None else heads:
            for column, value in logs.items():
                if 0 <= column + offset < T:
                    self.logits_HQT[h, :, column + offset] += value


Hand = Callable[[Seen], None]


@contextmanager
def by_hand(model: Any, hand: Hand, pads: list[int], rows: int) -> Iterator[dict[str, Any]]:
    """Run the model's attention by hand; `state["step"]` is set by whoever drives the forward passes."""
    state: dict[str, Any] = {"step": 0, "memory": {}, "sums": {}, "counts": {}, "calls": 0}
    layers = sum(1 for m in model.modules() if hasattr(m, "is_causal") and hasattr(m, "scaling"))

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
        layer = getattr(module, "layer_idx", None)
        layer = state["calls"] % max(layers, 1) if layer is None else layer
        state["calls"] += 1
        R, H, Q, D = query.shape
        groups = H // key.shape[1]
        key, value = key.float().repeat_interleave(groups, 1), value.float().repeat_interleave(groups, 1)
        T = key.shape[2]
        scaling = kwargs.get("scaling") or D**-0.5
        cap = kwargs.get("softcap")
        causal = bool(getattr(module, "is_causal", True)) if kwargs.get("is_causal") is None else kwargs["is_causal"]
        out = torch.zeros(R, Q, H, D)
        first_call = (layer, "length") not in state["memory"] or (Q == T and Q > 1)
        length = Q if first_call else state["memory"][layer, "length"] + Q
        state["memory"][layer, "length"] = length
        for r in range(R):
            b = r % rows
            logits = query[r].float() @ key[r].transpose(1, 2) * scaling
            if cap is not None:
                logits = cap * torch.tanh(logits / cap)
            visible = torch.ones(Q, T, dtype=torch.bool)
            if mask is not None:
                own = mask[r if mask.shape[0] > 1 else 0, 0]
                visible &= own if own.dtype == torch.bool else own > -1e30
            elif causal and Q > 1:
                visible &= torch.ones(Q, T, dtype=torch.bool).tril()
            logits = logits.masked_fill(~visible, -math.inf)
            plain = logits.softmax(-1).nan_to_num(0.0)
            if first_call:
                state["sums"][layer, r], state["counts"][layer, r] = torch.zeros(length), 0
            queries = torch.arange(length - Q, length)
            real = queries >= pads[b]
            sums = torch.zeros(length)
            before = state["sums"][layer, r]
            sums[: len(before)] += before
            sums[length - T :] += plain[:, real].mean(0).sum(0)
            state["sums"][layer, r] = sums
            state["counts"][layer, r] += int(real.sum())
            received = (sums / state["counts"][layer, r])[pads[b] :].double().numpy()
            memory = state["memory"].setdefault((layer, r), {})
            memory["length"], memory["index"] = length, r
            seen = Seen(layer, state["step"], pads[b], b, logits.clone(), visible, received, causal, memory)
            hand(seen)
            logits = seen.masked_logits()
            if seen.sink_H is not None:
                sink = seen.sink_H[:, None, None].expand(H, Q, 1)
                weights = torch.cat([logits, sink], -1).softmax(-1)[..., :-1]
            else:
                weights = logits.softmax(-1)
            made = weights.nan_to_num(0.0) @ value[r]
            for head in seen.zeroed:
                made[head] = 0.0
            out[r] = made.transpose(0, 1)
        return out.to(query.dtype), None

    base = model.config._attn_implementation
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS[base])
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    for config in configs.values():
        config._attn_implementation_internal = NAME
    # Some models look their function up in a table of their own module.
    assert "transformers" in sys.modules
    try:
        yield state
    finally:
        for config in configs.values():
            config._attn_implementation_internal = base
