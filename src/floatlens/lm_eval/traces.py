"""Traces of the harness's samples, in a run folder that `floatlens figure`, `report` and `explore` read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from floatlens.data.prompt import Prompt
from floatlens.errors import FloatLensError
from floatlens.evaluation.loop import TraceRecord
from floatlens.lens import Generation, Lens
from floatlens.store import manifest
from floatlens.store.folder import MANIFEST, RunFolder
from floatlens.store.storage import Storage
from floatlens.trace.summarise import Detail
from floatlens.trace.trace import Trace


class HarnessTraces:
    """Records traces of the harness's requests. The run folder stays locked until the process ends."""

    def __init__(self, lens: Lens, place: str, asked: Mapping[str, Any], detail: Detail = "full") -> None:
        if Storage(place).exists(MANIFEST):
            raise FloatLensError(f"trace_to {place} is already a run; use a new folder")
        self.lens, self.detail = lens, detail
        seeds = {"seed": asked["seed"]}
        about = manifest.describe("lm-eval", dict(asked), checkpoints=[lens.checkpoint], seeds=seeds)
        self.folder = RunFolder.create(place, about)

    def generate(
        self, names: Sequence[str], prompts: Sequence[Sequence[int]], settings: Mapping[str, Any]
    ) -> list[Generation]:
        """Generate after each prompt as `lens.generate` does, and keep the traces."""
        traces = self.lens.traces([Prompt.from_ids(ids) for ids in prompts], sample_ids=names, sampler=settings)
        self._save(names, traces)
        return [Generation.from_trace(self.lens, trace) for trace in traces]

    def replay(self, name: str, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Keep the trace of an answer that the harness scores: revealed from left to right, nothing is sampled."""
        self._save([name], [self.lens.replay(Prompt.from_ids(prompt), answer, sample_id=name)])

    def write_index(self) -> None:
        """Complete the folder's index, after each of the harness's calls."""
        self.folder.write_index()

    def _save(self, names: Sequence[str], traces: Sequence[Trace]) -> None:
        for name, trace in zip(names, traces, strict=True):
            record = TraceRecord(name, self.lens.name)
            self.folder.put(record.key, record.value(), self.folder.save_trace(name, trace, detail=self.detail))
