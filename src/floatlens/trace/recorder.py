"""The one maker of traces. Recorder: arrays filled step by step with the observed statistics, and the `Trace` of them with
its model, sampler, prompt and versions; Watch: the steps of a lens, while they are computed.

The model is observed only during a forward pass: between two steps it may be used for something else, and a run may be
abandoned at any step. A run stops at NaN or inf in the model's outputs, and names the step.
"""

from __future__ import annotations

import json
import math
import platform
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr

from floatlens.attention.hook import observing
from floatlens.attention.prompt_batch import PromptBatch
from floatlens.attention.session import IMPLEMENTATIONS, Results, Session
from floatlens.attention.state_space import RULE
from floatlens.attention.statistic import MATRICES, STATISTICS, Statistic, expand
from floatlens.data.prompt import Prompt
from floatlens.data.sequences import Script
from floatlens.data.template import DEFAULT
from floatlens.data.tokenize import tokenise
from floatlens.decode import replay
from floatlens.decode.sampler import Sampler
from floatlens.decode.step import Step
from floatlens.errors import FloatLensError, NotANumber, check_known
from floatlens.interventions.run import in_force
from floatlens.models.checkpoint import split_name
from floatlens.models.describe import attention_layers, is_state_space, shape
from floatlens.options import Recording
from floatlens.trace.attributes import STRUCTURED
from floatlens.trace.generation import cut_at_end, decode, filled_text, token_strings
from floatlens.trace.trace import Trace
from floatlens.version import __version__

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from floatlens.lens import Lens

PACKAGES = ("torch", "transformers", "xarray", "zarr", "numpy")
NEEDS_GOLD = ("evidence_mass", "evidence_hit", "query_mass")
FINITE = ("received", "entropy", "qk", "value_norm")
GROWING = ("position", "query", "key")
# Dims of what the recorder computes from the results of a statistic.
OWN_DIMS = {"evidence_mass": ("head",), "evidence_hit": ("head",), "received_writing": ("position",)}


