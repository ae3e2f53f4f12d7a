"""A live run as messages: `start`, one `step` per forward pass as it happens, and `done`; and the thread that runs models.

Observing and intervening change a model's config while a pass is computed, so two runs of one model must never overlap;
and two runs at once on one machine would both be slow. A run is stopped between two steps.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from floatlens.data.prompt import Prompt
from floatlens.data.sample import Passage
from floatlens.data.template import Template
from floatlens.data.token_kinds import GROUPS, classify, spelled
from floatlens.decode.step import Step
from floatlens.errors import FloatLensError
from floatlens.explorer.film import FORMAT, Array, film, frame
from floatlens.explorer.kept_runs import RunMatrices
from floatlens.explorer.messages import RunRequest
from floatlens.interventions.intervention import parse_intervention
from floatlens.lens import Lens
from floatlens.trace.recorder import Watch
from floatlens.trace.trace import Trace

Messages = Callable[[], Iterator[dict[str, Any]]]
RECORD = ("received",)  # the only statistic that a film needs


def play(
    lens: Lens,
    asked: RunRequest,
    template: Template,
    keep: Callable[..., RunMatrices],
    keep_trace: Callable[[Trace], str | None],
) -> Iterator[dict[str, Any]]:
    """Run a request; closing the generator between two messages ends the run and restores the model."""
    prompt = prompt_of(lens, asked, template)
    settings: dict[str, Any] = {
        "max_new_tokens": asked.max_new_tokens,
        "steps": asked.steps,
        "block_length": asked.block_length,
        "seed": asked.seed,
    }
    lens.settings(**settings).fits(len(prompt.ids), lens.context_length)
    interventions = [parse_intervention(spec) for spec in asked.interventions]
    with lens.intervene(*interventions) if interventions else nullcontext():
        watch = lens.watch([prompt], sample_ids=[str(asked.id)], record=RECORD, show=["attention_mean"], **settings)
        header = start(lens, asked, prompt, watch, [str(each) for each in interventions])
        known = [int(i) for i in header["vocabulary"]]
        yield {"type": "start", "id": asked.id, "film": header}
        N = header["length"]
        kept: RunMatrices | None = None
        for step, results in watch:
            if kept is None:
                kept = keep(
                    steps=len(header["steps"]),
                    layers=sorted(results["received"]),
                    length=N,
                    cached=lens.family.cached and lens.family.attention == "causal",
                )
            kept.add(step.index, {layer: rows_BQT[0] for layer, rows_BQT in results["attention_mean"].items()})
            message = moment(lens, step, results["received"], N)
            new = sorted({i for i in (*message["tokens"], *message["after"]) if i >= 0} - set(known))
            known += new
            spelling = pieces(lens, known)  # the spelling of a piece depends on the others
            yield {"type": "step", "id": asked.id, **message, "vocabulary": {str(i): spelling[str(i)] for i in new}}
        [trace] = watch.traces()
    yield {"type": "done", "id": asked.id, "film": film(trace), "trace": keep_trace(trace)}


def prompt_of(lens: Lens, asked: RunRequest, template: Template) -> Prompt:
    """Build the prompt; empty passages are left out."""
    passages = [Passage(p.text, p.title, p.gold) for p in asked.passages if p.text.strip() or p.title.strip()]
    return lens.prompt(asked.question, passages, template=template)


def start(lens: Lens, asked: RunRequest, prompt: Prompt, watch: Watch, specs: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a film that are known before its first step."""
    recorder = watch.recorder
    P, N = len(prompt.ids), recorder.N
    diffusion = lens.family.kind == "mdm"
    masks = [lens.mask_id] if lens.has_mask else []
    ids = sorted({*prompt.ids, *masks})
    strings = lens.tokenizer.convert_ids_to_tokens(prompt.ids)  # type: ignore[union-attr]
    regions = recorder.batch.regions(0, N - P)
    inside = {index for region in regions for index in range(region.start, region.end)}
    kinds = classify([str(s) for s in strings], [index not in inside for index in range(P)])
    return {
        "format": FORMAT,
        "id": str(asked.id),
        "model": lens.name,
        "family": lens.family.name,
        "diffusion": diffusion,
        "question": prompt.question,
        "output": "",
        "answers": [],
        "prompt_length": P,
        "length": N,
        "layers": list(range(lens.shape["layers"] or 0)),
        "heads": lens.shape["heads"] or 0,
        "steps": recorder.steps,
        "vocabulary": pieces(lens, ids),
        "special_ids": list(lens.special_ids),
        "mask_ids": masks,
        "regions": [{"name": r.name, "start": r.start, "end": r.end} for r in regions],
        "gold": recorder.batch.gold(0),
        "kinds": [*kinds, *(["mask" if diffusion else ""] * (N - P))],
        "kind_groups": GROUPS,
        "interventions": list(specs),
        "thinned": None,
    }


