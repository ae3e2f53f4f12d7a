"""Watch: iterate over the steps of a run while it happens, and get its traces at the end.

The model is observed only during a forward pass: between two steps it may be used for something else, and a run may be
abandoned at any step. A run stops at NaN or inf in the model's outputs, with the step and the first layer that has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from floatlens.attention.attention import configs_of, observation_paused, observing
from floatlens.attention.session import Session
from floatlens.decode.step import Step
from floatlens.errors import FloatLensError, NotANumber
from floatlens.trace.recorder import Recorder
from floatlens.trace.trace import Trace

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class WatchedStep(NamedTuple):
    """One step and the results of its forward pass: `results[name][layer]` is (B, *dims of the statistic)."""

    step: Step
    results: dict[str, dict[int, torch.Tensor]]


class Watch(Iterator[WatchedStep]):
    """The result of `Lens.watch`: each `next` runs one step, and `traces()` returns the recorded traces.

    `alone`: no step depends on the results of an earlier one, so steps that are not kept need not be observed.
    `attention_layers`: the layers that compute attention; it is an error if one of them was not observed.

    >>> for step, results in lens.watch(["Where was Ada Lovelace born?"]):   # doctest: +SKIP
    ...     print(step.index, results["received"][0].mean(1).argmax(-1))     # the top anchor of layer 0
    """

    def __init__(
        self,
        model: PreTrainedModel,
        steps: Iterator[Step],
        session: Session,
        recorder: Recorder,
        finished: Callable[[], list[Trace]],
        *,
        alone: bool,
        attention_layers: Sequence[int],
    ) -> None:
        self.model, self.steps, self.session, self.recorder, self.finished = model, steps, session, recorder, finished
        self.alone, self.attention_layers = alone, attention_layers
        self.configs = configs_of(model)
        self.index, self.over = 0, False

    def __next__(self) -> WatchedStep:
        session = self.session
        # A step that does not depend on earlier ones need not be observed if it is not kept.
        session.paused = self.alone and self.index not in self.recorder.steps
        with observing(self.model, session, self.configs):
            step = next(self.steps, None)
        if step is None:
            self.over = True
            raise StopIteration
        if not session.paused:
            check_observed(self.model, session.unobserved(self.attention_layers))
        self.index = step.index + 1
        seen = WatchedStep(step, session.results)
        self.recorder.add(*seen)
        session.begin()
        return seen

    def traces(self) -> list[Trace]:
        """The traces, one per prompt, once all steps are done."""
        if not self.over:
            raise FloatLensError(
                f"the run is at step {self.index} and has not finished; call traces() after the last step"
            )
        return self.finished()


def check_observed(model: PreTrainedModel, missing: Sequence[int]) -> None:
    """Raise an error if the attention of some layers was not observed: the trace would be silently empty there."""
    if missing:
        raise FloatLensError(
            f"no attention was observed in layer {missing[0]} of {type(model).__name__}({len(missing)} layers in all): "
            f"its attention does not use transformers' attention interface, so it cannot be traced or changed"
        )


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
    bad: list[int] = []

    def watch(number: int) -> Any:
        def see(_: Any, __: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            if not bool(hidden.isfinite().all()):
                bad.append(number)

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
    return min(bad, default=None)


def layers_of(model: PreTrainedModel) -> torch.nn.ModuleList | list[torch.nn.Module]:
    """The model's layers: the longest list of modules that has no list around it."""
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    return max(lists, key=len, default=[])
