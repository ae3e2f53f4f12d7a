"""One attention call: queries, keys, values and what may see what, as the model computed them.

Shapes: B batch, H heads, K key/value heads, Q queries, T keys, D head dim. The queries are the last Q positions of the
sequence; the keys are its last T (all of it, but for a sliding-window cache). GQA: query head h uses key head h // (H/K).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

from floatlens.observe.workspace import Workspace


@dataclass(frozen=True)
class Layout:
    """What is known of the batch's positions before decoding starts. N positions, pads included; R regions.

    real_BN     True for positions that are not padding, None when nothing is padded
    region_BN   region index of each position; 0 is the template's own tokens, -1 padding
    region_names  per row, the names of regions 1..; index 0 is "other"
    gold_BN     True inside the gold evidence
    writes_BN   True for rows of the query matrix whose logits write the answer
    """

    real_BN: torch.Tensor | None
    region_BN: torch.Tensor
    region_names: list[list[str]]
    gold_BN: torch.Tensor
    writes_BN: torch.Tensor

    @cached_property
    def has_gold(self) -> bool:
        """Whether any row has gold evidence."""
        return bool(self.gold_BN.any())

    @cached_property
    def member_BRN(self) -> torch.Tensor:
        """1.0 where a position belongs to a region."""
        count = max(len(names) for names in self.region_names)
        index = torch.arange(count, device=self.region_BN.device)
        return (self.region_BN[:, None, :] == index[None, :, None]).float()


@dataclass(frozen=True)
class Call:
    """The inputs of one attention call, and the positions that they stand for.

    mask       None, or boolean (True = may see), or additive; broadcasts to (B, H, Q, T)
    causal     no mask was passed because the kernel applies the causal one itself
    softcap    scores become softcap · tanh(scores / softcap)
    sinks_H    a learned score that takes part in the softmax without being a position
    """

    layer: int
    q_BHQD: torch.Tensor
    k_BKTD: torch.Tensor
    v_BKTD: torch.Tensor
    layout: Layout
    length: int
    scaling: float
    mask: torch.Tensor | None = None
    causal: bool = False
    softcap: float | None = None
    bias: torch.Tensor | None = None
    sinks_H: torch.Tensor | None = None

    @property
    def B(self) -> int:
        return self.q_BHQD.shape[0]

    @property
    def H(self) -> int:
        return self.q_BHQD.shape[1]

    @property
    def K(self) -> int:
        return self.k_BKTD.shape[1]

    @property
    def Q(self) -> int:
        return self.q_BHQD.shape[2]

    @property
    def T(self) -> int:
        return self.k_BKTD.shape[2]

    @property
    def fresh(self) -> bool:
        """True when the queries are the whole sequence so far; False when they extend a cache."""
        return self.length == self.Q

    @property
    def first_query(self) -> int:
        """Position of query 0."""
        return self.length - self.Q

    @property
    def first_key(self) -> int:
        """Position of key 0."""
        return self.length - self.T

    @cached_property
    def real_BQ(self) -> torch.Tensor | None:
        """Queries that are not padding; None when all are real."""
        real = self.layout.real_BN
        return None if real is None else real[:, self.first_query : self.length]

    @cached_property
    def queries_B(self) -> torch.Tensor:
        """Number of real queries per row."""
        if self.real_BQ is None:
            return torch.full((self.B,), float(self.Q), device=self.q_BHQD.device)
        return self.real_BQ.sum(1).float()

    @cached_property
    def member_BRQ(self) -> torch.Tensor:
        """Region membership of the queries; a padded query belongs to none."""
        return self.layout.member_BRN[:, :, self.first_query : self.length]

    @cached_property
    def keys(self) -> torch.Tensor:
        """Keys in float32, transposed for products: (B·K, D, T)."""
        return self.k.flatten(0, 1).transpose(1, 2)

    @cached_property
    def q(self) -> torch.Tensor:
        """Queries in float32 (B, H, Q, D)."""
        return self.q_BHQD.float()

    @cached_property
    def scaled(self) -> torch.Tensor:
        """Queries in float32, times the scaling (B, H, Q, D)."""
        return self.q * self.scaling

    @cached_property
    def q_norm(self) -> torch.Tensor:
        """Norms of the queries (B, H, Q, 1)."""
        return self.q.norm(dim=-1, keepdim=True)

    @cached_property
    def k_norm(self) -> torch.Tensor:
        """Norms of the keys (B, K, T, 1)."""
        return self.k.norm(dim=-1, keepdim=True)

    @cached_property
    def k(self) -> torch.Tensor:
        """Keys in float32 (B, K, T, D)."""
        return self.k_BKTD.float()

    def once(self, quantity: Callable[[Call], torch.Tensor]) -> torch.Tensor:
        """A quantity of the call that several statistics need, computed for the first of them."""
        if quantity.__name__ not in self._shared:
            self._shared[quantity.__name__] = quantity(self)
        return self._shared[quantity.__name__]

    @cached_property
    def _shared(self) -> dict[str, torch.Tensor]:
        return {}

    @property
    def pooled_BHRT(self) -> torch.Tensor:
        """Weights summed over the queries of each region, once all tiles have passed; over regions, the column sum."""
        return self._shared["pooled"]

    def pool(self, weights_BHQT: torch.Tensor, start: int, end: int) -> None:
        """Add the weights of queries start..end to `pooled_BHRT`, inside the matrix product."""
        B, H, _, T = weights_BHQT.shape
        if "pooled" not in self._shared:
            self._shared["pooled"] = weights_BHQT.new_zeros(B, H, self.member_BRQ.shape[1], self.T)
        total_NRT = self._shared["pooled"].flatten(0, 1)[..., :T]
        member_NRQ = self.member_BRQ[:, None, :, start:end].expand(-1, H, -1, -1).flatten(0, 1)
        total_NRT.baddbmm_(member_NRQ, weights_BHQT.flatten(0, 1))

    def scores(self, start: int, end: int, keys: int | None = None, space: Workspace | None = None) -> torch.Tensor:
        """Scores (B, H, end-start, keys) that the softmax sees, for queries start..end and the first `keys` keys.

        With a workspace they are written there, and last until it is used again.
        """
        keys = self.T if keys is None else keys
        groups, count = self.H // self.K, end - start
        rows = self.scaled[:, :, start:end].reshape(self.B * self.K, groups * count, -1)
        product = self.keys[:, :, :keys]
        if space is None:
            scores = torch.bmm(rows, product)
        else:
            scores = space.take("scores", (self.B * self.K, groups * count, keys), rows.device)
            torch.bmm(rows, product, out=scores)
        scores = scores.view(self.B, self.H, count, keys)
        if self.softcap is not None:
            scores = scores.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.bias is not None:
            scores += self.bias[..., start:end, :keys].float()
        if self.mask is not None:
            mask = self.mask[..., start:end, :keys]
            scores = scores.masked_fill_(~mask, -torch.inf) if mask.dtype == torch.bool else scores.add_(mask.float())
        if self.causal:
            scores = scores.masked_fill_(self.future(start, end, keys), -torch.inf)
        return scores

    def future(self, start: int, end: int, keys: int) -> torch.Tensor:
        """True where a key comes after the query (end-start, keys)."""
        device = self.q_BHQD.device
        return torch.arange(keys, device=device)[None, :] > torch.arange(start, end, device=device)[:, None]

    def may_see(self, start: int, end: int) -> torch.Tensor | None:
        """True where a query may see a key, broadcasting to (B, H, end-start, T); None when every one may."""
        visible: torch.Tensor | None = None
        if self.mask is not None:
            mask = self.mask[..., start:end, :]
            visible = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
        if self.causal:
            past = ~self.future(start, end, self.T)
            visible = past if visible is None else visible & past
        return visible

    @property
    def same_for_all_queries(self) -> bool:
        """True when every query may see the same keys: no mask, or one that is only padding."""
        return not self.causal and (self.mask is None or self.mask.shape[-2] == 1 or self.mask.stride(-2) == 0)
