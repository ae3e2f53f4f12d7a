"""Attention computed once: the same weights produce the output and the statistics.

All keys of a block of queries fit in a core's cache, so a block is one product for the scores, one softmax, one product
with the values, and sums over the weights before the next block overwrites them. A second pass would compute the scores
and the exponentials again. The output differs from `scaled_dot_product_attention` only by rounding.
"""

from __future__ import annotations

import torch

from floatlens.attention.call import Call, Inputs
from floatlens.attention.stream import FEW, LOG2E, Workspace, exponent_blocks

LARGEST = 64.0  # weights and their sums stay far from overflow and underflow, and the entropy keeps six digits
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
    B, H, N, Q, T, device = call.B, call.H, call.B * call.H, call.Q, call.T, call.q_BHQD.device
    G, D = H // call.K, call.v_BKTD.shape[-1]
    values_MTD = call.v_BKTD.flatten(0, 1)
    output_BQHD = torch.empty(B, Q, H, D, device=device)
    member_NRQ = call.layout.member_BHRQ(call.query_positions, H).flatten(0, 1)
    pooled_NRT = torch.zeros(N, member_NRQ.shape[1], T, device=device)
    totals_NQ, dots_NQ = torch.empty(2, N, Q, device=device)  # per row: sum of the weights, and of weights · exponents
    first, last = call.writing_queries
    if (last - first) * N * T > KEPT:
        first, last = 0, 0
    rows_NWT = torch.zeros(N, last - first, T, device=device)
    bounded = is_bounded(call)
    for block in exponent_blocks(call, size, space):
        x_NQT = block.exponents_NQT
        n, q, keys = x_NQT.shape
        heads, queries = slice(block.first, block.first + n), slice(block.start, block.end)
        if not bounded:
            highest_NQ1 = x_NQT.amax(-1, keepdim=True)
            x_NQT.sub_(highest_NQ1)
        weights_NQT = torch.exp2(x_NQT, out=block.weights_NQT)
        total_NQ = torch.sum(weights_NQT, -1, out=totals_NQ[heads, queries])
        made = space.take("output", (n // G, G * q, D), device)
        values = values_MTD[block.first // G : (block.first + n) // G, :keys]
        torch.bmm(weights_NQT.view(n // G, G * q, keys), values, out=made)
        inverse_NQ = total_NQ.reciprocal()
        # A block is a part of one row of the batch, or all heads of several rows.
        row, head = divmod(block.first, H)
        target_BHQD = output_BQHD[row : row + max(1, n // H), queries, head : head + n].transpose(1, 2)
        shape = target_BHQD.shape
        torch.mul(made.view(shape), inverse_NQ.view(*shape[:3], 1), out=target_BHQD)
        # Dividing the products by the row sums is cheaper than dividing the weights.
        pooled_NRT[heads, :, :keys].baddbmm_(member_NRQ[heads, :, queries] * inverse_NQ[:, None], weights_NQT)
        low, high = max(first, block.start), min(last, block.end)
        if low < high:
            rows = slice(low - block.start, high - block.start)
            kept_NQT = rows_NWT[heads, low - first : high - first, :keys]
            torch.mul(weights_NQT[:, rows], inverse_NQ[:, rows, None], out=kept_NQT)
        torch.sum(x_NQT.mul_(weights_NQT), -1, out=dots_NQ[heads, queries])
    # Entropy of a row: log2 of its sum minus the mean of the exponents.
    bits_BHQ = totals_NQ.log2().sub_(dots_NQ.div_(totals_NQ)).view(B, H, Q)
    rows_BHWT = rows_NWT.view(B, H, last - first, T)
    if call.real_BQ is not None:  # padded queries have an output, but are excluded from the sums
        bits_BHQ.masked_fill_(~call.real_BQ[:, None], 0.0)
        rows_BHWT.masked_fill_(~call.real_BQ[:, None, first:last, None], 0.0)
    call.keep_sums(pooled_NRT.view(B, H, -1, T), bits_BHQ.sum(-1) / LOG2E)
    if first < last:
        call.keep_rows(rows_BHWT)
    return output_BQHD


def is_bounded(call: Call) -> bool:
    """Whether no exponent of a call can overflow or lose precision, so that the rows' maxima need not be subtracted."""
    if call.mask is not None:  # a row that sees nothing would divide by 0
        return False
    largest = float(call.q_norm.max() * call.k_norm.max()) * abs(call.scaling) * LOG2E
    return largest < LARGEST


def _attend_rows(call: Call) -> torch.Tensor:
    """`attend` for few queries, as in cached decoding: the weights are kept, and the sums of many layers taken together."""
    scores_BHQT = call.scores(0, call.Q)
    if call.Q == 1 and call.mask is None:
        call.computed["scores"] = scores_BHQT  # so that `score_sums` need not multiply all keys again
    rows_BHQT = scores_BHQT.softmax(-1)
    kept_BHQT = rows_BHQT
    if call.real_BQ is not None:  # padded queries have an output, but weight 0; so has a query that sees no key
        rows_BHQT = rows_BHQT.nan_to_num_()
        kept_BHQT = rows_BHQT.masked_fill(~call.real_BQ[:, None, :, None], 0.0)
    call.keep_rows(kept_BHQT)
    M, D = call.B * call.K, call.v_BKTD.shape[-1]
    output = torch.bmm(rows_BHQT.view(M, -1, call.T), call.v_BKTD.flatten(0, 1))
    return output.view(call.B, call.H, call.Q, D).transpose(1, 2).contiguous()