class Recorder:
    """Stores the results of `statistics` at the chosen steps, for every row of a batch that writes `new` positions.

    `shifted`: the row that writes position j is j - 1. `special_ids` never count as copied from the evidence. How often a
    token was replaced is kept if the sampler `revises`, or if it happened.
    """

    def __init__(
        self,
        batch: PromptBatch,
        new: int,
        *,
        steps: Sequence[int],
        shifted: bool,
        heads: Sequence[int] | None = None,
        special_ids: Sequence[int] = (),
        mask_id: int | None = None,
        revises: bool = False,
    ) -> None:
        self.batch, self.layout, self.steps = batch, batch.layout(new, shifted, mask_id), list(steps)
        self.heads, self.revises = heads, revises
        self.shifted, self.special = int(shifted), torch.tensor(sorted(special_ids), dtype=torch.long)
        B, P = batch.ids_BP.shape
        self.N = P + new
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self.layers: dict[str, list[int]] = {}
        self.tokens = np.full((B, len(steps), self.N), -1, np.int64)
        self.confidence = np.full((B, len(steps), self.N), np.nan, np.float32)
        self.committed_at = np.full((B, self.N), -1, np.int64)
        self.committed_token = np.full((B, self.N), -1, np.int64)
        self.revised = np.zeros((B, self.N), np.int64)
        self.last = [-1] * B  # each row's last step
        self.length = [P] * B  # positions after it
        self.count = np.zeros((B, len(steps)), np.int64)
        self.final = np.full((B, self.N), -1, np.int64)
        self.final[:, :P] = batch.ids_BP.cpu().numpy()

    def add(self, step: Step, results: Results) -> None:
        """Record a step and the results of its forward pass, `results[name][layer]` (B, *dims of the statistic).

        A row that waits for others takes no step: steps are counted per row.
        """
        length = step.after_BT.shape[1]
        after, rows = step.after_BT.cpu().numpy(), list(range(len(self.last)))
        if step.running_B is not None:
            rows = step.running_B.nonzero()[:, 0].tolist()
        for row in rows:
            self.final[row, :length], self.length[row] = after[row], length
            self.last[row] += 1
        committed, positions = np.nonzero(step.committed_BT.cpu().numpy())
        again = self.committed_at[committed, positions] >= 0
        again &= self.committed_token[committed, positions] != after[committed, positions]
        self.revised[committed[again], positions[again]] += 1
        self.committed_token[committed, positions] = after[committed, positions]
        self.committed_at[committed, positions] = np.array(self.last)[committed]
        kept = [row for row in rows if self.last[row] in self.steps]
        for at in sorted({self.steps.index(self.last[row]) for row in kept}):
            taking = [row for row in kept if self.steps.index(self.last[row]) == at]
            self._keep(at, taking, step, results)

    def _keep(self, at: int, rows: list[int], step: Step, results: Results) -> None:
        """Record a step of some rows at index `at` of the kept steps."""
        for array in self.arrays.values():
            array[rows, at] = np.nan
        self.tokens[rows, at, : step.tokens_BT.shape[1]] = step.tokens_BT[rows].cpu().numpy()
        self.confidence[rows, at, : step.after_BT.shape[1]] = step.confidence_BT[rows].float().cpu().numpy()
        for name, layers in results.items():
            if name == "evidence":
                self._evidence(at, rows, layers, step)
            elif name == "received_writing":
                self._writing(at, rows, layers, step)
            else:
                self._store(name, at, rows, layers, step)

    def _array(self, name: str, layers: Mapping[int, torch.Tensor], *sizes: int) -> np.ndarray[Any, Any]:
        """The array of a name for all steps, NaN up to the last one taken; the rest costs no memory until it is written."""
        if name not in self.arrays:
            made = np.empty((len(self.tokens), len(self.steps), len(layers), *sizes), np.float32)
            made[:, : sum(step <= max(self.last) for step in self.steps)] = np.nan
            self.arrays[name], self.layers[name] = made, sorted(layers)
        return self.arrays[name]

    def _store(self, name: str, at: int, rows: list[int], layers: Mapping[int, torch.Tensor], step: Step) -> None:
        if not layers:
            return
        dims, order = STATISTICS[name].dims, sorted(layers)
        value_BL = stack_layers([layers[layer] for layer in order]).detach()
        if "head" in dims and self.heads is not None:
            value_BL = value_BL.index_select(2 + dims.index("head"), torch.tensor(self.heads, device=value_BL.device))
        if self.batch.real_BP is None and name in FINITE and not math.isfinite(checked_sum(name, value_BL)):
            bad = next((layer for layer in order if not math.isfinite(checked_sum(name, layers[layer]))), None)
            if bad is not None:  # otherwise layers have different numbers of heads, and were padded with NaN
                raise NotANumber(f"{name} is not a number at step {self.steps[at]}, layer {bad}; try --dtype float32")
        sizes = dict(zip(dims, value_BL.shape[2:], strict=True))
        array = self._array(name, layers, *(self.N if dim in GROWING else size for dim, size in sizes.items()))
        starts = [step.first_query(size) if dim == "query" else 0 for dim, size in sizes.items()]
        spans = [slice(first, first + size) for first, size in zip(starts, sizes.values(), strict=True)]
        where: Any = (rows, at, slice(None), *spans)
        value_BL = value_BL if len(rows) == len(value_BL) else value_BL[rows]
        array[where] = value_BL.float().cpu().numpy()

    def _writing(self, at: int, taking: list[int], layers: Mapping[int, torch.Tensor], step: Step) -> None:
        """Store the mean attention of the rows that wrote at the step."""
        first, end = self.layout.writing_span
        if not layers or first == end:
            return
        array = self._array("received_writing", layers, self.N)
        for row in taking:
            rows = step.committed_BT[row].cpu().nonzero()[:, 0] - self.shifted - first
            rows = rows[(rows >= 0) & (rows < end - first)]
            if len(rows):
                value_LWT = torch.stack([layers[layer][row, rows] for layer in sorted(layers)]).detach().float()
                array[row, at, :, : value_LWT.shape[2]] = value_LWT.mean(1).cpu().numpy()

    def _evidence(self, at: int, taking: list[int], layers: Mapping[int, torch.Tensor], step: Step) -> None:
        """Store, over committed tokens that occur in the gold evidence: mean mass on it, share whose top key is a copy."""
        gold_BN, tokens_BT, after_BT = self.layout.gold_BN.cpu(), step.tokens_BT.cpu(), step.after_BT.cpu()
        if not bool(gold_BN.any()):
            return
        T, positions = tokens_BT.shape[1], {}
        for row in taking:
            evidence = tokens_BT[row][gold_BN[row, :T]]
            copied = torch.isin(after_BT[row], evidence) & ~torch.isin(after_BT[row], self.special)
            positions[row] = (step.committed_BT[row].cpu() & copied).nonzero()[:, 0]
            self.count[row, at] = len(positions[row])
        for index, layer in enumerate(sorted(layers)):
            pairs_BHQ2 = layers[layer].detach().float().cpu()
            if self.heads is not None:
                pairs_BHQ2 = pairs_BHQ2[:, self.heads]
            mass, hit = (self._array(name, layers, pairs_BHQ2.shape[1]) for name in ("evidence_mass", "evidence_hit"))
            first = step.first_query(pairs_BHQ2.shape[2])
            for row, at_N in positions.items():
                at_N = at_N[at_N - self.shifted >= first]  # the row that writes may lie before those of the step
                if len(at_N):
                    mass_HN, top_HN = pairs_BHQ2[row, :, at_N - self.shifted - first].unbind(-1)
                    top_HN = top_HN.long()
                    hit_HN = gold_BN[row][top_HN] & (tokens_BT[row][top_HN] == after_BT[row, at_N])
                    mass[row, at, index], hit[row, at, index] = mass_HN.mean(1).numpy(), hit_HN.float().mean(1).numpy()

    def dataset(self, row: int) -> xr.Dataset:
        """The record of one row, without its padding and without steps after its end."""
        pad = self.batch.pads[row]
        last, end = self.last[row], self.length[row]
        kept = slice(sum(step <= last for step in self.steps))
        if not kept.stop:
            raise FloatLensError(f"the run ended after step {last}, before any requested step; record an earlier one")
        span = slice(pad, end)
        data: dict[str, Any] = {
            "tokens": (("step", "position"), self.tokens[row, kept, span]),
            "committed_at": (("position",), self.committed_at[row, span]),
            "final_tokens": (("position",), self.final[row, span]),
            "confidence": (("step", "position"), self.confidence[row, kept, span]),
        }
        if self.revises or self.revised[row].any():
            data["revised"] = (("position",), self.revised[row, span])
        # `layer` belongs to the statistics; matrices of other layers have a separate dimension.
        common = {name: chosen for name, chosen in self.layers.items() if name not in MATRICES} or self.layers
        layers = sorted({layer for chosen in common.values() for layer in chosen})
        names, whole = self.layout.region_names[row], slice(None)
        cuts = dict.fromkeys(GROWING, span) | dict.fromkeys(("region", "region_to"), slice(0, len(names)))
        coords: dict[str, Any] = {"layer": layers, "region": names, "region_to": names}
        for name, stored in self.arrays.items():
            kind = STATISTICS[name] if name in STATISTICS else Statistic  # noqa: SIM401 (`get` would raise)
            dims, chosen = OWN_DIMS.get(name) or kind.dims, self.layers[name]
            where: Any = (row, kept, whole, *(cuts.get(dim, whole) for dim in dims))
            array = stored[where]
            without_gold = name in NEEDS_GOLD and not self.layout.gold_BN[row].any()
            if without_gold or (kind.final and np.isnan(array).all()):  # this prompt has no final rows
                continue
            if name in ("queries", "keys"):
                dims = tuple("position" if dim == "query" else dim for dim in dims)
            layer_dim = "layer" if chosen == layers else f"{name}_layer"
            data[name] = (("step", layer_dim, *dims), array, {"whole": 1} if kind.whole else {})
            coords |= {layer_dim: chosen, **{dim: list(labels) for dim, labels in kind.coords.items()}}
        if "evidence_mass" in data:
            data["evidence_count"] = (("step",), self.count[row, kept])
        made = xr.Dataset(data)
        heads = range(made.sizes.get("head", 0)) if self.heads is None else self.heads
        coords |= {"step": self.steps[kept], "position": np.arange(end - pad), "head": list(heads)}
        return made.assign_coords({dim: labels for dim, labels in coords.items() if dim in made.dims})

    def trace(self, row: int, model: Lens | ModelFacts, **attributes: Any) -> Trace:
        """The trace of one row: all traces are made here, whoever recorded them.

        `attributes` are plain values, by the names of `attributes.py`; those that follow from the tokens, the prompt and
        the model are added.
        """
        prompt, trace = self.batch.prompts[row], Trace(self.dataset(row))
        P, final = len(prompt.ids), trace.final_tokens
        written = [int(i) for i in final[P:]]
        seen = [int(i) for i in np.unique(np.append(trace.data["tokens"].values, final)) if i >= 0]
        # A canvas of whole blocks may be longer than what was asked for.
        answer = written[: attributes.get("settings", {}).get("max_new_tokens")]
        text = prompt.text or ("" if model.tokenizer is None else str(model.tokenizer.decode(list(prompt.ids))))
        known: dict[str, Any] = {
            "model": model.name,
            "revision": "",
            "sampler": "",
            "settings": {},
            "rules": [],
            "sample_id": prompt.sample_id,
            "prompt": text,
            "question": prompt.question,
            "answers": list(prompt.answers),
            "output": decode(model.tokenizer, cut_at_end(answer, model.end_ids)[0]),
            "prompt_length": P,
            "regions": [asdict(one) for one in (self.batch.regions(row, len(written)) if written else prompt.regions)],
            "gold": self.batch.gold(row),
            "vocabulary": token_strings(model.tokenizer, seen),
            "special_ids": [int(i) for i in model.special_ids if i in seen],
            "versions": versions(),
            "floatlens": __version__,
        }
        if model.config is not None:
            sizes = shape(model.config)
            known |= {"n_layers": sizes["layers"] or 0, "n_heads": sizes["heads"] or 0}
            known |= {"rules": [RULE] if is_state_space(model.config) else []}
        known |= attributes
        trace.data.attrs = {n: json.dumps(v, ensure_ascii=False) if n in STRUCTURED else v for n, v in known.items()}
        return trace


