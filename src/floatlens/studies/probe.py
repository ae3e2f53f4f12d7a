"""Probe: the numbers of `track` for a model while it trains, in one's own loop or in a Hugging Face `Trainer`.

The model is measured as it is, in eval mode and without gradients, and left as it was: weights, buffers, modes and random
numbers are those of a training without the probe.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import xarray as xr
from transformers import TrainerCallback

from floatlens.data.sample import Sample
from floatlens.errors import FloatLensError
from floatlens.evaluation.sources import open_sources
from floatlens.files import atomic_write
from floatlens.lens import Lens
from floatlens.models.checkpoint import Checkpoint
from floatlens.models.describe import check_supported
from floatlens.models.family import FAMILIES, family_of
from floatlens.options import Data
from floatlens.studies import track

FEW = 4  # texts of a data set that is named instead of given


def probe(
    model: torch.nn.Module,
    tokenizer: Any,
    prompts: Sequence[str] | str,
    *,
    family: str | None = None,
    out: str | Path | None = None,
) -> Probe:
    """Measure a model in training whenever you call `log`: `watch = fl.probe(model, tokenizer, prompts); watch.log(step)`.

    Parameters
    ----------
    model: a transformers model, also with a peft adapter, in any mode and on any device.
    prompts: a few texts of at least 168 tokens together; a text that is shorter is continued by the next. Or the name of a
        data set, such as "prose", of which the first 4 are read.
    family: needed for a causal architecture that was made bidirectional, which its config does not tell: "a2d" if row j
        writes token j, "a2d-shifted" if row j - 1 still does.
    out: file for the numbers (parquet), written at every `log`; `floatlens.studies.track.open_track` reads it.
    """
    return Probe(live_lens(model, tokenizer, family), prompts, Path(out) if out is not None else None)


class Probe:
    """Made by `probe`. `seconds` is the time spent in `log` so far, and `last` that of the last call."""

    def __init__(self, lens: Lens, prompts: Sequence[str] | str, out: Path | None = None) -> None:
        samples = read_prompts(prompts)
        self.lens, self.out, self.texts = lens, out, track.token_samples(lens.tokenizer, samples)
        self.seconds = self.last = 0.0
        self.rows: list[pd.DataFrame] = []

    def log(self, step: int) -> dict[str, float]:
        """Measure the model as it is now; return the numbers of `summarise` by names such as attention/sink_share."""
        began = time.perf_counter()
        with untouched(self.lens.model):
            read = [track.measure(self.lens, ids)[0] for ids in self.texts.values()]
        self.rows.append(track.rows_of(f"checkpoint-{step}", self.lens.family.kind, read))
        if self.out is not None:
            with atomic_write(self.out) as temporary:
                track.as_frame(self.data).to_parquet(temporary, index=False)
        row = track.summarise(track.as_dataset(self.rows[-1])).iloc[0]
        self.last = row["seconds"] = time.perf_counter() - began
        self.seconds += self.last
        return {f"attention/{name}": float(row[name]) for name in (*track.VARIABLES, "nats", "seconds")}

    @property
    def data(self) -> xr.Dataset:
        """The Dataset of all steps so far, as `fl.track` returns it."""
        return track.as_dataset(pd.concat(self.rows, ignore_index=True))


def read_prompts(prompts: Sequence[str] | str) -> list[Sample]:
    """The texts as samples; a name is that of a data set."""
    if isinstance(prompts, str):
        return [s for source in open_sources([prompts], Data(limit=FEW), ()) for s in source.samples()]
    if not any(text.strip() for text in prompts):
        raise FloatLensError("there is no text to read; pass some prompts, or the name of a data set such as 'prose'")
    return [Sample(f"prompt-{place}", text, [], continuation=True) for place, text in enumerate(prompts)]


def live_lens(model: Any, tokenizer: Any, family: str | None = None) -> Lens:
    """The lens of a model that is in memory; nothing is loaded, copied or changed."""
    while (inner := getattr(model, "module", None) or getattr(model, "_orig_mod", None)) is not None:
        model = inner  # of data parallelism, of torch.compile
    if hasattr(model, "get_base_model"):  # of peft, whose layers stay inside it
        model = model.get_base_model()
    config = model.config
    raw = config.to_dict()
    chosen = FAMILIES[family] if family else family_of(raw)
    both_ways = getattr(config, "is_causal", None) is False
    if chosen.head == "causal" and chosen.attention in ("causal", "bidirectional"):
        if both_ways and chosen.attention == "causal":
            raise FloatLensError(
                "the config of the model sets is_causal=False, so it attends in both directions; pass family='a2d', or "
                "'a2d-shifted' if row j - 1 writes token j"
            )
        if not both_ways and chosen.attention == "bidirectional" and getattr(config, "is_causal", True):
            raise FloatLensError(
                f"family {chosen.name!r} attends in both directions, but the model is causal; set "
                f"model.config.is_causal = False, or leave the family out"
            )
    name = str(getattr(config, "_name_or_path", "")) or type(model).__name__
    check_supported(name, config, chosen)
    return track.check_tracked(Checkpoint(name, "", raw, chosen), model=model, tokenizer=tokenizer)


@contextmanager
def untouched(model: torch.nn.Module) -> Iterator[None]:
    """Run a block in eval mode; modes and random numbers are afterwards as before."""
    modes = [(module, module.training) for module in model.modules()]
    device = next(model.parameters()).device
    model.eval()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


class AttentionCallback(TrainerCallback):
    """Measure attention while a `Trainer` trains: before the first step, and then every `every` steps.

    The numbers are appended to the trainer's log history and passed to `log`; `callback.log = trainer.log` sends them to all
    its loggers. The Dataset is written to `track.parquet` in the trainer's output folder.

    Parameters
    ----------
    prompts, tokenizer, family: as in `probe`; the tokenizer is by default the trainer's `processing_class`.
    every: steps between two measurements.
    most: largest share of the training time: a measurement that would exceed it waits for the next turn.
    log: called with the numbers by name, such as {"attention/sink_share": 0.4}.

    >>> Trainer(model, ..., callbacks=[fl.AttentionCallback(prompts, every=500)])        # doctest: +SKIP
    """

    def __init__(
        self,
        prompts: Sequence[str] | str,
        every: int = 500,
        *,
        tokenizer: Any = None,
        family: str | None = None,
        most: float = 0.01,
        log: Callable[[dict[str, float]], Any] | None = None,
    ) -> None:
        if every < 1 or not 0 < most <= 1:
            raise FloatLensError(f"every must be 1 or more and most between 0 and 1, got {every} and {most}")
        read_prompts(prompts)
        self.prompts, self.every, self.tokenizer, self.family = prompts, every, tokenizer, family
        self.most, self.log = most, log
        self.watch: Probe | None = None
        self.began, self.waited = 0.0, False

    def on_train_begin(self, args: Any, state: Any, control: Any, **trainer: Any) -> None:
        """Measure the model before the first step; a training that is resumed keeps its earlier numbers."""
        if not state.is_world_process_zero:
            return
        tokenizer = self.tokenizer or trainer.get("processing_class")
        if tokenizer is None:
            raise FloatLensError("the trainer has no tokenizer; pass it to AttentionCallback(..., tokenizer=...)")
        out = Path(args.output_dir) / track.FILE
        self.watch = probe(trainer["model"], tokenizer, self.prompts, family=self.family, out=out)
        if state.global_step and out.exists():
            before = track.as_frame(track.open_track(out))
            self.watch.rows = [before[before["step"] < state.global_step]]
        self.began = time.perf_counter()
        self._measure(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **trainer: Any) -> None:
        """Measure the model, if it is its turn and the cost allows it."""
        if self.watch is None or state.global_step % self.every:
            return
        took = self.watch.last
        if self.watch.seconds + took <= self.most * (time.perf_counter() - self.began + took):
            self._measure(state)
        elif not self.waited:
            self.waited = True
            warnings.warn(
                f"attention is measured less often than every {self.every} steps: a measurement takes "
                f"{took:.1f} s, and all of them at most {self.most:.0%} of the training time (most=)",
                stacklevel=2,
            )

    def _measure(self, state: Any) -> None:
        assert self.watch is not None
        try:
            numbers = self.watch.log(state.global_step)
        except FloatLensError as error:  # such as NaN in the outputs: that is for the training to report
            warnings.warn(f"attention was not measured at step {state.global_step}: {error}", stacklevel=2)
            return
        if self.log is not None:
            self.log(numbers)
        else:
            state.log_history.append({**numbers, "step": state.global_step})
