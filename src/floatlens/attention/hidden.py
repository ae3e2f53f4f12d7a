"""The hook on hidden states: the output of each layer is shown to the session.

A hook is installed on every layer of the model, but only if a statistic needs it. A statistic of hidden states is a
subclass of `HiddenStatistic`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import torch

from floatlens.attention.call import Call
from floatlens.attention.statistic import Statistic
from floatlens.errors import FloatLensError
from floatlens.models.describe import shape

if TYPE_CHECKING:
    from floatlens.attention.session import Session


class HiddenStatistic(Statistic):
    """Base of the statistics of hidden states, one number per state: (B, length), from `of_state`.

    `see` is called for every layer, with a call of one head whose queries, keys and values are the states after the layer;
    then `finish` returns the results by layer. `call.memory["unembed"]` maps states to logits: the model's final norm and
    its output embeddings. With `of_step`, the states are those of the step's rows only.
    """

    dims: ClassVar[tuple[str, ...]] = ("position",)
    of_step: ClassVar[bool] = False
    of_state: ClassVar[Callable[[torch.Tensor], torch.Tensor]]

    def __init__(self) -> None:
        self.found: dict[int, torch.Tensor] = {}

    def see(self, call: Call) -> None:
        self.found[call.layer] = self.result(call)

    def finish(self) -> dict[int, torch.Tensor]:
        found, self.found = self.found, {}
        return found

    def result(self, call: Call) -> torch.Tensor:
        """One number per position so far; a cached position keeps the number of the step that computed it."""
        now_BQ, key = type(self).of_state(call.q[:, 0]), (self.name, call.layer)
        number_BT = now_BQ.new_full((call.B, call.length), torch.nan)
        before = call.memory.get(key)
        if before is not None and call.first_query and before.shape[0] == call.B:
            number_BT[:, : before.shape[1]] = before[:, : call.length]
        number_BT[:, call.query_positions] = now_BQ
        call.memory[key] = number_BT
        return number_BT


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

    def normed(h_BQE: torch.Tensor) -> torch.Tensor:
        return h_BQE if norm is None else norm(h_BQE)

    def unembed(h_BQE: torch.Tensor) -> torch.Tensor:
        nonlocal last
        last = None  # the logit lens itself calls the head
        return head(normed(h_BQE))

    def show(layer: int, output: Any) -> None:
        nonlocal last
        state = output[0] if isinstance(output, tuple) else output
        last = state if layer == len(layers) - 1 else None
        with torch.no_grad():
            session.see_hidden(layer, state)

    def check(_: Any, args: tuple[Any, ...]) -> None:
        """Raise an error if the input of the model's head is not its last hidden state after the final norm."""
        if last is None:
            return
        states = normed(last[:, -args[0].shape[1] :])
        if states.shape != args[0].shape or not torch.allclose(states, args[0], rtol=1e-2, atol=1e-3):
            raise FloatLensError(
                f"the head of {type(model).__name__} is more than a norm and its output embeddings, so the "
                f"logit lens does not apply; leave out lens_token"
            )

    session.memory["unembed"] = unembed
    with ExitStack() as stack:
        for number, module in enumerate(layers):
            hook = partial(lambda layer, _, __, output: show(layer, output), number)
            stack.callback(module.register_forward_hook(hook).remove)
        if by_lens:
            stack.callback(head.register_forward_pre_hook(check).remove)
        yield