def moment(lens: Lens, step: Step, received: dict[int, torch.Tensor], N: int) -> dict[str, Any]:
    """Return one step: tokens before and after, the sampler's confidence, and received attention."""
    T = step.tokens_BT.shape[1]
    received_LHT = np.full((len(received), received[min(received)].shape[1], N), np.nan, np.float32)
    for index, layer in enumerate(sorted(received)):
        received_LHT[index, :, :T] = received[layer][0].float().cpu().numpy()
    confidence_T = filled(step.confidence_BT[0].float().cpu().numpy(), N, np.nan)
    return {
        "index": step.index,
        "tokens": filled(step.tokens_BT[0].cpu().numpy(), N, -1).tolist(),
        "after": filled(step.after_BT[0].cpu().numpy(), N, -1).tolist(),
        "confidence": [round(float(c), 4) if np.isfinite(c) else None for c in confidence_T],
        **frame(received_LHT, lens.family.attention),
    }


def filled(values_T: Array, N: int, filler: float) -> Array:
    """Pad values to all N positions; positions that do not exist yet get the filler."""
    return np.concatenate([values_T, np.full(N - len(values_T), filler, values_T.dtype)])


def pieces(lens: Lens, ids: Sequence[int]) -> dict[str, str]:
    """Return readable strings by token id."""
    found = lens.token_strings(ids)
    return dict(zip(found, spelled(list(found.values())), strict=True))


# --- the thread -----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class LiveJob:
    """A queued or active run: `messages` starts it, `send` receives each message (called from the model thread)."""

    id: int
    messages: Messages
    send: Callable[[dict[str, Any]], None]
    over: Callable[[], None] = lambda: None
    stopped: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Stop before the next step, or do not start."""
        self.stopped.set()


class ModelThread:
    """A queue of jobs and the thread that runs them. The thread starts with the first job."""

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self.jobs: deque[LiveJob] = deque()
        self.current: LiveJob | None = None
        self.something = threading.Condition()
        self.thread: threading.Thread | None = None
        self.closed = False

    def submit(self, job: LiveJob) -> int:
        """Queue a job; return the number of jobs before it."""
        with self.something:
            if self.closed:
                raise FloatLensError("the server is shutting down")
            waiting = sum(not other.stopped.is_set() for other in self.jobs)
            if waiting >= self.waiting:
                raise FloatLensError(f"{waiting} runs are already queued; try again when some have finished")
            ahead = waiting + (self.current is not None)
            self.jobs.append(job)
            if self.thread is None:
                self.thread = threading.Thread(target=self._work, name="floatlens-worker", daemon=True)
                self.thread.start()
            self.something.notify()
            return ahead

    def close(self, patience: float = 10.0) -> None:
        """Stop all jobs and wait for the current step: a program that exits in the middle of one may crash."""
        with self.something:
            self.closed = True
            for job in (*self.jobs, *filter(None, [self.current])):
                job.stop()
            self.something.notify()
        if self.thread is not None:
            self.thread.join(patience)

    def _work(self) -> None:
        while True:
            with self.something:
                self.something.wait_for(lambda: self.jobs or self.closed)
                if self.closed:
                    return
                self.current = job = self.jobs.popleft()
            try:
                perform(job)
            finally:
                self.current = None
                job.over()


def perform(job: LiveJob) -> None:
    """Run a job; an error becomes a message to the page, and the thread continues."""
    if job.stopped.is_set():
        return job.send({"type": "stopped", "id": job.id})
    try:
        with closing(job.messages()) as messages:  # type: ignore[type-var]
            for message in messages:
                if job.stopped.is_set():
                    return job.send({"type": "stopped", "id": job.id})
                job.send(message)
    except FloatLensError as error:
        job.send({"type": "error", "id": job.id, "message": " ".join(str(error).split())})
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        job.send({"type": "error", "id": job.id, "message": f"the run failed: {text} (a bug: see the terminal)"})
