"""A lens that keeps a trace of every answer it gives, in the same forward passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from floatlens.lens import Generation
from floatlens.runs.folder import RunFolder
from floatlens.tasks.prompt import Prompt
from floatlens.trace import Trace


class Tracing:
    """Stands for a lens in an evaluation. The traces' sample ids name the data set, the condition and the question."""

    def __init__(self, lens: Any, folder: RunFolder, key: tuple[str, str, str]) -> None:
        self.lens, self.folder = lens, folder
        self.model, self.data, self.condition = key

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lens, name)

    def generate(self, prompts: Sequence[Prompt], **settings: Any) -> list[Generation]:
        ids = [f"{self.data}, {self.condition}, {prompt.sample_id}" for prompt in prompts]
        traces = self.lens.traces(prompts, sample_ids=ids, **settings)
        for sample_id, trace in zip(ids, traces, strict=True):
            trace.save(self.folder.trace_path(f"{self.model}, {sample_id}"))
        return [self._generation(trace) for trace in traces]

    def _generation(self, trace: Trace) -> Generation:
        data, start = trace.data, trace.prompt_length
        ids = [int(i) for i in data["final_tokens"].values[start:]]
        end = next((i for i, token in enumerate(ids) if token in self.lens.end_ids), None)
        used = np.arange(start, start + (len(ids) if end is None else end + 1))
        committed = data["committed_at"].values[used]
        there = committed >= 0
        confidence = data["confidence"].values[committed[there], used[there]]
        kept = ids if end is None else ids[:end]
        steps = data.sizes["step"] if trace.diffusion else len(used)
        mean = float(np.nanmean(confidence)) if np.isfinite(confidence).any() else float("nan")
        return Generation(self.lens.decode(kept), kept, steps, mean, end is not None)