def checked_sum(name: str, value: torch.Tensor) -> float:
    """A sum that is finite if the values are. `qk` is NaN at positions outside the window of every query."""
    return float(value[..., -1].sum() if name == "qk" else value.sum())


def stack_layers(values: Sequence[torch.Tensor]) -> torch.Tensor:
    """The values of several layers (B, layer, ...); layers with fewer key/value heads or dims are padded with NaN."""
    shapes = [value.shape for value in values]
    largest = [max(sizes) for sizes in zip(*shapes, strict=True)]
    if all(list(shape) == largest for shape in shapes):
        return torch.stack(list(values), 1)
    made = values[0].new_full((largest[0], len(values), *largest[1:]), torch.nan, dtype=torch.float32)
    for index, value in enumerate(values):
        where: list[Any] = [slice(None), index, *(slice(0, size) for size in value.shape[1:])]
        made[tuple(where)] = value.float()
    return made


@dataclass(frozen=True)
class ModelFacts:
    """What a trace needs to know of a model that is not a `Lens`. `end_ids` end an answer."""

    name: str
    tokenizer: PreTrainedTokenizerBase | None = None
    end_ids: Collection[int] = ()
    special_ids: Sequence[int] = ()
    config: Any = None


def loaded_with(lens: Lens) -> dict[str, Any]:
    """Return the options passed to `floatlens.load` that change the results, besides those in the model's name."""
    how, named = lens.options, split_name(lens.name)[1]
    chosen = {
        "revision": how.revision,
        "family": how.family,
        "mode": how.mode,
        "adapter": None if how.adapter is None else str(Path(how.adapter).expanduser()),
        "sampler": how.sampler,
        "block_length": how.block_length,
        "dtype": None if how.dtype == "auto" else str(how.dtype).removeprefix("torch."),
    }
    return {name: value for name, value in chosen.items() if value is not None and name not in named}


