"""A live run as messages: `start`, one `step` per forward pass as it happens, and `done`."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from floatlens.data.prompt import Prompt
from floatlens.data.sample import Passage
from floatlens.data.template import Template
from floatlens.data.token_kinds import GROUPS, classify, spelled
from floatlens.decode.step import Step
from floatlens.explorer.film import FORMAT, Array, film, received_and_anchors
from floatlens.explorer.kept_runs import RunMatrices
from floatlens.interventions.intervention import parse_intervention
from floatlens.lens import Lens
from floatlens.trace.recorder import Watch


def play(
    lens: Lens, asked: dict[str, Any], template: Template, keep: Callable[[Hashable, Any, int], bool], room: int
) -> Iterator[dict[str, Any]]:
    """Run a request; closing the generator between two messages ends the run and restores the model.

    `keep` takes a key, a value and its bytes: the attention matrices by the run's id, with `room` for them, and the trace by
    a secret.
    """
    passages = [Passage(**p) for p in asked["passages"] if p["text"].strip() or p["title"].strip()]
    prompt = lens.prompt(asked["question"], passages, template=template)
    settings: dict[str, Any] = {name: asked[name] for name in ("max_new_tokens", "steps", "block_length", "seed")}
    lens.settings(**settings).fits(len(prompt.ids), lens.context_length)
    interventions = [parse_intervention(spec) for spec in asked["interventions"]]
    with lens.intervene(*interventions) if interventions else nullcontext():
        settings |= {"record": ["received"], "show": ["attention_mean"]}  # a film needs no other statistic
        watch = lens.watch([prompt], sample_ids=[str(asked["id"])], **settings)
        header = start(lens, asked, prompt, watch, [str(each) for each in interventions])
        known = [int(i) for i in header["vocabulary"]]
        yield {"type": "start", "id": asked["id"], "film": header}
        steps, N, cached = len(header["steps"]), header["length"], lens.family.cached
        kept: RunMatrices | None = None
        for step, results in watch:
            if kept is None:
                once = cached and lens.family.attention == "causal"
                kept = RunMatrices(steps=steps, layers=sorted(results["received"]), length=N, cached=once, room=room)
                keep(asked["id"], kept, kept.matrices_SLTT.nbytes)
            kept.add(step.index, {layer: rows_BQT[0] for layer, rows_BQT in results["attention_mean"].items()})
            message = moment(lens, step, results["received"], N)
            new = sorted({i for i in (*message["tokens"], *message["after"]) if i >= 0} - set(known))
            known += new
            spelling = pieces(lens, known)  # the spelling of a piece depends on the others
            yield {"type": "step", "id": asked["id"], **message, "vocabulary": {str(i): spelling[str(i)] for i in new}}
        [trace] = watch.traces()
    secret = secrets.token_urlsafe(12)
    there = keep(secret, trace, int(trace.data.nbytes))
    yield {"type": "done", "id": asked["id"], "film": film(trace), "trace": secret if there else None}


def start(lens: Lens, asked: dict[str, Any], prompt: Prompt, watch: Watch, specs: Sequence[str]) -> dict[str, Any]:
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
        "id": str(asked["id"]),
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
    profile_LT = np.full((len(received), N), np.nan, np.float32)
    for index, layer in enumerate(sorted(received)):
        profile_LT[index, :T] = received[layer][0].float().cpu().numpy().mean(0)
    confidence_T = filled(step.confidence_BT[0].float().cpu().numpy(), N, np.nan)
    return {
        "index": step.index,
        "tokens": filled(step.tokens_BT[0].cpu().numpy(), N, -1).tolist(),
        "after": filled(step.after_BT[0].cpu().numpy(), N, -1).tolist(),
        "confidence": [round(float(c), 4) if np.isfinite(c) else None for c in confidence_T],
        **received_and_anchors(profile_LT, profile_LT.mean(0), lens.family.attention),
    }


def filled(values_T: Array, N: int, filler: float) -> Array:
    """Pad values to all N positions; positions that do not exist yet get the filler."""
    return np.concatenate([values_T, np.full(N - len(values_T), filler, values_T.dtype)])


def pieces(lens: Lens, ids: Sequence[int]) -> dict[str, str]:
    """Return readable strings by token id."""
    found = lens.token_strings(ids)
    return dict(zip(found, spelled(list(found.values())), strict=True))
