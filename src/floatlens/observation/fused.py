"""Attention computed once: the same weights produce the output and the statistics.

All keys of a block of queries fit in a core's cache, so a block is one product for the scores, one softmax, one product
with the values, and sums over the weights before the next block overwrites them. A second pass would compute the scores
and the exponentials again. The output differs from `scaled_dot_product_attention` only by rounding.
"""

from __future__ import annotations

import torch

from floatlens.observation.call import Call
from floatlens.observation.inputs import Inputs
from floatlens.observation.weights import FEW, LOG2E, exponent_blocks
from floatlens.observation.workspace import Workspace

KEPT = 1 << 21  # largest number of weights of writing rows that a call keeps


def can_fuse(inputs: Inputs) -> bool:
    """Whether `attend` can compute a call: float32 on a CPU, plain softmax attention, no gradient."""
    tensors = (inputs.query, inputs.key, inputs.value)
    if any(x.dtype != torch.float32 or x.device.type != "cpu" for x in tensors):
        return False
    if inputs.softcap is not None or inputs.bias is not None or inputs.sinks is not None:
        return False
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))


def attend(call: Call, size: int, space: Workspace) -> torch.Tensor:
    """Compute a call's output (B, Q, H, D), and store in the call the sums and weights that statistics need.

    `size` is the largest number of weights in a block. With few queries the weights themselves are kept; otherwise the
    sums over regions, the entropy, and the rows that write.
    """
    if call.Q < FEW:
        return _attend_rows(call)
    N, device = call.B * call.H, call.q_BHQD.device
    G, D = call.H // call.K, call.v_BKTD.shape[-1]
    values_MTD = call.v_BKTD.flatten(0, 1)
    output_NQD = torch.empty(N, call.Q, D, device=device)
    pooled_NRT = torch.zeros(N, call.member_BRQ.shape[1], call.T, device=device)
    spread_N = torch.zeros(N, device=device)
    member_NRQ = call.member_BRQ[:, None].expand(-1, call.H, -1, -1).flatten(0, 1)
    real_NQ1 = None if call.real_BQ is None else call.real_BQ.repeat_interleave(call.H, 0)[..., None].float()
    first, end = _writing_rows(call)
    rows_NWT = torch.zeros(N, end - first, call.T, device=device)
    for block in exponent_blocks(call, size, space):
        x_NQT = block.exponents_NQT
        n, q, T = x_NQT.shape
        heads, queries = slice(block.first, block.first + n), slice(block.start, block.end)
        x_NQT.sub_(x_NQT.amax(-1, keepdim=True))
        weights_NQT = torch.exp2(x_NQT, out=space.take("weights", (n, q, T), device))
        total_NQ1 = weights_NQT.sum(-1, keepdim=True)
        inverse_NQ1 = total_NQ1.reciprocal()
        made = space.take("output", (n // G, G * q, D), device)
        torch.bmm(
            weights_NQT.view(n // G, G * q, T), values_MTD[block.first // G : (block.first + n) // G, :T], out=made
        )
        torch.mul(made.view(n, q, D), inverse_NQ1, out=output_NQD[heads, queries])
        bits_NQ1 = total_NQ1.log2_()
        if real_NQ1 is not None:  # padded queries have an output, but are excluded from the sums
            inverse_NQ1, bits_NQ1 = (v.mul_(real_NQ1[heads, queries]) for v in (inverse_NQ1, bits_NQ1))
        # Dividing the products by the row sums is cheaper than dividing the weights.
        share_N1Q = inverse_NQ1.transpose(1, 2)
        pooled_NRT[heads, :, :T].baddbmm_(member_NRQ[heads, :, queries] * share_N1Q, weights_NQT)
        low, high = max(first, block.start), min(end, block.end)
        if low < high:
            rows = slice(low - block.start, high - block.start)
            rows_NWT[heads, low - first : high - first, :T] = weights_NQT[:, rows] * inverse_NQ1[:, rows]
        # Entropy of a row: log2 of its sum minus the mean of the exponents.
        means_NQ = x_NQT.mul_(weights_NQT).sum(-1).mul_(inverse_NQ1[..., 0])
        spread_N[heads] += (bits_NQ1[..., 0] - means_NQ).sum(-1)
    B, H = call.B, call.H
    call.has_passed(pooled_NRT.view(B, H, -1, call.T), spread_N.view(B, H) / LOG2E)
    if first < end:
        call.keep_rows(first, rows_NWT.view(B, H, end - first, call.T))
    return output_NQD.view(B, H, call.Q, D).transpose(1, 2).contiguous()


def _attend_rows(call: Call) -> torch.Tensor:
    """`attend` for few queries, as in cached decoding: the weights are kept, and the sums of many layers taken together."""
    rows_BHQT = call.scores(0, call.Q).softmax(-1)
    kept_BHQT = rows_BHQT
    if call.real_BQ is not None:  # padded queries have an output, but weight 0; so has a query that sees no key
        rows_BHQT = rows_BHQT.nan_to_num_()
        kept_BHQT = rows_BHQT.masked_fill(~call.real_BQ[:, None, :, None], 0.0)
    call.keep_rows(0, kept_BHQT)
    M, D = call.B * call.K, call.v_BKTD.shape[-1]
    output = torch.bmm(rows_BHQT.view(M, -1, call.T), call.v_BKTD.flatten(0, 1))
    return output.view(call.B, call.H, call.Q, D).transpose(1, 2).contiguous()


def _writing_rows(call: Call) -> tuple[int, int]:
    """First and last (exclusive) of the call's queries that may write a token; an empty range if too many to keep."""
    first, end = call.layout.writing_span
    first, end = max(first - call.first_query, 0), min(end - call.first_query, call.Q)
    if first >= end or (end - first) * call.B * call.H * call.T > KEPT:
        return 0, 0
    return first, end
