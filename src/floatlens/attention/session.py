"""The session that is active while a model runs: it receives every attention call and keeps the statistics.

The sampler defines which rows a step computes (`decode.network.ForwardPass`). A call becomes at most two: one with the
active rows, for the statistics of the step, and one with the rows that are now final, for statistics over all final rows.

The weights of a call are computed at once, layer by layer; what the default statistics need of them is small, and waits for
the other layers (`Group`): on small models and in cached decoding, the number of operations costs more than the arithmetic.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, get_args

import torch

from floatlens.attention.call import Call, Inputs, PositionLayout, visible
from floatlens.attention.exact import ExactMatrices
from floatlens.attention.hidden import HiddenStatistic
from floatlens.attention.kernel import take
from floatlens.attention.statistic import DEFAULT, MATRICES, NEEDS_GOLD, STATISTICS, Statistic
from floatlens.attention.stream import TILE, Space, Tile, can_fuse, row_sums, weigh
from floatlens.decode.network import ForwardPass, current_pass
from floatlens.errors import FloatLensError

Implementation = Literal["fused", "stream", "exact", "kernel"]
IMPLEMENTATIONS = get_args(Implementation)
Results = dict[str, dict[int, torch.Tensor]]  # by name and layer: (B, *dims of the statistic)
FIELDS = [field.name for field in fields(Inputs)]
ROOM = 1 << 26  # largest size in bytes of what waits in a group for the statistics of further layers


class Layer:
    """What is taken at a layer, of the rows of a step or of the final rows.

    together    statistics that need no more of a call than its sums and their `quantities`; they wait for other layers
    alone       statistics that see the whole call, at once
    """

    def __init__(self, kinds: dict[str, type[Statistic]]) -> None:
        self.names = list(kinds)
        self.together = {name: kind for name, kind in kinds.items() if kind.quantities is not None}
        self.alone = {name: kind() for name, kind in kinds.items() if kind.quantities is None}
        self.quantities = dict.fromkeys(one for kind in self.together.values() for one in kind.quantities or ())
        self.pooled = any(kind.pooled for kind in kinds.values())  # some read the sums over the weights
        self.tiled = [statistic for statistic in self.alone.values() if type(statistic).tile is not Statistic.tile]
        self.group: Group | None = None
        self.matrices = ExactMatrices()  # for implementation="exact"


class Group:
    """Layers whose calls are measured as one, with the rows of all of them, and the statistics that are taken of it."""

    def __init__(self, kinds: dict[str, type[Statistic]]) -> None:
        self.statistics = {name: kind() for name, kind in kinds.items()}
        self.size = 0  # bytes of the calls that formed the group
        self.first: Call | None = None  # the first call that waits, without queries, keys and values
        self.waiting: dict[int, dict[str, torch.Tensor]] = {}  # what was computed of each call, by layer
        self.keys: list[torch.Tensor] = []  # of calls that wait whole
        self.norm_BKT = torch.zeros(0, 0, 0)  # norms of the keys of a growing cache: old keys never change

    def add(self, call: Call) -> None:
        """Let a call wait for those of other layers."""
        if self.first is None:
            self.first = call.of_layers(call.layers)
        elif address(call.mask) != address(self.first.mask):
            layers = (*self.waiting, call.layer)
            raise RuntimeError(f"layers {layers} had the same mask when the sequence began, but differ now")
        self.waiting[call.layer] = call.computed
        if waits_whole(call):
            call.computed.update(queries=call.q_BHQD, values=call.v_BKTD[:, :, call.query_keys])
            self.keys.append(call.k_BKTD)

    def join(self) -> Call:
        """Merge the waiting calls into one, and empty the group."""
        assert self.first is not None
        calls, joined = list(self.waiting.values()), self.first.of_layers(tuple(self.waiting))
        for name in set.intersection(*map(set, calls)):
            joined.computed[name] = torch.cat([computed[name] for computed in calls])
        if self.keys:
            computed = joined.computed
            joined = replace(joined, q_BHQD=computed.pop("queries"), v_BKTD=computed.pop("values"))
            joined.computed.update(computed, key_norms=self._append_norms(joined))
        self.first, self.waiting, self.keys = None, {}, []
        return joined

    def _append_norms(self, call: Call) -> torch.Tensor:
        """Append the norms of the new keys of a joined call; return those of all its keys (B, K, T)."""
        T, new = call.T, call.Q
        if call.first_key > 0 or self.norm_BKT.shape[::2] != (call.B, T - new):
            new = T  # the first step of a cache, or a sliding window that moved
        added_BKT = torch.cat([keys_BKTD[:, :, T - new :] for keys_BKTD in self.keys]).float().norm(dim=-1)
        self.norm_BKT = added_BKT if new == T else torch.cat([self.norm_BKT, added_BKT], -1)
        return self.norm_BKT


def address(mask: torch.Tensor | None) -> int | None:
    """Where a mask lies in memory: layers share a mask if it is the same for them."""
    return None if mask is None else mask.data_ptr()


def waits_whole(call: Call) -> bool:
    """Whether the quantities of a call are computed for all layers together: one row whose scores are known."""
    return not call.starts_over and "scores" in call.computed


class Session:
    """Collects the statistics of the chosen layers over consecutive forward passes: `results[name][layer]` (B, *dims).

    layout           metadata of the batch's positions; None: no padding and no regions
    layers, matrix_layers  the layers to observe, and those whose full matrices are recorded; None for all
    implementation   as in docs/statistics.md; "fused" is "stream" where attention cannot be computed once
    tile             number of attention weights in a tile
    rows             observe only the first rows of the batch, because guidance adds a second copy of it
    room             maximum size in bytes of what waits for other layers
    cross_attention  every call is independent: its keys are not the positions of the sequence that is being written
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
        self.hidden = {name: kind() for name, kind in self.statistics.items() if issubclass(kind, HiddenStatistic)}
        self.layout = layout
        self.layers, self.matrix_layers = layers, matrix_layers if matrix_layers is not None else layers
        self.implementation, self.tile, self.rows, self.room = implementation, tile, rows, room
        self.cross_attention = cross_attention
        self.length: dict[int, int] = {}
        self.plans: dict[tuple[int, bool], Layer] = {}
        self.open: dict[Hashable, Group] = {}  # the groups that layers of this pass may join, by what they must share
        self.forward: ForwardPass | None = None
        self.called: dict[int, weakref.ref[torch.Tensor]] = {}
        self.first_call: Callable[[Inputs], None] | None = None  # shown the first call of a pass before it is observed
        self.paused = False
        self.trains = False  # gradients are taken of this pass: its output must be that of the model's own function
        self.observed: set[int] = set()  # layers whose attention was called
        self.bidirectional: bool | None = None  # whether queries may see later positions; None until that is known
        self.used_implementations: set[str] = set()  # "fused" and "kernel" leave some calls to "stream"
        self.space: Space = {}
        self.calls = 0
        self.memory: dict[Hashable, Any] = {}  # state that statistics keep from one step to the next
        self._results: Results = {name: {} for name in self.statistics}

    def begin(self) -> None:
        """Forget the results of the last step; results over final rows are kept until more rows are final."""
        self._finish()
        self._results = {name: self._results[name] if kind.final else {} for name, kind in self.statistics.items()}
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
        """Take the statistics of everything that waits for other layers."""
        for plan in self.plans.values():
            if plan.group is not None and plan.group.waiting:
                self._measure(plan.group)
        self.open.clear()
        for name, statistic in self.hidden.items():
            self._results[name].update(statistic.finish())

    def plan(self, layer: int, final: bool = False) -> Layer:
        """What to take at a layer: the statistics of the step, or those over final rows."""
        if (layer, final) not in self.plans:
            without = {*self.hidden, *(NEEDS_GOLD if self.layout is None or not self.layout.gold_BN.any() else ())}
            kinds = {}
            for name, kind in self.statistics.items():
                layers = self.matrix_layers if name in MATRICES else self.layers
                if name not in without and kind.final == final and (layers is None or layer in layers):
                    kinds[name] = kind
            self.plans[layer, final] = Layer(kinds)
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
        self._enter(forward)
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
        if plan.tiled or not plan.pooled or self.rows not in (None, inputs.B):
            return False
        return self._is_one_call(None if self.cross_attention else current_pass())

    def _is_one_call(self, forward: ForwardPass | None) -> bool:
        """Whether all rows of a pass are measured together: none is active without being final, or the reverse."""
        return forward is None or forward.active == forward.final or forward.is_whole

    @torch.no_grad()
    def see(self, layer: int, inputs: Inputs, *, compute: bool = False) -> torch.Tensor | None:
        """Take the statistics of one call. `compute`: also return the output (B, Q, H, D); only if `computes`."""
        self.observed.add(layer)
        if self.paused or not self.observes(layer):
            return None
        if self.bidirectional is None and inputs.Q == inputs.T > 1:
            seen = inputs.mask is None or bool(visible(inputs.mask).triu(1).any())
            self.bidirectional = not inputs.causal and seen
        rows = self.rows or inputs.B
        if rows < inputs.B:
            inputs = inputs.first_rows(rows)
        forward = None if self.cross_attention else current_pass()
        end = inputs.T if forward is None else forward.start + inputs.Q
        if end < inputs.T:  # a static cache: the rest is empty
            check_empty(layer, inputs.mask, end, inputs.T)
            inputs = inputs.first_keys(end)
        self._enter(forward)
        Q, T, mask = inputs.Q, inputs.T, inputs.mask
        mask = None if mask is None else mask[..., -T:]
        length = T if self.cross_attention else self._length(layer, Q, T)
        first = 0 if self.cross_attention else length - Q
        layout = self.layout
        if layout is None:
            real = None if mask is None else real_keys(mask, length)
            layout = PositionLayout.without_regions(rows, max(length, first + Q), inputs.device, real)
        whole = Call(
            **{name: getattr(inputs, name) for name in FIELDS} | {"mask": mask},
            layers=(layer,),
            layout=layout,
            length=length,
            first_query=first,
            starts_over=first == 0,
            tokens_BT=None if forward is None else forward.tokens_BT[:rows],
            memory=self.memory,
        )
        if self._is_one_call(forward):
            return self._take(whole, compute=compute)
        assert forward is not None
        if forward.active:
            self._take(whole.of_rows(forward.active, starts_over=True))
        if forward.final:
            call = whole.of_rows(forward.final, starts_over=forward.final.start == 0)
            stop = forward.final.stop
            self._take(replace(call.first_keys(stop - call.first_key), length=stop), final=True)
        return None

    @torch.no_grad()
    def see_hidden(self, layer: int, h_BQE: torch.Tensor) -> None:
        """Take the statistics of the states after a layer."""
        if self.paused or (self.layers is not None and layer not in self.layers):
            return
        h_B1QE = h_BQE[: self.rows or h_BQE.shape[0], None]
        forward, (B, _, Q, _) = current_pass(), h_B1QE.shape
        first = 0 if forward is None else forward.start
        layout = self.layout or PositionLayout.without_regions(B, first + Q, h_BQE.device)
        call = Call(
            *(h_B1QE, h_B1QE, h_B1QE, None, None, False),
            layers=(layer,),
            layout=layout,
            length=first + Q,
            first_query=first,
            starts_over=True,
            memory=self.memory,
        )
        rows = range(first, first + Q) if forward is None else forward.active
        for statistic in self.hidden.values():
            if not statistic.of_step:
                statistic.see(call)
            elif rows:
                statistic.see(call.of_rows(rows, starts_over=True))

    def _enter(self, forward: ForwardPass | None) -> None:
        """Finish the pass before, if there is one: a step may take several, for example if it also fills a cache."""
        if forward is not self.forward:
            self._finish()
            self.forward, self.called = forward, {}

    def _length(self, layer: int, queries: int, keys: int) -> int:
        """Number of positions so far."""
        if self.forward is not None:
            return max(self.forward.start + queries, keys)
        # In a user's own loop, fewer queries than keys, or one query after a longer call, means that a cache is extended.
        before = self.length.get(layer, 0) if queries < keys or queries == 1 else 0
        self.length[layer] = max(before + queries, keys)
        return self.length[layer]

    def _take(self, call: Call, *, final: bool = False, compute: bool = False) -> torch.Tensor | None:
        """Take the statistics of a call, or prepare them until other layers have joined; return its output if `compute`."""
        plan = self.plan(call.layer, final)
        if not plan.names:
            return None
        if self.implementation == "exact":
            self.used_implementations.add("exact")
            plan.matrices.see(call)
            for name in plan.names:
                self._results[name][call.layer] = self.statistics[name].exact(plan.matrices, call)
            return None
        for statistic in plan.alone.values():
            statistic.start(call)
        output = self._weigh(call, plan, compute)
        self._store(call, plan.alone)
        if not plan.together:
            return output
        if not waits_whole(call):
            for quantity in plan.quantities:
                call.once(quantity)
            if plan.pooled and "pooled" not in call.computed:
                sum_rows(call)
            call.computed.pop("rows", None)
        if call.starts_over or plan.group is None:
            plan.group = self._join(call, plan)
        elif call.layer in plan.group.waiting:  # of the pass before
            self._measure(plan.group)
        plan.group.add(call)
        return output

    def _weigh(self, call: Call, plan: Layer, compute: bool) -> torch.Tensor | None:
        """Compute the weights of a call, if any statistic needs them, and its output if `compute`."""
        if self.implementation == "kernel" and take(call, plan.pooled and not plan.tiled):
            self.used_implementations.add("kernel")
            return None
        self.used_implementations.add("fused" if compute else "stream")
        if not plan.pooled and not plan.tiled:
            return None

        def show(tile: Tile) -> None:
            for statistic in plan.tiled:
                statistic.tile(tile)

        # With the output, larger blocks: they are read more often than written (benchmarks.trace).
        size = 4 * self.tile if compute else self.tile
        return weigh(call, size, self.space, show=show if plan.tiled else None, output=compute)

    def _join(self, call: Call, plan: Layer) -> Group:
        """The group that a call joins: layers of different `kind` never share one, because their masks may differ later."""
        mask = None if call.mask is None else (address(call.mask), call.mask.shape)
        shapes = tuple(x.shape for x in (call.q_BHQD, call.k_BKTD, call.v_BKTD))
        kind = (*shapes, call.scale, call.causal, mask, call.device, *plan.together, bool(plan.tiled), call.kind)
        size = sum(x.nbytes for x in call.computed.values())
        group = self.open.get(kind)
        if group is not None and group.size + size > self.room:
            self._measure(group)
            group = None
        if group is None:
            group = self.open[kind] = Group(plan.together)
        group.size += size
        return group

    def _measure(self, group: Group) -> None:
        """Take the statistics of the calls in a group."""
        call = group.join()
        if "pooled" not in call.computed and "rows" in call.computed:
            sum_rows(call)
        for statistic in group.statistics.values():
            statistic.start(call)
        self._store(call, group.statistics)

    def _store(self, call: Call, statistics: dict[str, Statistic]) -> None:
        """Keep the results of a call."""
        for name, statistic in statistics.items():
            value = statistic.result(call)
            check_shape(name, statistic.dims, value, call)
            self._results[name].update(zip(call.layers, value.chunk(len(call.layers)), strict=True))


def sum_rows(call: Call) -> None:
    """Sum the rows that were kept over regions, and compute their entropy."""
    pooled_BHRT, spread_BH = row_sums(call, 0, call.computed["rows"])
    call.computed.update(pooled=pooled_BHRT, spread=spread_BH)


def check_shape(name: str, dims: Sequence[str], value: object, call: Call) -> None:
    """Raise an error if a result does not have the dims that its statistic declares."""
    known = {"head": call.H, "kv_head": call.K, "position": call.length, "key": call.length, "query": call.Q}
    wanted = [call.B, *(known.get(dim) for dim in dims)]
    shape = list(value.shape) if isinstance(value, torch.Tensor) else []
    if len(shape) != len(wanted) or any(size not in (one, None) for one, size in zip(shape, wanted, strict=True)):
        expected = ", ".join(f"{dim} {size or ''}".strip() for dim, size in zip(("batch", *dims), wanted, strict=True))
        found = f"the shape {shape}" if shape else type(value).__name__
        raise FloatLensError(f"statistic {name!r} returned {found}; expected a tensor ({expected})")


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
