"""One attention call: its inputs as a model passes them, the metadata of its positions, and both together for statistics.

Shapes: B batch, H heads, K key/value heads, Q queries, T keys, D head dim. The keys are the last T positions of the
sequence so far (all positions, except with a sliding-window cache). GQA: query head h uses key head h // (H/K). Layers
with calls of the same kind are processed together: B then counts the rows of all of them, one layer after another, and
they share the mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import torch

# The parts of a model that are observed separately from the self-attention of the sequence that is being written.
ENCODER, CROSS = "encoder", "cross"
LOG2E = math.log2(math.e)


@dataclass(frozen=True)
class Inputs:
    """The inputs of one attention call, as the model passes them.

    mask       None, boolean (True = may see) or additive; broadcasts to (B of one layer, H, Q, T)
    causal     no mask was passed because the kernel applies the causal one itself
    softcap    scores become softcap · tanh(scores / softcap)
    sinks_H    learned scores that take part in the softmax without a position
    own_rows   the weights of queries start..end, of a layer that does not take a softmax of q·k
    lse_BHQ    log of the sum of exp(score) over the keys, if the GPU's kernel returned it
    kind       layers of different kind may have different masks
    """

    q_BHQD: torch.Tensor
    k_BKTD: torch.Tensor
    v_BKTD: torch.Tensor
    scaling: float | None
    mask: torch.Tensor | None
    causal: bool
    softcap: float | None = None
    bias: torch.Tensor | None = None
    sinks_H: torch.Tensor | None = None
    own_rows: Callable[[int, int], torch.Tensor] | None = None
    lse_BHQ: torch.Tensor | None = None
    kind: Hashable = None

    B = property(lambda self: self.q_BHQD.shape[0])
    H = property(lambda self: self.q_BHQD.shape[1])
    K = property(lambda self: self.k_BKTD.shape[1])
    Q = property(lambda self: self.q_BHQD.shape[2])
    T = property(lambda self: self.k_BKTD.shape[2])
    device = property(lambda self: self.q_BHQD.device)

    @property
    def is_plain(self) -> bool:
        """Whether the weights are a softmax of scaled and masked scores, and of nothing else."""
        return self.softcap is None and self.bias is None and self.sinks_H is None and self.own_rows is None

    def first_rows(self, rows: int) -> Self:
        """The same call for the first rows of the batch."""
        q, k, v = self.q_BHQD[:rows], self.k_BKTD[:rows], self.v_BKTD[:rows]
        extras = (self.mask, self.bias, self.lse_BHQ)
        mask, bias, lse = (x if x is None or x.shape[0] == 1 else x[:rows] for x in extras)
        return replace(self, q_BHQD=q, k_BKTD=k, v_BKTD=v, mask=mask, bias=bias, lse_BHQ=lse)

    def first_keys(self, keys: int) -> Self:
        """The same call without the keys after the first `keys`, which none of its queries sees."""
        mask, bias = (None if x is None else x[..., :keys] for x in (self.mask, self.bias))
        return replace(self, k_BKTD=self.k_BKTD[:, :, :keys], v_BKTD=self.v_BKTD[:, :, :keys], mask=mask, bias=bias)

    @property
    def scale(self) -> float:
        """The factor of the scores."""
        return self.q_BHQD.shape[-1] ** -0.5 if self.scaling is None else self.scaling

    @cached_property
    def q(self) -> torch.Tensor:
        """Queries in float32 (B, H, Q, D)."""
        return self.q_BHQD.float()

    @cached_property
    def k(self) -> torch.Tensor:
        """Keys in float32 (B, K, T, D)."""
        return self.k_BKTD.float()

    def scores(self, start: int, end: int) -> torch.Tensor:
        """Scores (B, H, end-start, T) that the softmax sees, for queries start..end."""
        B, H, K, T, count = self.B, self.H, self.K, self.T, end - start
        q_BHQD = self.q if count == self.Q else self.q[:, :, start:end]
        rows = q_BHQD.reshape(B * K, H // K * count, -1) * self.scale
        scores = torch.bmm(rows, self.k.flatten(0, 1).transpose(1, 2)).view(B, H, count, T)
        if self.softcap is not None:
            scores = scores.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.bias is not None:
            scores += query_rows(self.bias, start, end).float()
        if self.mask is not None:
            mask = query_rows(self.mask, start, end)
            scores = scores.masked_fill_(~mask, -torch.inf) if mask.dtype == torch.bool else scores.add_(mask.float())
        if self.causal:
            scores = scores.masked_fill_(self.future(start, end), -torch.inf)
        return scores

    def softmax(self, start: int, end: int) -> torch.Tensor:
        """Attention weights (B, H, end-start, T) of queries start..end; the share of a learned sink is left out."""
        scores_BHQT = self.scores(start, end)
        if self.sinks_H is None:
            return scores_BHQT.softmax(-1)
        sinks = self.sinks_H.float().view(1, -1, 1, 1).expand(*scores_BHQT.shape[:3], 1)
        return torch.cat([scores_BHQT, sinks], -1).softmax(-1)[..., :-1]

    def future(self, start: int, end: int) -> torch.Tensor:
        """True where a key comes after the query (end-start, T)."""
        return torch.arange(self.T, device=self.device)[None] > torch.arange(start, end, device=self.device)[:, None]


@dataclass(frozen=True)
class PositionLayout:
    """Metadata of the batch's positions, known before decoding starts. N positions including padding, R regions.

    real_BN     True for positions that are not padding, None when nothing is padded
    region_BN   region index of each position; 0 is the template's own tokens, -1 padding
    region_names  per row, the names of regions 1..; index 0 is "other"
    gold_BN     True inside the gold evidence
    writes_BN   True for queries whose logits write the answer
    mask_id     the mask token; None for a model without one
    """

    real_BN: torch.Tensor | None
    region_BN: torch.Tensor
    region_names: list[list[str]]
    gold_BN: torch.Tensor
    writes_BN: torch.Tensor
    mask_id: int | None = None
    _of_layers: dict[int, PositionLayout] = field(default_factory=dict, repr=False)
    _of_heads: dict[Hashable, torch.Tensor] = field(default_factory=dict, repr=False)
    _spans: dict[Hashable, list[tuple[int, int, int]]] = field(default_factory=dict, repr=False)

    @classmethod
    def without_regions(
        cls, rows: int, length: int, device: torch.device, real_BT: torch.Tensor | None = None
    ) -> PositionLayout:
        """The layout of a model that is observed without a prompt; `real_BT` is False for padding."""
        none = torch.zeros(rows, length, dtype=torch.bool, device=device)
        region = torch.zeros(rows, length, dtype=torch.long, device=device)
        if real_BT is not None:
            real_BT = real_BT.expand(rows, -1)
            real_BT = torch.nn.functional.pad(real_BT, (0, length - real_BT.shape[1]), value=True)
            region = region.masked_fill(~real_BT, -1)
        return cls(real_BT, region, [["other"]] * rows, none, none)

    @cached_property
    def writing_span(self) -> tuple[int, int]:
        """First and last position (exclusive) of the rows that may write in any prompt of the batch."""
        positions = self.writes_BN.any(0).nonzero()[:, 0]
        return (int(positions[0]), int(positions[-1]) + 1) if len(positions) else (0, 0)

    def of_layers(self, count: int) -> PositionLayout:
        """The layout of the rows of several layers, one after another."""
        if count == 1:
            return self
        if count not in self._of_layers:
            real = None if self.real_BN is None else self.real_BN.repeat(count, 1)
            region, gold, writes = (x.repeat(count, 1) for x in (self.region_BN, self.gold_BN, self.writes_BN))
            names = self.region_names * count
            self._of_layers[count] = PositionLayout(real, region, names, gold, writes, self.mask_id)
        return self._of_layers[count]

    @cached_property
    def member_BRN(self) -> torch.Tensor:
        """1.0 where a position belongs to a region."""
        count = max(len(names) for names in self.region_names)
        index = torch.arange(count, device=self.region_BN.device)
        return (self.region_BN[:, None, :] == index[None, :, None]).float()

    def member_NRQ(self, queries: slice, heads: int) -> torch.Tensor:
        """`member_BRN` at some positions, repeated for each head (B·H, R, Q); the same for all layers of a step."""
        key = (queries.start, queries.stop, heads)
        if key not in self._of_heads:
            self._of_heads.clear()
            self._of_heads[key] = self.member_BRN[:, :, queries].repeat_interleave(heads, 0)
        return self._of_heads[key]

    def spans(self, queries: slice) -> list[tuple[int, int, int]]:
        """(region, start, end) of neighbouring queries in one region, without padding; none if the rows differ.

        >>> layout = PositionLayout.without_regions(2, 5, torch.device("cpu"), torch.tensor([[False, True, True]]))
        >>> layout.spans(slice(0, 4))
        [(0, 1, 4)]
        """
        key = (queries.start, queries.stop)
        if key not in self._spans:
            self._spans.clear()
            region_BQ = self.region_BN[:, queries]
            regions, counts = torch.unique_consecutive(region_BQ[0], return_counts=True)
            ends = counts.cumsum(0)
            found = zip(regions.tolist(), (ends - counts).tolist(), ends.tolist(), strict=True)
            same = bool((region_BQ == region_BQ[0]).all())
            self._spans[key] = [span for span in found if same and span[0] >= 0]
        return self._spans[key]

    @cached_property
    def asks_BR(self) -> torch.Tensor:
        """1.0 for the region `query` of each row."""
        asks_BR = torch.zeros(self.member_BRN.shape[:2], device=self.region_BN.device)
        for row, names in enumerate(self.region_names):
            asks_BR[row, [number for number, name in enumerate(names) if name == "query"]] = 1.0
        return asks_BR


@dataclass(frozen=True, kw_only=True)
class Call(Inputs):
    """The inputs of one attention call, and the positions that they belong to.

    layers     the layers that the rows belong to, one after another; usually one
    length     number of positions so far
    first_query  position of query 0
    starts_over  True: statistics start from zero, as at every step of a bidirectional model; False: the rows are added to
               those of earlier calls, as in a causal model with a cache
    tokens_BT  the tokens of one layer's rows, if the pass provides them
    memory     state that statistics keep from one step to the next; the same for all calls of a run
    """

    layers: tuple[int, ...]
    layout: PositionLayout
    length: int
    first_query: int
    starts_over: bool
    tokens_BT: torch.Tensor | None = None
    memory: dict[Hashable, Any] = field(default_factory=dict)

    @property
    def layer(self) -> int:
        """The layer of a call that belongs to a single layer."""
        return self.layers[0]

    @property
    def query_positions(self) -> slice:
        return slice(self.first_query, self.first_query + self.Q)

    @property
    def query_keys(self) -> slice:
        """Slice of the keys and values at the queries' own positions."""
        start = self.first_query - self.first_key
        return slice(start, start + self.Q)

    @property
    def first_key(self) -> int:
        """Position of key 0."""
        return self.length - self.T

    @cached_property
    def real_BQ(self) -> torch.Tensor | None:
        """Queries that are not padding; None when all are real."""
        real = self.layout.real_BN
        return None if real is None else real[:, self.query_positions]

    @cached_property
    def queries_B(self) -> torch.Tensor:
        """Number of real queries per row."""
        if self.real_BQ is None:
            return torch.full((self.B,), float(self.Q), device=self.device)
        return self.real_BQ.sum(1).float()

    @cached_property
    def member_BRQ(self) -> torch.Tensor:
        """Region membership of the queries; a padded query belongs to none."""
        return self.layout.member_BRN[:, :, self.query_positions]

    def of_rows(self, positions: range, starts_over: bool) -> Call:
        """The same call with the queries at these positions only."""
        start, end = positions.start - self.first_query, positions.stop - self.first_query
        if not 0 <= start < end <= self.Q:
            queries = range(self.first_query, self.first_query + self.Q)
            raise RuntimeError(f"the sampler named the rows {positions}, but the pass computed {queries}")
        if (start, end) == (0, self.Q):
            return replace(self, starts_over=starts_over)
        mask = self.mask
        if self.causal:  # the kernel's own causal mask ends where all queries end
            mask = ~self.future(0, self.Q)[None, None]
        return replace(
            self,
            q_BHQD=self.q_BHQD[:, :, start:end],
            mask=None if mask is None else query_rows(mask, start, end),
            causal=False,
            bias=None if self.bias is None else query_rows(self.bias, start, end),
            lse_BHQ=None if self.lse_BHQ is None else self.lse_BHQ[:, :, start:end],
            first_query=positions.start,
            starts_over=starts_over,
        )

    def of_layers(self, layers: tuple[int, ...]) -> Call:
        """The same call of several layers, without queries, keys and values: they become NaN, and take no memory."""
        rows, layout = self.B * len(layers), self.layout.of_layers(len(layers))
        nothing = self.q_BHQD.new_full((), torch.nan)
        q, k, v = (nothing.expand(rows, *x.shape[1:]) for x in (self.q_BHQD, self.k_BKTD, self.v_BKTD))
        return replace(self, q_BHQD=q, k_BKTD=k, v_BKTD=v, lse_BHQ=None, layers=layers, layout=layout)

    @cached_property
    def computed(self) -> dict[str, torch.Tensor]:
        """What was computed of the call so far, by name, each (B, ...)."""
        return {}

    def once(self, quantity: Callable[[Call], torch.Tensor]) -> torch.Tensor:
        """A quantity of the call that several statistics need; computed on first use."""
        if quantity.__name__ not in self.computed:
            self.computed[quantity.__name__] = quantity(self)
        return self.computed[quantity.__name__]

    @property
    def pooled_BHRT(self) -> torch.Tensor:
        """Weights summed over the queries of each region; their sum over regions is the column sum."""
        return self.computed["pooled"]

    @property
    def spread_BH(self) -> torch.Tensor:
        """Entropy of the weights' rows in nats, summed over the queries."""
        if "spread" not in self.computed:
            # Of a row: log2 of the sum of its weights before they are divided by it, minus the mean of the exponents.
            totals_BHQ, dots_BHQ = self.computed["totals"], self.computed["dots"]
            bits_BHQ = totals_BHQ.log2().sub_(dots_BHQ / totals_BHQ)
            if self.real_BQ is not None:
                bits_BHQ.masked_fill_(~self.real_BQ[:, None], 0.0)
            self.computed["spread"] = bits_BHQ.sum(-1) / LOG2E
        return self.computed["spread"]

    @property
    def writing_queries(self) -> tuple[int, int]:
        """First and last (exclusive) query that may write a token; an empty range at 0 if there are none."""
        first, end = self.layout.writing_span
        first, end = max(first - self.first_query, 0), min(end - self.first_query, self.Q)
        return (first, end) if first < end else (0, 0)

    def rows(self, start: int, end: int) -> torch.Tensor | None:
        """Weights (B, H, end-start, T) of queries start..end (read-only), or None if they were not kept."""
        if self.own_rows is not None:
            weights_BHQT, real_BQ = self.own_rows(start, end), self.real_BQ
            return weights_BHQT if real_BQ is None else weights_BHQT * real_BQ[:, None, start:end, None]
        kept_BHQT = self.computed.get("rows")
        if kept_BHQT is None:
            return None
        first = 0 if kept_BHQT.shape[2] == self.Q else self.writing_queries[0]
        inside = first <= start and end - first <= kept_BHQT.shape[2]
        return kept_BHQT[:, :, start - first : end - first] if inside else None

    def may_see(self, start: int, end: int) -> torch.Tensor | None:
        """True where a query may see a key, broadcasts to (B of one layer, H, end-start, T); None if all may."""
        seen = None if self.mask is None else visible(query_rows(self.mask, start, end))
        if self.causal:
            past = ~self.future(start, end)
            seen = past if seen is None else seen & past
        return seen

    @property
    def same_for_all_queries(self) -> bool:
        """True when every query may see the same keys: no mask, or one that is only padding."""
        return not self.causal and (self.mask is None or self.mask.shape[-2] == 1 or self.mask.stride(-2) == 0)


def query_norms(call: Call) -> torch.Tensor:
    """Norms of the queries (B, H, Q)."""
    return torch.linalg.vector_norm(call.q, dim=-1)


def key_norms(call: Call) -> torch.Tensor:
    """Norms of the keys (B, K, T)."""
    return torch.linalg.vector_norm(call.k, dim=-1)


def visible(mask: torch.Tensor) -> torch.Tensor:
    """True where a mask, boolean or additive, lets a query see a key."""
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def query_rows(extra: torch.Tensor, start: int, end: int) -> torch.Tensor:
    """The rows of queries start..end of a mask or bias; one that is the same for all queries is returned unchanged."""
    return extra if extra.shape[-2] == 1 else extra[..., start:end, :]
