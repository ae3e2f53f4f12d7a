"""The session that is active while a model runs: it receives every attention call and keeps the statistics.

The sampler defines which rows a step computes (`decode.network.ForwardPass`). A call becomes at most two: one with the
active rows, for the statistics of the step, and one with the rows that are now final, for statistics over all final rows.

The weights of a call are computed at once, layer by layer; what the default statistics need of them is small, and waits for
the other layers (`Group`): on small models and in cached decoding, the number of operations costs more than the arithmetic.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import torch

from floatlens.attention.call import Call, Inputs, PositionLayout, unknown, visible
from floatlens.attention.exact import ExactMatrices
from floatlens.attention.hidden import Hidden, HiddenStatistic
from floatlens.attention.kernel import take
from floatlens.attention.statistic import DEFAULT, MATRICES, NEEDS_GOLD, STATISTICS, Statistic
from floatlens.attention.stream import TILE, Tile, Workspace, can_fuse, row_sums, weigh
from floatlens.decode.network import ForwardPass, current_pass
from floatlens.errors import FloatLensError

Implementation = Literal["fused", "stream", "exact", "kernel"]
IMPLEMENTATIONS = get_args(Implementation)
Results = dict[str, dict[int, torch.Tensor]]  # by name and layer: (B, *dims of the statistic)
Key = tuple[int, bool]  # layer, final rows (True) or active rows (False)
ROOM = 1 << 26  # largest size in bytes of what waits in a group for the statistics of further layers


@dataclass(frozen=True)
class LayerPlan:
    """The statistics that are taken at a layer.

    together    those that need no more of a call than its `quantities`, which wait for other layers
    alone       those that see the whole call, at once
    quantities  all that the former need of a call besides its sums
    pooled      whether any reads the sums over the weights
    tiled       whether any sees the weights themselves
    """

    together: dict[str, type[Statistic]]
    alone: dict[str, type[Statistic]]

    @property
    def names(self) -> list[str]:
        """Names of the statistics."""
        return [*self.together, *self.alone]

    @cached_property
    def quantities(self) -> list[Callable[[Call], torch.Tensor]]:
        return [*dict.fromkeys(one for kind in self.together.values() for one in kind.quantities or ())]

    @cached_property
    def pooled(self) -> bool:
        return any(kind.pooled for kind in (*self.together.values(), *self.alone.values()))

    @cached_property
    def tiled(self) -> bool:
        return any(kind.tiled for kind in self.alone.values())


class Group:
    """Layers whose calls are measured as one, with the rows of all of them, and the statistics that are taken of it."""

    def __init__(self, statistics: dict[str, type[Statistic]]) -> None:
        self.observers = {name: kind() for name, kind in statistics.items()}
        self.layers: list[int] = []
        self.size = 0
        self.closed = False  # True: no further layer joins
        self.waiting: list[Call] = []
        self.norm_BKT = torch.zeros(0, 0, 0)  # norms of the keys of a growing cache: old keys never change

    def join(self) -> Call:
        """Merge the waiting calls into one, and empty the group."""
        calls, self.waiting = self.waiting, []
        first = calls[0]
        if len({None if call.mask is None else call.mask.data_ptr() for call in calls}) > 1:
            raise RuntimeError(f"layers {self.layers} had the same mask when the sequence began, but differ now")
        vectors: dict[str, Any] = unknown(first, sum(call.B for call in calls))
        if waits_whole(first):
            vectors["q_BHQD"] = torch.cat([call.q_BHQD for call in calls])
            vectors["v_BKTD"] = torch.cat([call.v_BKTD[:, :, call.query_keys] for call in calls])
            vectors["norm_BKT"] = self._append_norms(calls)
        layers = tuple(layer for call in calls for layer in call.layers)
        joined = replace(first, layers=layers, layout=first.layout.of_layers(len(calls)), **vectors)
        for name in set.intersection(*(set(call.computed) for call in calls)):
            joined.computed[name] = torch.cat([call.computed[name] for call in calls])
        return joined

    def _append_norms(self, calls: list[Call]) -> torch.Tensor:
        """Append the norms of the calls' new keys; return those of all keys (B, K, T), in the order of the calls."""
        T, new, rows = calls[0].T, calls[0].Q, sum(call.B for call in calls)
        if calls[0].first_key > 0 or self.norm_BKT.shape[::2] != (rows, T - new):
            new = T  # the first step of a cache, or a sliding window that moved
        added_BKT = torch.cat([call.k_BKTD[:, :, T - new :] for call in calls]).float().norm(dim=-1)
        self.norm_BKT = added_BKT if new == T else torch.cat([self.norm_BKT, added_BKT], -1)
        return self.norm_BKT


