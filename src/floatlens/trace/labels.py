"""The attributes of a trace: model, sampler, prompt, regions, token strings, versions."""

from __future__ import annotations

import json
import platform
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floatlens.attention.prompt_batch import PromptBatch
from floatlens.attention.state_space import RULE
from floatlens.data.prompt import Prompt, Region
from floatlens.data.script import Script
from floatlens.data.template import DEFAULT
from floatlens.data.tokenize import tokenise
from floatlens.decode import replay
from floatlens.decode.settings import Settings
from floatlens.errors import FloatLensError
from floatlens.models.describe import is_state_space
from floatlens.trace.generation import cut_at_end, filled_text
from floatlens.trace.recorder import Recorder
from floatlens.trace.trace import Trace
from floatlens.version import __version__

if TYPE_CHECKING:
    from floatlens.lens import Lens

PACKAGES = ("torch", "transformers", "xarray", "zarr", "numpy")


def label_traces(
    lens: Lens,
    recorder: Recorder,
    batch: PromptBatch,
    settings: Settings,
    *,
    sample_ids: Sequence[str],
    interventions: Sequence[str],
) -> list[Trace]:
    """The traces of a batch, one per prompt, each with its attributes."""
    common = {
        "model": lens.name,
        "revision": str(lens.checkpoint.revision or getattr(lens.config, "_commit_hash", None) or ""),
        "family": lens.family.name,
        **({"adapter": lens.checkpoint.adapter.name} if lens.checkpoint.adapter is not None else {}),
        "loaded_with": as_json(loaded_with(lens)),
        "kind": lens.family.kind,
        "attention": lens.family.attention,
        "cached": int(lens.family.cached),
        "n_layers": lens.shape["layers"] or 0,
        "n_heads": lens.shape["heads"] or 0,
        "sampler": lens.sampler if batch.scripts is None else replay.NAME,
        "settings": as_json(settings.asdict()),
        "seed": settings.seed,
        "implementation": recorder.session.used,
        "evidence_over": "committed tokens that occur in the gold evidence, without special tokens",
        "interventions": as_json(list(interventions)),
        "versions": as_json(versions()),
        "floatlens": __version__,
        "rules": as_json([RULE] if is_state_space(lens.config) else []),
    }
    return [
        _label_row(lens, recorder, batch, row, settings, {**common, "sample_id": sample_ids[row]})
        for row in range(len(batch.prompts))
    ]


def _label_row(
    lens: Lens, recorder: Recorder, batch: PromptBatch, row: int, settings: Settings, common: dict[str, Any]
) -> Trace:
    prompt, data = batch.prompts[row], recorder.dataset(row)
    P = len(prompt.ids)
    ids = data["final_tokens"].values[P:].tolist()
    returned = ids[: settings.max_new_tokens]  # a canvas of whole blocks may be longer
    seen = sorted({int(i) for i in (*data["tokens"].values.ravel(), *data["final_tokens"].values) if i >= 0})
    data.attrs = {
        **common,
        "prompt": prompt.text,
        "question": prompt.question,
        "built_from": as_json(built_from(lens, prompt)),
        "replay": as_json(replayed(lens, prompt.script)),
        **_output(lens, prompt, returned),
        "answers": as_json(list(prompt.answers)),
        "prompt_length": P,
        "regions": as_json([asdict(region) for region in batch.regions(row, len(ids))]),
        "gold": as_json(batch.gold(row)),
        "vocabulary": as_json(lens.token_strings(seen)),
        "special_ids": as_json([i for i in lens.special_ids if i in seen]),
    }
    return Trace(data)


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


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
