"""The implicit attention of a selective state-space layer (arXiv 2403.01590): its scan, written as a weighted sum.

A scan computes y_i = Σ_j α_ij x_j + D x_i with

    α_ij = Σ_n C_i[n] · exp(a[n] · Σ dt over the positions after j up to i) · dt_j · B_j[n]

for all j that are read no later than i. A Mamba-2 layer has one α per head; a Mamba layer one per channel, and all of its
channels form one head. α is signed and its rows do not sum to one, so statistics see it through a convention, `RULE`:
absolute values, each row divided by its sum, then the mean over the channels of a head.

Shapes: B batch, T positions, U scans (channels of Mamba, heads of Mamba-2), H heads, N state size, Q rows of a tile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch

RULE = "implicit(absolute, row-normalised, channel-mean)"
ROOM = 1 << 20  # largest number of values of α that are computed at once
TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Scan:
    """One direction of a layer, its tensors in the order of the positions.

    x_BTHP     the vectors that are summed: the input after the convolution
    dt_BTU     step sizes, after the softplus
    a_UN       the diagonal of A, negative; one column where it is the same for the whole state (Mamba-2)
    b_BTGN, c_BTGN   G is 1 where all scans share them (Mamba), else U
    reverse    whether the positions are read from the last to the first
    """

    x_BTHP: torch.Tensor
    dt_BTU: torch.Tensor
    a_UN: torch.Tensor
    b_BTGN: torch.Tensor
    c_BTGN: torch.Tensor
    reverse: bool = False

    @property
    def H(self) -> int:
        return self.x_BTHP.shape[2]

    @property
    def T(self) -> int:
        return self.dt_BTU.shape[1]

    @cached_property
    def read_BUT(self) -> torch.Tensor:
        """Sum of the step sizes of all positions read so far, in float64: differences of it are exponents."""
        dt = self.dt_BTU.double().transpose(1, 2)
        return dt.flip(2).cumsum(2).flip(2) if self.reverse else dt.cumsum(2)

    def unread(self, start: int, end: int) -> torch.Tensor:
        """True where a key is read after the query (end-start, T)."""
        device = self.dt_BTU.device
        queries, keys = torch.arange(start, end, device=device)[:, None], torch.arange(self.T, device=device)[None]
        return keys < queries if self.reverse else keys > queries

    def alpha(self, start: int, end: int, scans: slice = slice(None)) -> torch.Tensor:
        """α of rows start..end and some of the scans, signed (B, U, end-start, T)."""
        read = self.read_BUT[:, scans]
        past = (read[:, :, start:end, None] - read[:, :, None, :]).float().clamp_min_(0.0)
        a_UN = self.a_UN.float()[scans]
        groups = slice(None) if self.b_BTGN.shape[2] == 1 else scans
        b, c = (v.float()[:, :, groups].transpose(1, 2) for v in (self.b_BTGN, self.c_BTGN[:, start:end]))
        if a_UN.shape[1] == 1:
            total = (c @ b.transpose(2, 3)) * past.mul_(a_UN[:, :, None]).exp_()
        else:
            total = torch.zeros_like(past)
            for n in range(a_UN.shape[1]):
                total += (past * a_UN[:, n, None, None]).exp_() * (c[..., n, None] * b[..., None, :, n])
        total *= self.dt_BTU.float().transpose(1, 2)[:, scans, None, :]
        return total.masked_fill_(self.unread(start, end), 0.0)

    def weights(self, start: int, end: int) -> torch.Tensor:
        """Attention of rows start..end by `RULE` (B, H, end-start, T)."""
        B, T, U = self.dt_BTU.shape
        each = U // self.H
        if each == 1:
            alpha = self.alpha(start, end).abs_()
            return alpha.div_(alpha.sum(-1, keepdim=True).clamp_min(TINY))
        at_once = max(1, ROOM // (B * (end - start) * T))
        parts = []
        for head in range(self.H):
            total = torch.zeros(B, end - start, T, device=self.dt_BTU.device)
            for first in range(head * each, (head + 1) * each, at_once):
                alpha = self.alpha(start, end, slice(first, min(first + at_once, (head + 1) * each))).abs_()
                total += (alpha / alpha.sum(-1, keepdim=True).clamp_min(TINY)).sum(1)
            parts.append(total / each)
        return torch.stack(parts, 1)

    def signed_sums(self) -> torch.Tensor:
        """Signed α summed down the columns, mean over the channels of a head (B, H, T); computed by a reverse scan."""
        decay_BTUN = (self.dt_BTU.float()[..., None] * self.a_UN.float()).exp()
        b, c = self.b_BTGN.float(), self.c_BTGN.float()
        step_BTU = self.dt_BTU.float()
        state = torch.zeros_like(decay_BTUN[:, 0]).expand(-1, -1, b.shape[-1])
        sums = torch.empty_like(step_BTU)
        order = range(self.T) if self.reverse else range(self.T - 1, -1, -1)
        for j in order:
            state = state + c[:, j]  # Σ over the rows that read j of C_i, decayed down to j
            sums[:, j] = step_BTU[:, j] * (state * b[:, j]).sum(-1)
            state = state * decay_BTUN[:, j]
        return sums.unflatten(2, (self.H, -1)).mean(-1).transpose(1, 2)

    def exact_alpha(self) -> torch.Tensor:
        """The full α (B, U, T, T) in float64, computed by running the scan on every input separately."""
        B, T, U = self.dt_BTU.shape
        dt, b, c = self.dt_BTU.double(), self.b_BTGN.double(), self.c_BTGN.double()
        decay_BTUN = (dt[..., None] * self.a_UN.double()).exp()
        alpha = dt.new_zeros(B, U, T, T)
        state_BUTN = dt.new_zeros(B, U, T, b.shape[-1])
        for i in range(T - 1, -1, -1) if self.reverse else range(T):
            state_BUTN = state_BUTN * decay_BTUN[:, i, :, None]
            state_BUTN[:, :, i] = dt[:, i, :, None] * b[:, i]
            alpha[:, :, i] = (state_BUTN * c[:, i, :, None]).sum(-1)
        return alpha

    def exact_weights(self) -> torch.Tensor:
        """Attention by `RULE` (B, H, T, T), from the full α."""
        alpha = self.exact_alpha().abs()
        rows = alpha / alpha.sum(-1, keepdim=True).clamp_min(TINY)
        return rows.unflatten(1, (self.H, -1)).mean(2).float()

    def first_rows(self, rows: int) -> Scan:
        """The same scan for the first rows of the batch."""
        x, dt, b, c = (v[:rows] for v in (self.x_BTHP, self.dt_BTU, self.b_BTGN, self.c_BTGN))
        return replace(self, x_BTHP=x, dt_BTU=dt, b_BTGN=b, c_BTGN=c)

    def per_head(self, v_BTGN: torch.Tensor) -> torch.Tensor:
        """B or C as the key or the query of every head (B, H, T, N)."""
        return v_BTGN.transpose(1, 2).expand(-1, self.H, -1, -1)


@dataclass(frozen=True)
class ImplicitAttention:
    """The scans of a layer: one, or one in each direction. Their heads come one scan after another."""

    scans: tuple[Scan, ...]

    @property
    def query_BHTN(self) -> torch.Tensor:
        """C, the counterpart of the queries."""
        return torch.cat([scan.per_head(scan.c_BTGN) for scan in self.scans], 1)

    @property
    def key_BHTN(self) -> torch.Tensor:
        """B, the counterpart of the keys."""
        return torch.cat([scan.per_head(scan.b_BTGN) for scan in self.scans], 1)

    @property
    def value_BHTP(self) -> torch.Tensor:
        """The input of the scan, the counterpart of the values."""
        return torch.cat([scan.x_BTHP.transpose(1, 2) for scan in self.scans], 1)

    def weights(self, start: int, end: int) -> torch.Tensor:
        """Attention of rows start..end (B, H, end-start, T)."""
        return torch.cat([scan.weights(start, end) for scan in self.scans], 1)

    def signed_sums(self) -> torch.Tensor:
        """Signed column sums (B, H, T), without a matrix."""
        return torch.cat([scan.signed_sums() for scan in self.scans], 1)

    def visible_sum(self, x_BHQC: torch.Tensor) -> torch.Tensor:
        """Sum over the queries that read each key (B, H, T, C)."""
        parts = x_BHQC.split([scan.H for scan in self.scans], 1)
        return torch.cat(
            [
                part.cumsum(2) if scan.reverse else part.flip(2).cumsum(2).flip(2)
                for scan, part in zip(self.scans, parts, strict=True)
            ],
            1,
        )

    def exact_weights(self) -> torch.Tensor:
        return torch.cat([scan.exact_weights() for scan in self.scans], 1)

    def exact_signed_sums(self) -> torch.Tensor:
        parts = [scan.exact_alpha().unflatten(1, (scan.H, -1)).mean(2).sum(2) for scan in self.scans]
        return torch.cat(parts, 1).float()

    def visible(self) -> torch.Tensor:
        """True where a query reads a key (H, T, T)."""
        return torch.cat([~scan.unread(0, scan.T).expand(scan.H, -1, -1) for scan in self.scans])

    def first_rows(self, rows: int) -> ImplicitAttention:
        return ImplicitAttention(tuple(scan.first_rows(rows) for scan in self.scans))
