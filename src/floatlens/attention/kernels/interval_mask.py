"""Attention masks as three integers: the number of keys before and after a query that it may see, and a block length.

Under every mask here, the keys that a query may see form one interval, and both of its ends move forward with the query.
A kernel can therefore decide from the integers alone which tiles are fully hidden, fully visible or partly visible, and
needs no mask in memory. `interval_mask` recognises the masks that models pass as matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from floatlens.attention.call import Call

FAR = 1 << 30  # no limit; positions stay below it, so that sums of two fit in 32 bits


@dataclass(frozen=True)
class IntervalMask:
    """Which keys a query may see. Positions are counted in keys: query i is at position `i + offset`.

    A query at position p may see key j if `start <= j`, `p - back <= j <= p + ahead` and j is not in a later block than
    p. Blocks are counted from `start`, the first position of the row that is not padding. Causal: ahead=0; sliding window
    of n keys with its own: back=n-1, ahead=0; block-causal: block=n; full: none of them.

    Parameters
    ----------
    back, ahead : int
        Number of keys before and after the query's own position that it may see.
    block : int
        Block length of block-causal attention: a query sees its own block and all earlier ones.
    offset : int or None
        Position of the first query. None: the queries are the last positions (`T - Q`).

    >>> IntervalMask(ahead=0).dense(queries=2, keys=3)[0].int()
    tensor([[1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    >>> IntervalMask(block=2).dense(queries=4, keys=4)[0].int()
    tensor([[1, 1, 0, 0],
            [1, 1, 0, 0],
            [1, 1, 1, 1],
            [1, 1, 1, 1]], dtype=torch.int32)
    """

    back: int = FAR
    ahead: int = FAR
    block: int = FAR
    offset: int | None = None

    def first_query(self, queries: int, keys: int) -> int:
        """Position of the first query."""
        return keys - queries if self.offset is None else self.offset

    def dense(self, queries: int, keys: int, start_B: torch.Tensor | None = None) -> torch.Tensor:
        """The dense mask: True where a query may see a key (B, Q, T). Rows of padding are False.

        For tests and for comparison with a mask that a model passes; the kernels never call it.
        """
        start = torch.zeros(1, dtype=torch.int64) if start_B is None else start_B.long()
        start_B11 = start[:, None, None]
        j = torch.arange(keys, device=start.device)[None, None, :]
        p = torch.arange(queries, device=start.device)[None, :, None] + self.first_query(queries, keys)
        same_or_earlier = (j - start_B11).div(self.block, rounding_mode="floor") <= (p - start_B11).div(
            self.block, rounding_mode="floor"
        )
        near = (j >= p - self.back) & (j <= p + self.ahead)
        return near & same_or_earlier & (j >= start_B11) & (p >= start_B11)


def interval_mask(call: Call) -> tuple[IntervalMask, torch.Tensor | None] | None:
    """The mask of a call as integers, and the first real position of each row; None if the mask has another form.

    A model passes its mask as a matrix. Its first and last rows suggest candidates; a candidate is accepted if its dense
    matrix equals the model's in every row that is not padding.
    """
    offset, Q, T = call.query_keys.start, call.Q, call.T
    start_B = None
    if call.layout.real_BN is not None:
        real_BT = call.layout.real_BN[:, call.first_key : call.length]
        start_B = (~real_BT).sum(1)
        if not bool((real_BT == (torch.arange(T, device=real_BT.device) >= start_B[:, None])).all()):
            return None  # padding between or after the tokens
    if call.mask is None:
        if start_B is not None and bool((start_B > 0).any()):
            return None  # padding that the queries may see
        return IntervalMask(ahead=0 if call.causal else FAR, offset=offset), None
    if call.mask.shape[1] > 1 or not is_plain(call.mask):
        return None
    visible = call.may_see(0, Q)
    assert visible is not None
    visible_BQT = visible.expand(call.B, 1, Q, T)[:, 0]
    padding_BQ1 = False if call.real_BQ is None else ~call.real_BQ[..., None]
    for suggestion in suggestions(visible_BQT, start_B, offset):
        dense_BQT = suggestion.dense(Q, T, start_B).to(visible_BQT.device)
        if bool(((dense_BQT == visible_BQT) | padding_BQ1).all()):
            return suggestion, start_B
    return None


def suggestions(visible_BQT: torch.Tensor, start_B: torch.Tensor | None, offset: int) -> list[IntervalMask]:
    """Candidates for a mask, read from the row of the batch with the least padding."""
    _, Q, T = visible_BQT.shape
    row = 0 if start_B is None else int(start_B.argmin())
    start = 0 if start_B is None else int(start_B[row])
    seen_QT = visible_BQT[row]
    first = max(0, start - offset)  # the first query that is not padding
    nearest, furthest = seen_QT.long().argmax(-1), T - 1 - seen_QT.flip(-1).long().argmax(-1)
    # The distances to both ends of each query's interval; their largest values are the limits, where there are any.
    position_Q = torch.arange(offset, offset + Q, device=seen_QT.device)
    back, ahead = int((position_Q - nearest)[first:].max()), int((furthest - position_Q)[first:].max())
    block = int(furthest[first]) + 1 - start  # a block model's first block ends where its first query's view ends
    found = [IntervalMask(offset=offset), IntervalMask(ahead=0, offset=offset)]
    if back >= 0 and ahead >= 0:
        found += [IntervalMask(back=back, ahead=ahead, offset=offset), IntervalMask(back=back, offset=offset)]
    found += [IntervalMask(block=size, offset=offset) for size in {block, ahead + 1} if size >= 1]
    return found


def is_plain(mask: torch.Tensor) -> bool:
    """Whether a mask only hides: boolean, or 0 where a key may be seen and very negative elsewhere."""
    if mask.dtype == torch.bool:
        return True
    return bool(((mask == 0) | (mask <= torch.finfo(mask.dtype).min / 2)).all())
