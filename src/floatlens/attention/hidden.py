"""The hook on hidden states: the output of each layer is shown to the session.

A hook is installed on every layer of the model, but only if a statistic needs it. A statistic of hidden states is a
subclass of `HiddenStatistic`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import torch

from floatlens.attention.call import PositionLayout
from floatlens.attention.statistic import Statistic
from floatlens.errors import FloatLensError
from floatlens.models.describe import shape

if TYPE_CHECKING:
    from floatlens.attention.session import Session


@dataclass(frozen=True)
class Hidden:
    """The states after one layer: B batch, Q positions of the pass, E channels.

    h_BQE    the residual stream after the layer, before the final norm
    first    position of the first state
    length   number of positions so far
    active   positions that the step computes; empty for a pass that only fills a cache
    memory   state that statistics keep from one step to the next
    unembed  function from states to logits: the model's final norm and its output embeddings
    """

    layer: int
    h_BQE: torch.Tensor
    layout: PositionLayout
    first: int
    length: int
    active: range
    memory: dict[Hashable, Any]
    unembed: Callable[[torch.Tensor], torch.Tensor]

    @cached_property
    def h(self) -> torch.Tensor:
        """The states in float32."""
        return self.h_BQE.float()

    @property
    def writing(self) -> range:
        """The active positions whose rows may write the answer."""
        first, end = self.layout.writing_span
        return range(max(first, self.active.start), min(end, self.active.stop))

    def only_writing(self) -> Hidden:
        """A copy with the states of the writing rows alone, for later use."""
        rows = self.writing
        states = self.h_BQE[:, rows.start - self.first : max(rows.start, rows.stop) - self.first].clone()
        return replace(self, h_BQE=states, first=rows.start)


class HiddenStatistic(Statistic):
    """Base of the statistics of hidden states: `of` returns (B, *dims), with "position" as long as `hidden.length`.

    By default that is `of_state`, one number per state. With `together`, the states of the writing rows wait until all
    layers of a step are there, and go to `of_layers`.
    """

    dims: ClassVar[tuple[str, ...]] = ("position",)
    together: ClassVar[bool] = False
    of_state: ClassVar[Callable[[torch.Tensor], torch.Tensor]]

    def of(self, hidden: Hidden) -> torch.Tensor:
        """One number per position so far; a cached position keeps the number of the step that computed it."""
        now_BQ, key = type(self).of_state(hidden.h), (self.name, hidden.layer)
        before = hidden.memory.get(key)
        number_BT = now_BQ.new_full((now_BQ.shape[0], hidden.length), torch.nan)
        if before is not None and hidden.first and before.shape[0] == now_BQ.shape[0]:
            number_BT[:, : min(before.shape[1], hidden.length)] = before[:, : hidden.length]
        number_BT[:, hidden.first : hidden.first + now_BQ.shape[1]] = now_BQ
        hidden.memory[key] = number_BT
        return number_BT

    def of_layers(self, layers: Sequence[Hidden]) -> list[torch.Tensor]:
        """The results of several layers of one pass, for `together`."""
        raise NotImplementedError


_layers: WeakKeyDictionary[torch.nn.Module, tuple[torch.nn.ModuleList, torch.nn.Module | None]] = WeakKeyDictionary()


def layers_of(model: Any) -> tuple[torch.nn.ModuleList, torch.nn.Module | None]:
    """The layers of a model, and the norm after them, if there is one."""
    count = shape(model.config)["layers"] if hasattr(model, "config") else None
    lists = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and count in (None, len(module))
    }
    outer = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    if len(outer) != 1:
        raise FloatLensError(
            f"{type(model).__name__} has {len(outer)} lists of {count} layers; hidden states are read from a model "
            f"with one; leave out massive, lens_token and hidden_change (key_change and others need none)"
        )
    layers = lists[outer[0]]
    siblings = list(model.get_submodule(outer[0].rpartition(".")[0]).children())
    after = siblings[siblings.index(layers) + 1 :]
    return layers, next((module for module in after if "norm" in type(module).__name__.lower()), None)


@contextmanager
def hidden_observed(model: Any, session: Session) -> Iterator[None]:
    """Show the hidden states after every layer to `session`, if one of its statistics needs them."""
    if not session.hidden:
        yield
        return
    if model not in _layers:  # cached, because it is needed at every step
        _layers[model] = layers_of(model)
    layers, norm = _layers[model]
    head: Any = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    by_lens = "lens_token" in session.hidden
    if by_lens and head is None:
        raise FloatLensError(f"{type(model).__name__} has no output embeddings; leave out lens_token")
    last: torch.Tensor | None = None  # the last layer's states in the running pass
    busy = False  # while the logit lens itself calls the head

    def normed(h_BQE: torch.Tensor) -> torch.Tensor:
        return h_BQE if norm is None else norm(h_BQE)

    def unembed(h_BQE: torch.Tensor) -> torch.Tensor:
        nonlocal busy
        busy = True
        try:
            return head(normed(h_BQE))
        finally:
            busy = False

    def show(layer: int, output: Any) -> None:
        nonlocal last
        state = output[0] if isinstance(output, tuple) else output
        last = state if layer == len(layers) - 1 else None
        with torch.no_grad():
            session.see_hidden(layer, state, unembed)

    def check(_: Any, args: tuple[Any, ...]) -> None:
        """Raise an error if the input of the model's head is not its last hidden state after the final norm."""
        if busy or last is None:
            return
        states = normed(last[:, -args[0].shape[1] :])
        if states.shape != args[0].shape or not torch.allclose(states, args[0], rtol=1e-2, atol=1e-3):
            raise FloatLensError(
                f"the head of {type(model).__name__} is more than a norm and its output embeddings, so the "
                f"logit lens does not apply; leave out lens_token"
            )

    with ExitStack() as stack:
        for number, module in enumerate(layers):
            hook = partial(lambda layer, _, __, output: show(layer, output), number)
            stack.callback(module.register_forward_hook(hook).remove)
        if by_lens:
            stack.callback(head.register_forward_pre_hook(check).remove)
        yield
