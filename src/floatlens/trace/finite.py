"""NaN or inf in a model's outputs: an error that names the step and the first layer that has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from floatlens.attention.attention import observation_paused
from floatlens.decode.step import Step
from floatlens.errors import NotANumber

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def check_finite(steps: Iterator[Step], model: PreTrainedModel, pads: Sequence[int]) -> Iterator[Step]:
    """Yield the steps, and raise an error if a committed token has no probability. `pads` is each row's padding.

    NaN in the logits gives every token of a row the probability NaN, so detecting it costs nothing. Only then is the row
    run again, to find the layer.
    """
    for step in steps:
        bad_BT = step.committed_BT & step.confidence_BT.isnan()
        if bool(bad_BT.any()):
            row = int(bad_BT.any(1).nonzero()[0, 0])
            layer = first_bad_layer(model, step.tokens_BT[row, pads[row] :])
            where = f"first in layer {layer}" if layer is not None else "in no single layer"
            raise NotANumber(f"the logits are not numbers at step {step.index}, {where}; try --dtype float32")
        yield step


@torch.no_grad()
def first_bad_layer(model: PreTrainedModel, ids_T: torch.Tensor) -> int | None:
    """The first layer with NaN or inf in its output; None if there is none, or if the row cannot be run alone."""
    found: list[int] = []

    def watch(number: int) -> Any:
        def see(_: Any, __: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            if not bool(hidden.isfinite().all()):
                found.append(number)

        return see

    hooks = [layer.register_forward_hook(watch(number)) for number, layer in enumerate(layers_of(model))]
    try:
        with observation_paused():
            model(input_ids=ids_T[None])
    except (RuntimeError, IndexError):  # an intervention that was made for the whole batch
        return None
    finally:
        for hook in hooks:
            hook.remove()
    return min(found, default=None)


def layers_of(model: PreTrainedModel) -> torch.nn.ModuleList | list[torch.nn.Module]:
    """The model's layers: the longest list of modules that has no list around it."""
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    return max(lists, key=len, default=[])
