"""The one maker of traces: a dataset of statistics becomes a `Trace` with its model, sampler, prompt and versions."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from floatlens.attention.prompt_batch import PromptBatch
from floatlens.attention.state_space import RULE
from floatlens.data.prompt import Prompt, Region
from floatlens.data.sequences import Script
from floatlens.data.template import DEFAULT
from floatlens.data.tokenize import tokenise
from floatlens.decode import replay
from floatlens.decode.sampler import Sampler
from floatlens.errors import FloatLensError
from floatlens.models.describe import is_state_space, shape
from floatlens.trace.attributes import encode_attributes
from floatlens.trace.generation import cut_at_end, decode, filled_text, token_strings
from floatlens.trace.trace import Trace
from floatlens.version import __version__

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from floatlens.lens import Lens
    from floatlens.trace.recorder import Recorder

PACKAGES = ("torch", "transformers", "xarray", "zarr", "numpy")
EVIDENCE_OVER = "committed tokens that occur in the gold evidence, without special tokens"


@dataclass(frozen=True)
class ModelFacts:
    """What a trace needs to know of a model that is not a `Lens`. `end_ids` end an answer."""

    name: str
    tokenizer: PreTrainedTokenizerBase | None = None
    end_ids: Collection[int] = ()
    special_ids: Sequence[int] = ()
    config: Any = None


def make_trace(
    data: xr.Dataset, model: Lens | ModelFacts, batch: PromptBatch, row: int = 0, **attributes: Any
) -> Trace:
    """The trace of one row of a batch: all traces are made here, whoever recorded them.

    `attributes` are plain values, by the names of `attributes.py`; those that follow from the tokens, the prompt and the
    model are added.
    """
    prompt = batch.prompts[row]
    P, final = len(prompt.ids), Trace(data).final_tokens
    written = [int(i) for i in final[P:]]
    seen = sorted({int(i) for i in (*data["tokens"].values.ravel(), *final) if i >= 0})
    text = prompt.text
    if not text and model.tokenizer is not None:
        text = str(model.tokenizer.decode(list(prompt.ids)))
    all_attributes = {
        "model": model.name,
        "revision": "",
        "sampler": "",
        "settings": {},
        "rules": [],
        "sample_id": "",
        "prompt": text,
        "question": prompt.question,
        "answers": list(prompt.answers),
        "output": decode(model.tokenizer, cut_at_end(written, model.end_ids)[0]),
        "prompt_length": P,
        "regions": [asdict(region) for region in (batch.regions(row, len(written)) if written else prompt.regions)],
        "gold": batch.gold(row),
        "vocabulary": token_strings(model.tokenizer, seen),
        "special_ids": [int(i) for i in model.special_ids if i in seen],
        "versions": versions(),
        "floatlens": __version__,
    }
    if model.config is not None:
        sizes = shape(model.config)
        all_attributes |= {"n_layers": sizes["layers"] or 0, "n_heads": sizes["heads"] or 0}
        all_attributes |= {"rules": [RULE] if is_state_space(model.config) else []}
    all_attributes |= attributes
    data.attrs = encode_attributes(all_attributes)
    return Trace(data)


def label_traces(
    lens: Lens,
    recorder: Recorder,
    settings: Sampler,
    *,
    sample_ids: Sequence[str],
    **attributes: Any,
) -> list[Trace]:
    """The traces of a batch that a lens has run, one per prompt, with these `attributes`."""
    batch = recorder.batch
    common = {
        "revision": str(lens.checkpoint.revision or getattr(lens.config, "_commit_hash", None) or ""),
        "family": lens.family.name,
        **({"adapter": lens.checkpoint.adapter.name} if lens.checkpoint.adapter is not None else {}),
        "loaded_with": loaded_with(lens),
        "kind": lens.family.kind,
        "attention": lens.family.attention,
        "cached": int(lens.family.cached),
        "sampler": lens.sampler if batch.scripts is None else replay.NAME,
        "settings": settings.asdict(),
        "seed": settings.seed,
        "evidence_over": EVIDENCE_OVER,
        **attributes,
    }
    traces = []
    for row, prompt in enumerate(batch.prompts):
        data = recorder.dataset(row)
        written = data["final_tokens"].values[len(prompt.ids) :][: settings.max_new_tokens].tolist()
        own = {
            "sample_id": sample_ids[row],
            "built_from": built_from(lens, prompt),
            "replay": replayed(lens, prompt.script),
            **_output(lens, prompt, written),  # a canvas of whole blocks may be longer than what was asked for
        }
        traces.append(make_trace(data, lens, batch, row, **common, **own))
    return traces


def _output(lens: Lens, prompt: Prompt, ids: list[int]) -> dict[str, Any]:
    """Attributes of the output; for a text with masks, also the filled text."""
    if prompt.tail is None:
        return {"output": lens.decode(cut_at_end(ids, lens.end_ids)[0])}
    output = filled_text(lens.decode, ids, [token == lens.mask_id for token in prompt.tail])
    return {"output": output, "infill": 1, "text": lens.decode([*prompt.ids, *ids])}


def loaded_with(lens: Lens) -> dict[str, Any]:
    """Return the options passed to `floatlens.load` that change the results."""
    how = lens.options
    chosen = {
        "revision": how.revision,
        "family": how.family,
        "mode": how.mode,
        "adapter": None if how.adapter is None else str(Path(how.adapter).expanduser()),
        "sampler": how.sampler,
        "block_length": how.block_length,
        "dtype": None if how.dtype == "auto" else str(how.dtype).removeprefix("torch."),
    }
    return {name: value for name, value in chosen.items() if value is not None}


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
        same = (again.ids, again.tail, again.regions) == (list(prompt.ids), prompt.tail, _without_answer(prompt))
        return how if same else None
    return None


def _without_answer(prompt: Prompt) -> list[Region]:
    """The regions of a prompt without those of a given answer."""
    inside = len(prompt.ids) + len(prompt.tail or ())
    return [region for region in prompt.regions if region.end <= inside]


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