def built_from(lens: Lens, prompt: Prompt) -> dict[str, Any] | None:
    """Return the arguments that build this prompt again; None if it can only be described by its token ids.

    {"passages", "order", "template"} are arguments of `lens.prompt` besides the question (no template for the default
    one), {"text"} is a raw text for `lens.text_prompt`, and {"infill"} a text with masks for `lens.infill_prompt`.
    """
    if lens.tokenizer is None or not prompt.question:
        return None
    with warnings.catch_warnings(), suppress(FloatLensError):
        warnings.simplefilter("ignore")  # the tokenizer already warned when the prompt was built
        how: dict[str, Any]
        if prompt.tail is not None:
            again, how = lens.infill_prompt(prompt.question), {"infill": prompt.question}
        elif prompt.chat:
            again = lens.prompt(prompt.question, prompt.passages, order=prompt.order, template=prompt.template)
            how = {"passages": [asdict(passage) for passage in prompt.passages], "order": prompt.order}
            how |= {} if prompt.template == DEFAULT else {"template": prompt.template.text}
        else:
            again, how = lens.text_prompt(prompt.question), {"text": prompt.question}
        inside = len(prompt.ids) + len(prompt.tail or ())
        regions = [region for region in prompt.regions if region.end <= inside]  # without those of a given answer
        same = (again.ids, again.tail, again.regions) == (list(prompt.ids), prompt.tail, regions)
        return how if same else None
    return None