def waits_whole(call: Call) -> bool:
    """Whether the quantities of a call are computed for all layers together: one row whose scores are known."""
    return not call.starts_over and "scores" in call.computed


class Session:
    """Collects the statistics of the chosen layers over consecutive forward passes.

    After a pass `results[name][layer]` is (B, *dims).

    Parameters
    ----------
    statistics
        Names of statistics.
    layout
        Metadata of the batch's positions: padding, regions, gold evidence. None: no padding and no regions.
    layers, matrix_layers
        The layers to observe, and those whose full matrices are recorded; None for all.
    implementation
        "fused": attention is computed once, for the output and the statistics, where that is possible (float32 on a
        CPU), else as "stream"; "stream": the model computes the output, bit for bit, and a second pass computes the
        statistics in tiles; "exact": from full matrices, the slow reference; "kernel": the second pass is the GPU kernel.
    tile
        Number of attention weights in a tile.
    rows
        Observe only the first `rows` rows of the batch, because guidance adds a second copy of it.
    room
        Maximum size in bytes of what waits for other layers.
    cross_attention
        Every call is independent: its keys are not the positions of the sequence that is being written.
    """

    def __init__(
        self,
        statistics: Sequence[str] = DEFAULT,
        *,
        layout: PositionLayout | None = None,
        layers: Collection[int] | None = None,
        matrix_layers: Collection[int] | None = None,
        implementation: Implementation = "fused",
        tile: int = TILE,
        rows: int | None = None,
        room: int = ROOM,
        cross_attention: bool = False,
    ) -> None:
        self.statistics = {name: STATISTICS[name] for name in statistics}
        self.layout = layout
        self.layers, self.matrix_layers = layers, matrix_layers if matrix_layers is not None else layers
        self.implementation, self.tile, self.rows, self.cross_attention = implementation, tile, rows, cross_attention
        self.matrices: dict[Key, ExactMatrices] = {}
        self.length: dict[int, int] = {}
        self.groups: dict[Key, Group] = {}
        self.alone: dict[Key, dict[str, Statistic]] = {}
        self.plans: dict[Key, LayerPlan] = {}
        self.open: dict[Hashable, Group] = {}
        self.states: dict[str, dict[int, Hidden]] = {}  # hidden states that wait for the other layers
        self.forward: ForwardPass | None = None
        self.passing: ForwardPass | None = None
        self.called: dict[int, weakref.ref[torch.Tensor]] = {}
        self.first_call: Callable[[Inputs], None] | None = None  # shown the first call of a pass before it is observed
        self.paused = False
        self.trains = False  # gradients are taken of this pass: its output must be that of the model's own function
        self.observed: set[int] = set()  # layers whose attention was called
        self.bidirectional: bool | None = None  # whether queries may see later positions; None until that is known
        self.used_implementations: set[str] = set()  # "fused" and "kernel" leave some calls to "stream"
        self.room = room
        self.space = Workspace()
        self._results: Results = {name: {} for name in self.statistics}
        self.calls = 0
        self.memory: dict[Hashable, Any] = {}  # state that statistics keep from one step to the next

    def begin(self) -> None:
        """Forget the results of the last step; results over final rows are kept until more rows are final."""
        self._finish()
        self._results = {
            name: self._results[name] if statistic.final else {} for name, statistic in self.statistics.items()
        }
        self.calls = 0

    @property
    def results(self) -> Results:
        """The results of the last forward pass."""
        self._finish()
        return self._results

    @property
    def used(self) -> str:
        """The implementations that were used so far, such as "fused"; that which was asked for before any call."""
        return ", ".join(name for name in IMPLEMENTATIONS if name in self.used_implementations) or self.implementation

    @torch.no_grad()
    def _finish(self) -> None:
        """Take the statistics of all waiting calls and close their groups."""
        for group in self.open.values():
            group.closed = True
            if group.waiting:
                self._measure(group)
        self.open.clear()
        self._measure_states()

    def plan(self, layer: int, final: bool = False) -> LayerPlan:
        """What to take at a layer: the statistics of the step, or those over final rows."""
        if (layer, final) not in self.plans:
            without = {*self.hidden, *(NEEDS_GOLD if self.layout is None or not self.layout.has_gold else ())}
            chosen = {
                name: kind
                for name, kind in self.statistics.items()
                if name not in without
                and kind.final == final
                and ((layers := self.matrix_layers if name in MATRICES else self.layers) is None or layer in layers)
            }
            batched = {name: kind for name, kind in chosen.items() if kind.quantities is not None}
            rest = {name: kind for name, kind in chosen.items() if name not in batched}
            self.plans[layer, final] = LayerPlan(batched, rest)
        return self.plans[layer, final]

    def observes(self, layer: int) -> bool:
        """Whether anything is taken at a layer."""
        return bool(self.plan(layer).names or self.plan(layer, final=True).names)

    @property
    def compares(self) -> bool:
        """Whether any statistic compares each step with the previous one."""
        return any(statistic.compares for statistic in self.statistics.values())

    def unobserved(self, layers: Sequence[int]) -> list[int]:
        """The layers among these that should be observed but were never called."""
        return [layer for layer in layers if self.observes(layer) and layer not in self.observed]

    def repeats(self, layer: int, query: torch.Tensor) -> bool:
        """Whether a layer's attention is computed again in the same pass, with the same queries but other values.

        A layer that attends twice in a pass with different queries has no single attention; this raises an error.
        """
        forward = None if self.cross_attention else current_pass()
        if forward is None:
            return False
        if forward is not self.passing:
            self.passing, self.called = forward, {}
        before = self.called.get(layer)
        self.called[layer] = weakref.ref(query)
        if before is not None and before() is not query:
            raise FloatLensError(
                f"layer {layer} computes attention several times in a forward pass, with different queries, so it "
                f"has no single attention to observe"
            )
        return before is not None

    def computes(self, layer: int, inputs: Inputs) -> bool:
        """Whether `see` can compute the output of a call itself, from the weights that the statistics use."""
        if self.implementation != "fused" or self.paused or self.trains or not can_fuse(inputs):
            return False
        plan = self.plan(layer)
        if plan.tiled or not plan.pooled or self.rows not in (None, inputs.query.shape[0]):
            return False
        forward = None if self.cross_attention else current_pass()
        return forward is None or forward.active == forward.final or forward.is_whole

    @torch.no_grad()
    def see(
        self, layer: int, inputs: Inputs, *, lse: torch.Tensor | None = None, compute: bool = False
    ) -> torch.Tensor | None:
        """Take the statistics of one call. `lse` (B, H, Q) is the log of each row's sum, if the kernel returned it.

        `compute`: also return the output (B, Q, H, D); only if `computes` returned True.
        """
        self.observed.add(layer)
        if self.paused or not self.observes(layer):
            return None
        q, k, v, mask, bias = inputs.query, inputs.key, inputs.value, inputs.mask, inputs.bias
        if self.bidirectional is None and q.shape[2] == k.shape[2] > 1:
            self.bidirectional = not inputs.causal and (mask is None or bool(visible(mask).triu(1).any()))
        rows = self.rows or q.shape[0]
        if rows < q.shape[0]:
            q, k, v, lse = q[:rows], k[:rows], v[:rows], None if lse is None else lse[:rows]
            mask, bias = (x if x is None or x.shape[0] == 1 else x[:rows] for x in (mask, bias))
        forward = None if self.cross_attention else current_pass()
        end = k.shape[2] if forward is None else forward.start + q.shape[2]
        if k.shape[2] > end:  # a static cache: the rest is empty
            check_empty(layer, mask, end, k.shape[2])
            k, v = k[:, :, :end], v[:, :, :end]
            mask, bias = (None if x is None else x[..., :end] for x in (mask, bias))
        if mask is not None:
            mask = mask[..., -k.shape[2] :]
        self._enter(forward)
        length = k.shape[2] if self.cross_attention else self._length(layer, q.shape[2], k.shape[2])
        layout = self.layout
        if layout is None:
            real = None if mask is None else real_keys(mask, length)
            count = max(length, q.shape[2]) if self.cross_attention else length
            layout = PositionLayout.without_regions(rows, count, q.device, real)
        scale = q.shape[-1] ** -0.5 if inputs.scaling is None else inputs.scaling
        first = 0 if self.cross_attention else length - q.shape[2]
        tokens = None if forward is None else forward.tokens_BT[:rows]
        whole = Call(
            (layer,), q, k, v, layout, length, scale, first, first == 0, mask, inputs.causal, inputs.softcap, bias,
            inputs.sinks, inputs.own_rows, lse, tokens_BT=tokens, memory=self.memory,
        )  # fmt: skip
        if self.cross_attention or forward is None or forward.active == forward.final or forward.is_whole:
            return self._take(whole, inputs.kind, compute=compute)
        if forward.active:
            self._take(whole.of_rows(forward.active, starts_over=True), inputs.kind)
        if forward.final:
            call = whole.of_rows(forward.final, starts_over=forward.final.start == 0)
            self._take(call.until(forward.final.stop), inputs.kind, final=True)
        return None

    @cached_property
    def hidden(self) -> list[str]:
        """Names of the requested statistics of hidden states."""
        return [name for name, statistic in self.statistics.items() if issubclass(statistic, HiddenStatistic)]

    @torch.no_grad()
    def see_hidden(self, layer: int, h_BQE: torch.Tensor, unembed: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Take the statistics of the states after a layer."""
        if self.paused or (self.layers is not None and layer not in self.layers):
            return
        h_BQE = h_BQE[: self.rows or h_BQE.shape[0]]
        forward, (B, Q) = current_pass(), h_BQE.shape[:2]
        first = 0 if forward is None else forward.start
        layout = self.layout or PositionLayout.without_regions(B, first + Q, h_BQE.device)
        active = range(first, first + Q) if forward is None else forward.active
        hidden = Hidden(layer, h_BQE, layout, first, first + Q, active, self.memory, unembed)
        for name in self.hidden:
            statistic = self.statistics[name]()
            assert isinstance(statistic, HiddenStatistic)
            if not len(active) and statistic.compares:
                continue
            if statistic.together:
                self.states.setdefault(name, {})[layer] = hidden.only_writing()
            else:
                self._results[name][layer] = statistic.of(hidden)

    @torch.no_grad()
    def _measure_states(self) -> None:
        """Take the statistics of hidden states that were waiting for all layers."""
        for name, layers in self.states.items():
            statistic = self.statistics[name]()
            assert isinstance(statistic, HiddenStatistic)
            self._results[name].update(zip(layers, statistic.of_layers(list(layers.values())), strict=True))
        self.states.clear()

    def _enter(self, forward: ForwardPass | None) -> None:
        """Finish the pass before, if there is one: a step may take several, for example if it also fills a cache."""
        if forward is not self.forward:
            self._finish()
            self.forward = forward

    def _length(self, layer: int, queries: int, keys: int) -> int:
        """Number of positions so far."""
        if self.forward is not None:
            return max(self.forward.start + queries, keys)
        # In a user's own loop, fewer queries than keys, or one query after a longer call, means that a cache is extended.
        before = self.length.get(layer, 0) if queries < keys or queries == 1 else 0
        self.length[layer] = max(before + queries, keys)
        return self.length[layer]

    def _take(self, call: Call, kind: Hashable, *, final: bool = False, compute: bool = False) -> torch.Tensor | None:
        """Take the statistics of a call, or prepare them until other layers have joined; return its output if `compute`.

        Layers of different `kind` are never measured together, because their windows may differ at a later step.
        """
        key = (call.layer, final)
        plan = self.plan(*key)
        if not plan.names:
            return None
        if self.implementation == "exact":
            self.used_implementations.add("exact")
            matrices = self.matrices.setdefault(key, ExactMatrices())
            matrices.see(call)
            for name in plan.names:
                self._results[name][call.layer] = self.statistics[name].exact(matrices, call)
            return None
        if key not in self.alone:
            self.alone[key] = {name: statistic() for name, statistic in plan.alone.items()}
        alone = self.alone[key]
        for observer in alone.values():
            observer.start(call)
        output = self._weigh(call, plan, [observer for observer in alone.values() if observer.tiled], compute)
        self._store(call, alone)
        if not plan.together:
            return output
        if not waits_whole(call):
            for quantity in plan.quantities:
                call.once(quantity)
            if plan.pooled and not call.has_sums:
                sum_rows(call)
            call = call.without_vectors()
        if call.starts_over or key not in self.groups:
            self._join(call, plan, kind, final)
        group = self.groups[key]
        if len(group.waiting) == len(group.layers):  # of the pass before
            self._measure(group)
        group.waiting.append(call)
        if group.closed and len(group.waiting) == len(group.layers):
            self._measure(group)
        return output

    def _weigh(self, call: Call, plan: LayerPlan, tiled: list[Statistic], compute: bool) -> torch.Tensor | None:
        """Compute the weights of a call, if any statistic needs them, and its output if `compute`."""
        if self.implementation == "kernel" and take(call, plan.pooled and not tiled):
            self.used_implementations.add("kernel")
            return None
        self.used_implementations.add("fused" if compute else "stream")
        if not plan.pooled and not tiled:
            return None

        def show(tile: Tile) -> None:
            for observer in tiled:
                observer.tile(tile)

        # With the output, larger blocks: they are read more often than written (benchmarks.trace).
        size = 4 * self.tile if compute else self.tile
        return weigh(call, size, self.space, show=show if tiled else None, output=compute)

    def _join(self, call: Call, plan: LayerPlan, kind: Hashable, final: bool) -> None:
        """Add a call to the open group of its kind, or to a new group."""
        mask = None if call.mask is None else (call.mask.data_ptr(), call.mask.shape)
        shapes = tuple(x.shape for x in (call.q_BHQD, call.k_BKTD, call.v_BKTD))
        same_kind = (
            *shapes,
            call.scaling,
            call.causal,
            mask,
            call.q_BHQD.device,
            tuple(plan.together),
            plan.tiled,
            kind,
        )
        group = self.open.get(same_kind)
        bytes_kept = sum(x.nbytes for x in call.computed.values())
        if group is None or group.size + bytes_kept > self.room:
            if group is not None:
                group.closed = True
                self._measure(group)
            group = self.open[same_kind] = Group(plan.together)
        group.layers.append(call.layer)
        group.size += bytes_kept
        if group.size > self.room:
            group.closed = True
            del self.open[same_kind]
        self.groups[call.layer, final] = group

    def _measure(self, group: Group) -> None:
        """Take the statistics of the calls in a group."""
        call = group.join()
        if not call.has_sums and "rows" in call.computed:
            sum_rows(call)
        for observer in group.observers.values():
            observer.start(call)
        self._store(call, group.observers)

    def _store(self, call: Call, observers: dict[str, Statistic]) -> None:
        """Keep the results of a call."""
        rows = call.B // len(call.layers)
        for name, observer in observers.items():
            value = observer.result(call)
            check_shape(name, self.statistics[name].dims, value, call)
            for place, layer in enumerate(call.layers):
                self._results[name][layer] = value[place * rows : (place + 1) * rows]


def sum_rows(call: Call) -> None:
    """Sum the rows that were kept over regions, and compute their entropy."""
    pooled_BHRT, spread_BH = row_sums(call, 0, call.computed["rows"])
    call.computed.update(pooled=pooled_BHRT, spread=spread_BH)


def check_shape(name: str, dims: Sequence[str], value: object, call: Call) -> None:
    """Raise an error if a result does not have the dims that its statistic declares."""
    if not isinstance(value, torch.Tensor):
        raise FloatLensError(f"statistic {name!r} returned {type(value).__name__}; expected a tensor (batch, *dims)")
    shape = tuple(value.shape)
    if len(shape) != 1 + len(dims):
        raise FloatLensError(
            f"statistic {name!r} returned the shape {shape}, which has {len(shape) - 1} dims after the batch; "
            f"it declares {len(dims)}: {', '.join(dims) or 'none'}"
        )
    known = {"head": call.H, "kv_head": call.K, "position": call.length, "key": call.length, "query": call.Q}
    for dim, size, wanted in zip(("batch", *dims), shape, (call.B, *(known.get(dim) for dim in dims)), strict=True):
        if wanted is not None and size != wanted:
            raise FloatLensError(
                f"statistic {name!r} returned the shape {shape}: its dim {dim!r} has {size}, expected {wanted}"
            )


def check_empty(layer: int, mask: torch.Tensor | None, end: int, keys: int) -> None:
    """Raise an error for visible keys after the positions so far; hidden ones are the empty part of a static cache."""
    if mask is None or bool(visible(mask[..., end:]).any()):
        raise FloatLensError(
            f"layer {layer} attends to {keys} keys at {end} positions: some of its keys are not positions of the sequence, "
            f"so received attention is not defined"
        )


def real_keys(mask: torch.Tensor, length: int) -> torch.Tensor | None:
    """Keys that some query may see (B or 1, length); other keys are padding. None if all keys are visible.

    >>> real_keys(torch.tensor([[[[True, False]]]]), 2)
    tensor([[ True, False]])
    """
    real_BT = visible(mask).any(2).any(1)
    if bool(real_BT.all()):
        return None
    return torch.nn.functional.pad(real_BT, (length - real_BT.shape[1], 0), value=True)
