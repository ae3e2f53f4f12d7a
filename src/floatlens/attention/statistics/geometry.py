"""QK geometry: column means of the score q·k and of its two factors, |q||k| and the cosine; norms of the values.

mean over q of q·k_j is (mean of q)·k_j, so column means need no score matrix but the sum of the queries that may see each
key: one vector for all keys if every query sees the same keys, sums over blocks of later queries under a causal mask,
otherwise a product with the mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch

from floatlens.attention.call import Call, key_norms, query_norms
from floatlens.attention.exact import ExactMatrices
from floatlens.attention.statistic import Statistic, register_statistic, variant
from floatlens.attention.stream import TILE

BLOCK = 32  # queries per block of a causal sum
SCORE, COS = 0, 1  # in `products`


def products(call: Call) -> torch.Tensor:
    """q·k and q·k / |q|, summed over the queries that may see each key (B, H, 2, T)."""
    B, H, K, T = call.B, call.H, call.K, call.T
    inverse_BHQ = inverse(call.once(query_norms))
    if call.same_for_all_queries and call.Q == 1 and call.real_BQ is None:
        if "scores" in call.computed:
            qk_BHT = call.computed["scores"][:, :, 0] / call.scale
        else:
            qk_BHT = torch.matmul(call.q.reshape(B, K, H // K, -1), call.k.transpose(2, 3)).view(B, H, T)
        return torch.stack([qk_BHT, qk_BHT * inverse_BHQ], 2)
    if call.same_for_all_queries or (call.causal and call.mask is None):
        weight_BH2Q = torch.nn.functional.pad(inverse_BHQ[:, :, None], (0, 0, 1, 0), value=1.0)
        if call.real_BQ is not None:
            weight_BH2Q = weight_BH2Q.masked_fill_(~call.real_BQ[:, None, None], 0.0)
        if not call.same_for_all_queries:
            return causal_products(call.q, call.k, weight_BH2Q)
        rows = torch.bmm(weight_BH2Q.flatten(0, 1), call.q.flatten(0, 1)).view(B * K, 2 * H // K, -1)
        return torch.bmm(rows, call.k.flatten(0, 1).transpose(1, 2)).view(B, H, 2, T)
    y_BK1TC, parts = call.k[:, :, None], (call.q, call.q * inverse_BHQ[..., None])
    seen = (visible_sum(call, x).unflatten(1, (K, -1)) for x in parts)
    return torch.stack([torch.einsum("bkgtc,bkgtc->bkgt", x, y_BK1TC).reshape(B, H, T) for x in seen], 2)


def scores(call: Call) -> torch.Tensor:
    """q·k, summed over the queries that may see each key (B, H, T)."""
    return call.once(products)[:, :, SCORE]


def cosines(call: Call) -> torch.Tensor:
    """The cosine of q and k, summed over the queries that may see each key (B, H, T)."""
    sums_BKGT = call.once(products)[:, :, COS].unflatten(1, (call.K, -1))
    return (sums_BKGT * inverse(call.once(key_norms))[:, :, None]).flatten(1, 2)


def norms(call: Call) -> torch.Tensor:
    """|q||k|, summed over the queries that may see each key (B, H, T)."""
    seen_BKGT = visible_sum(call, call.once(query_norms)[..., None])[..., 0].unflatten(1, (call.K, -1))
    return (seen_BKGT * call.once(key_norms)[:, :, None]).flatten(1, 2)


def inverse(norm: torch.Tensor) -> torch.Tensor:
    """1 / norm; large but finite where the norm is 0, so that its product with the zero vector is 0.

    >>> inverse(torch.tensor([2.0, 0.0])) * torch.tensor([1.0, 0.0])
    tensor([0.5000, 0.0000])
    """
    return norm.clamp_min(torch.finfo(torch.float32).tiny).reciprocal_()


def causal_products(x_BHQC: torch.Tensor, y_BKQC: torch.Tensor, weight_BHSQ: torch.Tensor) -> torch.Tensor:
    """Sums over the queries at or after each key of x·y, each with S sets of weights of the queries (B, H, S, Q).

    In blocks of queries: products inside a block are computed and masked, of later blocks the sum of x is enough. Suffix
    sums of x would write several tensors of its size.

    >>> causal_products(torch.tensor([[[[1.0], [2.0], [4.0]]]]), torch.ones(1, 1, 3, 1), torch.ones(1, 1, 1, 3))
    tensor([[[[7., 6., 4.]]]])
    """
    (B, H, Q, C), K, S = x_BHQC.shape, y_BKQC.shape[1], weight_BHSQ.shape[2]
    M, G, blocks = B * K, H // K, -(-Q // BLOCK)
    if rest := blocks * BLOCK - Q:
        x_BHQC, y_BKQC = (torch.nn.functional.pad(part, (0, 0, 0, rest)) for part in (x_BHQC, y_BKQC))
        weight_BHSQ = torch.nn.functional.pad(weight_BHSQ, (0, rest))
    x = x_BHQC.reshape(M, G, blocks, BLOCK, C).transpose(1, 2)
    y = y_BKQC.reshape(M, blocks, BLOCK, C).transpose(2, 3)
    weight = weight_BHSQ.reshape(M, G, S, blocks, BLOCK).permute(0, 3, 1, 2, 4)
    not_before = torch.ones(BLOCK, BLOCK, device=x.device).tril_()
    inside = torch.matmul(x.reshape(M, blocks, G * BLOCK, C), y).view(M, blocks, G, BLOCK, BLOCK).mul_(not_before)
    total = torch.matmul(weight, inside)
    later = torch.matmul(weight, x).flip(1).cumsum(1).flip(1)[:, 1:]
    total[:, :-1] += torch.matmul(later.flatten(2, 3), y[:, :-1]).unflatten(2, (G, S))
    return total.permute(0, 2, 3, 1, 4).reshape(B, H, S, blocks * BLOCK)[..., :Q]


def visible_sum(call: Call, x_BHQC: torch.Tensor) -> torch.Tensor:
    """Sum of x over the real queries that may see each key: (B, H, T, C), or (B, H, 1, C) if it is the same for all."""
    if call.real_BQ is not None:
        x_BHQC = x_BHQC.masked_fill(~call.real_BQ[:, None, :, None], 0.0)
    if call.same_for_all_queries:
        return x_BHQC.sum(2, keepdim=True)
    if call.causal and call.mask is None:
        return x_BHQC.flip(2).cumsum(2).flip(2)
    total = x_BHQC.new_zeros(call.B, x_BHQC.shape[1], call.T, x_BHQC.shape[-1])
    rows = max(1, TILE // (call.B * call.T))
    for start in range(0, call.Q, rows):
        end = min(call.Q, start + rows)
        visible = call.may_see(start, end)
        assert visible is not None
        heads = 1 if x_BHQC.shape[1] == 1 else visible.shape[1]
        seen = visible[:, :heads].expand(-1, -1, end - start, call.T).to(x_BHQC.dtype).transpose(2, 3)
        layered = x_BHQC[:, :, start:end].unflatten(0, (len(call.layers), -1))
        total += torch.matmul(seen, layered).flatten(0, 1)
    return total


def visible_count(call: Call) -> torch.Tensor:
    """Number of real queries that may see each key (B, H, T)."""
    ones = torch.ones(call.B, 1 if call.mask is None else call.mask.shape[1], call.Q, 1, device=call.device)
    count_BHT = visible_sum(call, ones)[..., 0].expand(-1, call.H, call.T)
    if not call.same_for_all_queries or (visible := call.may_see(0, 1)) is None:
        return count_BHT
    layers = len(call.layers)
    return count_BHT * visible.expand(call.B // layers, -1, 1, call.T)[:, :, 0].repeat(layers, 1, 1)


class ColumnMean(Statistic):
    """Mean over the queries that may see each key, of what `sums` adds up (B, H, T).

    matrix   name of the full matrix in `ExactMatrices`
    """

    dims = ("head", "position")
    sums: ClassVar[Callable[[Call], torch.Tensor]]
    matrix: ClassVar[str]

    def result(self, call: Call) -> torch.Tensor:
        count_BHT, sums_BHT = call.once(visible_count), type(self).sums(call)
        if call.mask is not None and call.same_for_all_queries:  # a key that no query sees has no sum
            sums_BHT = sums_BHT.masked_fill(count_BHT == 0, 0.0)
        return self.running(call, sums_BHT, call.first_key) / self.running(call, count_BHT, call.first_key, "count")

    @classmethod
    def exact(cls, m: ExactMatrices, call: Call) -> torch.Tensor:
        seen_BHQT = m.visible_BHQT & (m.real_rows(call) > 0)
        return torch.where(seen_BHQT, getattr(m, cls.matrix), 0.0).sum(2) / seen_BHQT.sum(2)


# q·k_j post-RoPE and unscaled, its cosine (0 with a zero vector), and |q||k_j|.
variant(ColumnMean, "qk", matrix="score_BHQT", sums=staticmethod(scores), quantities=(products,))
variant(ColumnMean, "qk_cos", matrix="cos_BHQT", sums=staticmethod(cosines), quantities=(products, key_norms))
variant(ColumnMean, "qk_norm", matrix="norm_BHQT", sums=staticmethod(norms), quantities=(query_norms, key_norms))


def value_norms(call: Call) -> torch.Tensor:
    """Norms of the values of all keys, or of the new positions only if they extend a cache (B, K, positions)."""
    values_BKTD = call.v_BKTD if call.starts_over else call.v_BKTD[:, :, -call.Q :]
    return torch.linalg.vector_norm(values_BKTD.float(), dim=-1)


@register_statistic
class ValueNorm(Statistic):
    """|v_j| per key/value head. With a cache only new positions are computed, because cached values do not change."""

    name = "value_norm"
    dims = ("kv_head", "position")
    quantities = (value_norms,)

    def result(self, call: Call) -> torch.Tensor:
        return self.running(call, call.once(value_norms), call.first_key if call.starts_over else call.first_query)

    @classmethod
    def exact(cls, m: ExactMatrices, call: Call) -> torch.Tensor:
        return m.value_BKT