def replayed(lens: Lens, script: Script | None) -> dict[str, Any] | None:
    """Return the name of a replay's order, and its text if the tokenizer encodes it to the same tokens."""
    if script is None:
        return None
    text = None if lens.tokenizer is None else str(lens.tokenizer.decode(list(script.ids)))
    same = text is not None and [token.id for token in tokenise(lens.tokenizer, text)] == list(script.ids)
    return {"order": script.order, "text": text if same else None}


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a trace depends on."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


class Watch(Iterator[tuple[Step, Results]]):
    """The result of `Lens.watch`: each `next` runs one step, and `traces()` returns the recorded traces.

    A step comes with the results of its forward pass: `results[name][layer]` is (B, *dims of the statistic).

    >>> for step, results in lens.watch(["Where was Ada Lovelace born?"]):   # doctest: +SKIP
    ...     print(step.index, results["received"][0].mean(1).argmax(-1))     # the top anchor of layer 0
    """

    def __init__(self, lens: Lens, prompts: Sequence[Prompt], settings: Sampler, recording: Recording) -> None:
        check_recording(recording, lens.shape, settings.step_count)
        batch, family = lens._batch(prompts, settings), lens.family
        self.recorder = Recorder(
            batch,
            lens._new_positions(batch, settings),
            steps=sorted(range(settings.step_count) if recording.record_steps is None else recording.record_steps),
            heads=None if recording.heads is None else sorted(recording.heads),
            shifted=family.shifted or settings.shifted,
            special_ids=lens.special_ids,
            mask_id=lens.mask_id if lens.has_mask else None,
            revises=settings.revises,
        )
        self.kept = {*expand(recording.record), *recording.matrices}
        self.session = Session(
            [*expand(recording.record), *recording.matrices, *recording.show],
            layout=self.recorder.layout,
            layers=recording.layers,
            matrix_layers=recording.matrix_layers,
            implementation=recording.implementation,  # type: ignore[arg-type]
            rows=len(prompts),
        )
        self.lens, self.settings = lens, settings
        self.interventions = [str(one) for one in in_force(lens)]
        # No step depends on the results of an earlier one, so that steps that are not kept need not be observed.
        self.alone = family.attention in ("bidirectional", "two-way") and not family.cached
        self.alone = self.alone and not self.session.compares
        self.attention_layers = attention_layers(lens.config)
        self.steps = lens.steps(batch, settings)
        self.index, self.over = 0, False

    def __next__(self) -> tuple[Step, Results]:
        session = self.session
        session.paused = self.alone and self.index not in self.recorder.steps
        with observing(self.lens.model, session):
            step = next(self.steps, None)
        if step is None:
            self.over = True
            raise StopIteration
        if not session.paused:
            check_observed(self.lens.model, session.unobserved(self.attention_layers))
        self.index, results = step.index + 1, session.results
        self.recorder.add(step, {name: layers for name, layers in results.items() if name in self.kept})
        session.begin()
        return step, results

    def traces(self) -> list[Trace]:
        """The traces, one per prompt, once all steps are done."""
        if not self.over:
            raise FloatLensError(f"the run is at step {self.index} and has not finished; call traces() at its end")
        lens, settings, batch, checkpoint = self.lens, self.settings, self.recorder.batch, self.lens.checkpoint
        common: dict[str, Any] = {
            "revision": str(checkpoint.revision or getattr(lens.config, "_commit_hash", None) or ""),
            "family": lens.family.name,
            **({"adapter": checkpoint.adapter.name} if checkpoint.adapter is not None else {}),
            "loaded_with": loaded_with(lens),
            "kind": lens.family.kind,
            "attention": lens.family.attention,
            "cached": int(lens.family.cached),
            "sampler": lens.sampler if batch.scripts is None else replay.NAME,
            "settings": asdict(settings),
            "seed": settings.seed,
            "implementation": self.session.used,
            "interventions": self.interventions,
        }
        traces = []
        for row, prompt in enumerate(batch.prompts):
            own: dict[str, Any] = {"built_from": built_from(lens, prompt), "replay": replayed(lens, prompt.script)}
            trace = self.recorder.trace(row, lens, **common, **own)
            if prompt.tail is not None:
                ids = trace.written[: len(prompt.tail)]
                output = filled_text(lens.decode, ids, [token == lens.mask_id for token in prompt.tail])
                trace.data.attrs |= {"output": output, "infill": 1, "text": lens.decode([*prompt.ids, *ids])}
            traces.append(trace)
        return traces


