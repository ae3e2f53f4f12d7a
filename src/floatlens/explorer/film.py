"""The film of a trace: the data that the explorer draws, as one JSON object of limited size.

It has received attention, tokens and confidence step by step. Anchors are computed here, so that the page does not define
them a second time. Data that does not fit the budget is thinned by a fixed rule, and `thinned` describes what was left out.
README.md describes each field.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal

import numpy as np
import xarray as xr

from floatlens.anchors import find_anchors, parse_rule
from floatlens.data.sequences import LEFT_TO_RIGHT
from floatlens.data.token_kinds import GROUPS, classify, spelled
from floatlens.decode import replay
from floatlens.decode.sampler import SAMPLERS
from floatlens.errors import FloatLensError
from floatlens.findings.positions import spell
from floatlens.findings.tokens import mask_ids, template_positions
from floatlens.trace.trace import Trace

Array = np.ndarray[Any, Any]
FORMAT = "floatlens-film/1"
RULES = ("sigma(3)", "top(1)", "first", "share(0.3)", "excess(3)")  # the first is the default of the page
BUDGET = 6_000_000  # bytes; three such films fit into a report of 15 MB
BASE64 = 4 / 3
FEW_STEPS, FEW_LAYERS = 32, 8  # steps are thinned to this number before layers are, then layers before more steps


def film(trace: Trace, *, rules: Sequence[str] = RULES, budget: int = BUDGET) -> dict[str, Any]:
    """Return the film of a trace, at most about `budget` bytes as JSON.

    If it does not fit, matrices are thinned first, then heads, then steps, then layers; those that fit are evenly spaced
    from the first to the last. `film["thinned"]` is None, or sentences that describe this.

    >>> film(lens.trace("Who?"))["thinned"]      # doctest: +SKIP
    """
    data = trace.data
    if not trace.has_head_mean("received"):
        raise FloatLensError(f"the trace of {trace.model} has no received attention; record 'received' to explore it")
    received_SLHT = data["received"].values if "received" in data else None
    profile = trace.head_mean("received")
    layer_dim = str(profile.dims[1])
    profile_SLT = profile.values
    S, L, T = profile_SLT.shape
    H = data.sizes.get("head", 0)
    steps_at, layers_at = _fitting(S, L, T, len(rules), budget)
    layer_numbers = [int(n) for n in data[layer_dim].values] if layer_dim in data.coords else list(range(L))
    step_numbers = [int(n) for n in data["step"].values]
    thinned: list[str] = []

    def say(what: str, kept: Sequence[int], count: int, numbers: Sequence[int] = step_numbers) -> None:
        if not kept:
            thinned.append(f"{what} left out: they do not fit the size of the page.")
        elif len(kept) < count:
            there = f"{len(kept)} of {count} {what} kept"
            thinned.append(f"{there}, evenly spaced: {spell(numbers[i] for i in kept)}.")

    say("steps are", steps_at, S)
    say("layers are", layers_at, L, layer_numbers)
    shown_SLT = profile_SLT[np.ix_(steps_at, layers_at)]

    spare = budget - _base_bytes(len(steps_at), len(layers_at), T, len(rules))
    matrices = _matrices(trace, layer_dim)

    def fitting(what: str, steps: Sequence[int], bytes_per_step: float, share: float = 1.0) -> list[int]:
        nonlocal spare
        kept = [steps[i] for i in evenly(len(steps), min(len(steps), max(0, int(spare * share / bytes_per_step))))]
        spare -= len(kept) * bytes_per_step
        say(what, kept, len(steps))
        return kept

    heads_SLHT, head_steps = None, []
    if received_SLHT is None:
        thinned.append("single heads are left out: the trace is a summary (--detail summary).")
    else:
        share = 1 if matrices is None else 0.5
        head_steps = fitting("steps with single heads are", steps_at, len(layers_at) * H * T * 2 * BASE64, share)
        heads_SLHT = received_SLHT[np.ix_(head_steps, layers_at)] if head_steps else None
    attention_SLTT, attention_steps = None, []
    if matrices is not None:
        # A row of a causal model with a cache never changes: one matrix, assembled over all steps, serves every step.
        unchanging = trace.cached and trace.attention_kind == "causal"
        shown = [S - 1] if unchanging else steps_at
        attention_steps = fitting("attention matrices are", shown, len(layers_at) * T * T * 2 * BASE64)
        chosen = matrices.isel({layer_dim: layers_at})
        if attention_steps:
            whole = _gathered(chosen)[None] if unchanging else chosen.isel(step=attention_steps).values
            attention_SLTT = np.nan_to_num(whole)  # a block model computes the rows of its block only
    drift_SLT, moved_SL = _changes(trace, layer_dim, steps_at, layers_at)
    if drift_SLT is not None and drift_SLT.size * 2 * BASE64 > spare:
        say("changes of keys and values are", [], S)
        drift_SLT = None

    vocabulary = trace._from_json("vocabulary", {})
    pieces = dict(zip(vocabulary, spelled(list(vocabulary.values())), strict=True))
    tokens_ST = np.vstack([data["tokens"].values[steps_at], trace.final_tokens[None]])
    return {
        "format": FORMAT,
        "id": str(data.attrs.get("sample_id", "")),
        "model": trace.model,
        "family": trace.family,
        "diffusion": trace.kind == "mdm",
        "question": trace.question,
        "output": trace.answer,
        "answers": [str(answer) for answer in trace.answers],
        "prompt_length": trace.prompt_length,
        "layers": [layer_numbers[i] for i in layers_at],
        "heads": H,
        "head_numbers": [int(n) for n in data["head"].values] if "head" in data.coords else list(range(H)),
        "steps": [step_numbers[i] for i in steps_at],
        "vocabulary": pieces,
        "special_ids": trace._from_json("special_ids", []),
        "mask_ids": mask_ids(trace),
        "tokens": packed(tokens_ST, "int32"),
        "committed_at": [int(n) for n in data["committed_at"].values],
        "revised": [int(n) for n in data["revised"].values] if "revised" in data else None,
        "confidence": packed(data["confidence"].values[steps_at]),
        "regions": [{"name": r.name, "start": r.start, "end": r.end} for r in trace.regions],
        "gold": trace.gold,
        "kinds": _kinds(trace),
        "kind_groups": GROUPS,
        "received_heads": packed(heads_SLHT),
        "head_steps": [steps_at.index(i) for i in head_steps],
        "attention": packed(attention_SLTT),
        "attention_steps": [steps_at.index(i) for i in attention_steps],
        "drift": packed(drift_SLT),
        "moved": packed(moved_SL),
        **received_and_anchors(shown_SLT, profile_SLT[steps_at].mean(axis=1), trace.attention_kind, rules),
        "interventions": trace._from_json("interventions", []),
        "request": request(trace),
        "thinned": thinned or None,
    }


def request(trace: Trace) -> dict[str, Any] | None:
    """Return the request that made the trace, to run it again; None for a trace of the user's own loop.

    `load` are the options of `floatlens.load`; `built_from` are the arguments that build the prompt (`trace.recorder`),
    and if it is None, `prompt` has its tokens and regions; `settings` are those of the sampler that differ from the
    defaults; `replay` has the order and the tokens of a given answer, and its text if that gives the same tokens.
    """
    sampler = str(trace.data.attrs.get("sampler"))
    built_from, given = trace._from_json("built_from", None), trace._from_json("replay", None)
    if sampler not in SAMPLERS and given is None:
        return None
    if given is not None:
        P, order = trace.prompt_length, given["order"]
        own = {r.name: [r.start - P, r.end - P] for r in trace.regions if r.start >= P and r.name != "answer"}
        given |= {"order": order if order == LEFT_TO_RIGHT else trace.order, "ids": trace.written}
        given["regions"] = {} if trace.infill else own
    return {
        "load": trace._from_json("loaded_with", {}),
        "built_from": built_from,
        "prompt": None if built_from else _prompt(trace),
        "settings": _settings(trace, sampler),
        "replay": given,
    }


def _settings(trace: Trace, sampler: str) -> dict[str, Any]:
    """Return the settings of the sampler that are not defaults; a replay and a text with masks set the length themselves."""
    if sampler == replay.NAME:
        return {name: value for name in ("block_length", "seed") if (value := trace.settings.get(name))}
    defaults = {f.name: f.default for f in fields(SAMPLERS[sampler])}
    always = ("seed",) if trace.infill else ("max_new_tokens", "seed")
    known = {n: v for n, v in trace.settings.items() if n in always or v != defaults.get(n)}
    return {n: v for n, v in known.items() if n != "max_new_tokens" or not trace.infill}


def _prompt(trace: Trace) -> dict[str, Any]:
    """Return the tokens of a prompt, and its regions; `tail` are those of a text with masks from its first mask on."""
    P, final = trace.prompt_length, [int(i) for i in trace.final_tokens]
    tail = None
    if trace.infill:
        at, mask = trace.data["committed_at"].values, mask_ids(trace)[0]
        tail = [final[i] if at[i] < 0 else mask for i in range(P, len(final))]
    end = len(final) if tail else P
    return {
        "ids": final[:P],
        "tail": tail,
        "regions": [[r.name, r.start, r.end] for r in trace.regions if r.end <= end],
        "gold": [int(name.removeprefix("doc")) - 1 for name in trace.gold],
    }


def received_and_anchors(received: Array, mean: Array, attention: str, rules: Sequence[str] = RULES) -> dict[str, Any]:
    """Received attention by layer and its mean over layers, and the anchors of both; of a film, or of one step.

    >>> uniform = np.array([[0.7, 0.1, 0.1, 0.1]])
    >>> received_and_anchors(uniform, uniform[0], "bidirectional", ["top(1)"])["anchors"]
    {'top(n=1)': {'dtype': 'uint8', 'shape': [1, 1], 'data': 'AQ=='}}
    """
    found: dict[str, Any] = {}
    for ending, values in (("", received), ("_all", mean)):
        found[f"received{ending}"] = packed(values)
        found[f"anchors{ending}"] = {parse_rule(r).id: bits(find_anchors(values, r, attention)) for r in rules}
    return found


def evenly(count: int, keep: int) -> list[int]:
    """Return `keep` of `count` indices, evenly spaced from the first to the last."""
    if keep >= count:
        return list(range(count))
    return [count - 1] if keep == 1 else [round(i * (count - 1) / (keep - 1)) for i in range(keep)]


def _base_bytes(S: int, L: int, T: int, n_rules: int) -> float:
    """Return the size of the mandatory part of a film, in bytes of text."""
    per_step = (L + 1) * (2 * T + n_rules * -(-T // 8)) + 6 * T
    return (S * per_step + 4 * T) * BASE64 + 60 * T


def _fitting(S: int, L: int, T: int, n_rules: int, budget: int) -> tuple[list[int], list[int]]:
    """Return the indices of the steps and layers that fit the budget."""

    def fits(steps: int, layers: int) -> bool:
        return _base_bytes(steps, layers, T, n_rules) <= budget

    steps, layers = S, L
    for fewest_steps, fewest_layers in ((FEW_STEPS, L), (FEW_STEPS, FEW_LAYERS), (2, FEW_LAYERS), (2, 1)):
        while not fits(steps, layers) and steps > fewest_steps:
            steps -= 1
        while not fits(steps, layers) and layers > fewest_layers:
            layers -= 1
    if not fits(steps, layers):
        raise FloatLensError(f"a film of {T} positions does not fit in {budget} bytes; use a larger budget")
    return evenly(S, steps), evenly(L, layers)


def _matrices(trace: Trace, layer_dim: str) -> xr.DataArray | None:
    """Return head-mean attention (step, layer, query, key) if it was recorded for the same layers; loaded lazily."""
    for name in ("attention_mean", "attention"):
        if name in trace.data and trace.data[name].dims[1] == layer_dim:
            found = trace.data[name]
            return found.mean("head") if "head" in found.dims else found
    return None


def _changes(
    trace: Trace, layer_dim: str, steps_at: list[int], layers_at: list[int]
) -> tuple[Array | None, Array | None]:
    """Return the change of keys and values (step, layer, position) and the attention that moved (step, layer), if recorded.

    If steps are left out of a film, it still shows the change since the previous step of the run.
    """
    data, shown = trace.data, np.ix_(steps_at, layers_at)

    def mean_of(*names: str) -> Array | None:
        if any(name not in data or data[name].dims[1] != layer_dim for name in names):
            return None
        mean = np.mean([data[name].values[shown] for name in names], axis=0)
        return mean if np.isfinite(mean).any() else None

    drift_SLT, similarity_SLH = mean_of("key_change", "value_change"), mean_of("step_similarity")
    return drift_SLT, None if similarity_SLH is None else 1 - similarity_SLH.mean(axis=2)


def _gathered(rows_SLTT: xr.DataArray) -> Array:
    """Assemble the matrix of a cached model (layer, query, key), each row from the step that computed it."""
    whole_LTT = np.zeros(rows_SLTT.shape[1:], np.float32)
    for step in range(rows_SLTT.sizes["step"]):
        step_LTT = rows_SLTT.isel(step=step).values
        whole_LTT = np.where(np.isfinite(step_LTT), step_LTT, whole_LTT)
    return whole_LTT


def _kinds(trace: Trace) -> list[str]:
    """Return the kind of the final token at each position; special tokens and the mask are recognised by their ids."""
    final, kinds = trace.final_tokens, np.array(classify(trace.strings(), template_positions(trace)), object)
    kinds[np.isin(final, trace._from_json("special_ids", [])) & (kinds != "mask")] = "special"
    kinds[np.isin(final, mask_ids(trace))] = "mask"
    return list(kinds)


def packed(array: Array | None, dtype: Literal["float16", "int32", "uint8"] = "float16") -> dict[str, Any] | None:
    """Encode an array as JSON; None stays None."""
    if array is None:
        return None
    ordered = np.ascontiguousarray(array, dtype=np.dtype(dtype).newbyteorder("<"))
    return {"dtype": dtype, "shape": list(array.shape), "data": base64.b64encode(ordered.tobytes()).decode("ascii")}


def bits(flags: Array) -> dict[str, Any] | None:
    """Pack booleans into bits along the last axis, the first in the lowest bit."""
    return packed(np.packbits(flags, axis=-1, bitorder="little"), "uint8")
