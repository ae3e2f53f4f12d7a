"""Sums of an attention call by the GPU kernel; calls that the kernel does not support are left to the stream path."""

from __future__ import annotations

import torch

from floatlens.attention.call import Call
from floatlens.attention.kernels.column_sums import LARGEST_HEAD, TYPES, available, column_sums
from floatlens.attention.kernels.interval_mask import IntervalMask
from floatlens.attention.kernels.regions import MOST, Regions


class KernelSums:
    """Runs the kernel on calls. Masks and regions are the same for all layers of a step, so they are converted once."""

    def __init__(self) -> None:
        self.masks: dict[object, tuple[object, tuple[IntervalMask, torch.Tensor | None] | None]] = {}
        self.regions: dict[object, tuple[object, Regions]] = {}

    def begin(self) -> None:
        """Forget the masks and regions of the last pass."""
        self.masks.clear()
        self.regions.clear()

    def take(self, call: Call) -> bool:
        """Compute the sums that the default statistics need and store them in the call; False if it is not supported."""
        if not is_supported(call):
            return False
        # Each entry keeps its tensor alive, so that no other tensor can get the same address.
        mask, real, rows = call.mask, call.layout.real_BN, (call.first_query, call.Q, call.T, call.length)
        key = (None if mask is None else mask.data_ptr(), id(real), call.causal, rows)
        if key not in self.masks:
            self.masks[key] = ((mask, real), interval_mask(call))
        found = self.masks[key][1]
        if found is None:
            return False
        place = (id(call.layout), rows[:2])
        if place not in self.regions:
            region_BQ = call.layout.region_BN[:, call.query_positions]
            self.regions[place] = (call.layout, Regions(region_BQ, call.layout.member_BRN.shape[1]))
        interval, start_B = found
        sums = column_sums(
            call.q_BHQD,
            call.k_BKTD,
            scaling=call.scaling,
            mask=interval,
            start_B=start_B,
            regions=self.regions[place][1],
            lse_BHQ=call.lse_BHQ,
        )
        call.has_passed(sums.pooled_BHRT, sums.spread_BH)
        count_BHT = sums.count_BT[:, None].expand(-1, call.H, -1).float()
        call.column_sums.update(qk=sums.qk_BHT, qk_norm=sums.qk_norm_BHT, qk_cos=sums.qk_cos_BHT, count=count_BHT)
        return True


def is_supported(call: Call) -> bool:
    """Whether the kernel supports the device, dtypes and sizes of a call; masks are checked separately."""
    q, k = call.q_BHQD, call.k_BKTD
    if call.implicit is not None or call.softcap is not None or call.bias is not None or call.sinks_H is not None:
        return False
    if q.dtype != k.dtype or q.dtype not in TYPES or q.shape[-1] > LARGEST_HEAD:
        return False
    return call.layout.member_BRN.shape[1] <= MOST and available(q.device)


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
        return (IntervalMask.causal(offset) if call.causal else IntervalMask.full(offset)), None
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
    found = [IntervalMask.full(offset), IntervalMask.causal(offset)]
    if back >= 0 and ahead >= 0:
        found += [IntervalMask(back=back, ahead=ahead, offset=offset), IntervalMask(back=back, offset=offset)]
    found += [IntervalMask.block_causal(size, offset) for size in {block, ahead + 1} if size >= 1]
    return found


def is_plain(mask: torch.Tensor) -> bool:
    """Whether a mask only hides: boolean, or 0 where a key may be seen and very negative elsewhere."""
    if mask.dtype == torch.bool:
        return True
    return bool(((mask == 0) | (mask <= torch.finfo(mask.dtype).min / 2)).all())