def check_observed(model: PreTrainedModel, missing: Sequence[int]) -> None:
    """Raise an error if the attention of some layers was not observed: the trace would be silently empty there."""
    if missing:
        raise FloatLensError(
            f"no attention was observed in layer {missing[0]} of {type(model).__name__}({len(missing)} layers in all): "
            f"its attention does not use transformers' attention interface, so it cannot be traced or changed"
        )


def check_finite(steps: Iterator[Step]) -> Iterator[Step]:
    """Yield the steps, and raise an error if a committed token has no probability.

    NaN in the logits gives every token of a row the probability NaN, so detecting it costs nothing.
    """
    for step in steps:
        if bool((step.committed_BT & step.confidence_BT.isnan()).any()):
            raise NotANumber(f"the logits are not numbers at step {step.index}; try --dtype float32")
        yield step


def check_recording(recording: Recording, shape: Mapping[str, int | None], step_count: int) -> None:
    """Raise an error for statistics, layers, heads and steps that do not exist; needs no weights."""
    check_known("implementation", recording.implementation, IMPLEMENTATIONS)
    for name in recording.matrices:
        check_known("matrix", name, MATRICES)
    expand(recording.record)
    check_range(recording.layers, shape["layers"], "layer")
    check_range(recording.matrix_layers, shape["layers"], "layer")
    check_range(recording.heads, shape["heads"], "head")
    check_range(recording.record_steps, step_count, "step")


def check_range(chosen: Collection[int] | None, count: int | None, what: str) -> None:
    """Raise an error for layers, heads or steps that do not exist; `count` is None if their number is not known.

    >>> check_range([3], 3, "layer")
    Traceback (most recent call last):
    ...
    floatlens.errors.FloatLensError: layer 3 does not exist; there are 3, from 0 to 2
    """
    if chosen is None:
        return
    last = "the last one" if count is None else count - 1
    if not chosen:
        raise FloatLensError(f"no {what} was selected; pass at least one of 0 to {last}")
    for number in chosen:
        if number < 0 or (count is not None and number >= count):
            known = "" if count is None else f"there are {count}, "
            raise FloatLensError(f"{what} {number} does not exist; {known}from 0 to {last}")
