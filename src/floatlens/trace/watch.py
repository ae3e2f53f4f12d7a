"""Watch: iterate over the steps of a run while it happens, and get its traces at the end.

The model is observed only during a forward pass: between two steps it may be used for something else, and a run may be
abandoned at any step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from floatlens.attention.attention import configs_of, observing
from floatlens.decode.step import Step
from floatlens.errors import FloatLensError
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
        recorder: Recorder,
        finished: Callable[[Recorder], list[Trace]],
        *,
        alone: bool,
        attention_layers: Sequence[int],
    ) -> None:
        self.model, self.steps, self.recorder, self.finished = model, steps, recorder, finished
        self.alone, self.attention_layers = alone, attention_layers
        self.configs = configs_of(model)
        self.index, self.over = 0, False

    def __next__(self) -> WatchedStep:
        session = self.recorder.session
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
        self.recorder.add(step)
        return seen

    def traces(self) -> list[Trace]:
        """The traces, one per prompt, once all steps are done."""
        if not self.over:
            raise FloatLensError(
                f"the run is at step {self.index} and has not finished; call traces() after the last step"
            )
        return self.finished(self.recorder)


def check_observed(model: PreTrainedModel, missing: Sequence[int]) -> None:
    """Raise an error if the attention of some layers was not observed: the trace would be silently empty there."""
    if missing:
        raise FloatLensError(
            f"no attention was observed in layer {missing[0]} of {type(model).__name__}({len(missing)} layers in all): "
            f"its attention does not use transformers' attention interface, so it cannot be traced or changed"
        )
