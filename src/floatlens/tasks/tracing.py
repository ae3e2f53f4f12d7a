"""Keep traces: of every answer that a lens gives in an evaluation, or of a list of prompts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from floatlens.lens import Generation
from floatlens.runs.careful import Careful, reason
from floatlens.runs.engines.engine import Died, Engine
from floatlens.runs.engines.local import Local
from floatlens.runs.folder import RunFolder
from floatlens.tasks.prompt import Prompt
from floatlens.trace import Trace


class Tracing:
    """Stands for a lens in an evaluation. The traces' sample ids name the data set, the condition and the question.

    Traces are kept for the questions that are `wanted`; `trees` has their checksums, for the run folder.
    """

    def __init__(self, lens: Any, folder: RunFolder, key: tuple[str, str, str], wanted: Collection[str]) -> None:
        self.lens, self.folder, self.wanted = lens, folder, wanted
        self.model, self.data, self.condition = key
        self.trees: dict[str, dict[str, str]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lens, name)

    def generate(self, prompts: Sequence[Prompt], **settings: Any) -> list[Generation]:
        ids = [f"{self.data}, {self.condition}, {prompt.sample_id}" for prompt in prompts]
        traces = self.lens.traces(prompts, sample_ids=ids, **settings)
        for prompt, sample_id, trace in zip(prompts, ids, traces, strict=True):
            if prompt.sample_id in self.wanted:
                self.trees[prompt.sample_id] = self.folder.save_trace(f"{self.model}, {sample_id}", trace)
        return [generation_of(self.lens, trace) for trace in traces]


def generation_of(lens: Any, trace: Trace) -> Generation:
    """What a lens wrote, read off its trace."""
    data, start = trace.data, trace.prompt_length
    ids = [int(i) for i in data["final_tokens"].values[start:]]
    end = next((i for i, token in enumerate(ids) if token in lens.end_ids), None)
    used = np.arange(start, start + (len(ids) if end is None else end + 1))
    committed = data["committed_at"].values[used]
    there = committed >= 0
    confidence = data["confidence"].values[committed[there], used[there]]
    kept = ids if end is None else ids[:end]
    steps = data.sizes["step"] if trace.diffusion else len(used)
    mean = float(np.nanmean(confidence)) if np.isfinite(confidence).any() else float("nan")
    return Generation(lens.decode(kept), kept, steps, mean, end is not None)


@dataclass(frozen=True)
class Batch:
    """Prompts that are traced together, by their samples' ids."""

    ids: list[str]
    prompts: list[Prompt]
    wanted: list[bool]

    def split(self) -> list[Batch]:
        parts = zip(self.ids, self.prompts, self.wanted, strict=True)
        return [replace(self, ids=[i], prompts=[p], wanted=[w]) for i, p, w in parts if w]


@dataclass
class Traces:
    """The worker: keeps a model, traces batches with it, and puts the traces into the run folder."""

    load: Callable[[str], Any]
    model: str
    place: str
    options: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    interventions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.lens: Any = None
        self.careful: Careful[tuple[str, Prompt], Trace] = Careful(self._traced)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def _traced(self, pairs: Sequence[tuple[str, Prompt]]) -> list[Trace]:
        ids, prompts = [id_ for id_, _ in pairs], [prompt for _, prompt in pairs]
        with self.lens.intervene(*self.interventions) if self.interventions else nullcontext():
            return self.lens.traces(prompts, sample_ids=ids, **self.options)

    def __call__(self, batch: Batch) -> list[tuple[str, str | None]]:
        """Each wanted sample's id, with the reason if it failed."""
        self.lens = self.lens or self.load(self.model)
        folder = RunFolder.open(self.place)
        made = self.careful(list(zip(batch.ids, batch.prompts, strict=True)))
        done = []
        for id_, trace, wanted in zip(batch.ids, made, batch.wanted, strict=True):
            if not wanted:
                continue
            error = reason(trace) if isinstance(trace, BaseException) else None
            trees = None if isinstance(trace, BaseException) else folder.save_trace(id_, trace, self.dtype)
            folder.put((self.model, id_), {"error": error}, trees)
            done.append((id_, error))
        return done


def traced(
    work: Sequence[tuple[str, Prompt]],
    worker: Traces,
    folder: RunFolder,
    *,
    batch_size: int,
    engine: Engine | None = None,
    done: Callable[[], None] = lambda: None,
    retry_errors: bool = False,
    refused: Mapping[str, str] | None = None,
) -> dict[str, str | None]:
    """Trace prompts by their samples' ids; returns each id with the reason if it failed. What is there is not redone.

    `refused` are samples that cannot be asked, with the reason.
    """
    results = [result for result in folder.results() if len(result.key) == 2]
    if retry_errors:
        folder.forget(result for result in results if result.value.get("error"))
        results = [result for result in results if not result.value.get("error")]
    found: dict[str, str | None] = {result.key[1]: result.value.get("error") for result in results}
    for id_, error in (refused or {}).items():
        folder.put((worker.model, id_), {"error": error})
        found[id_] = error
    folder.write_errors((id_, error) for id_, error in found.items() if error)
    for batch, made in (engine or Local()).run(worker, planned(work, batch_size, found)):
        if isinstance(made, Died):
            for id_ in batch.ids:
                folder.put((worker.model, id_), {"error": made.reason})
            made = [(id_, made.reason) for id_ in batch.ids]
        for id_, error in made:
            found[id_] = error
            if error:
                folder.record_error(id_, error)
            done()
    return found


def planned(work: Sequence[tuple[str, Prompt]], size: int, found: Collection[str]) -> Iterable[Batch]:
    """Batches of prompts of like length, the longest first; one that is partly found is done again as a whole."""
    order = sorted(work, key=lambda pair: len(pair[1].ids), reverse=True)
    for start in range(0, len(order), size):
        part = order[start : start + size]
        wanted = [id_ not in found for id_, _ in part]
        if any(wanted):
            yield Batch([id_ for id_, _ in part], [prompt for _, prompt in part], wanted)
