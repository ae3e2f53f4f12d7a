"""Comparison on identical text: two models write the same answers, so that only their attention differs.

The texts are the models' own answers, replayed (`decode.replay`) from left to right. The definition is
`paper.definitions.same_text_difference`. An autoregressive model's own answer needs no replay: its trace is one already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from floatlens.findings.outcome import rows_of
from floatlens.findings.samples import Array, Traces, as_traces, mean_over
from floatlens.paper import definitions
from floatlens.stats import interval_of_mean
from floatlens.store.runs import RunTraces
from floatlens.trace.trace import Trace

REPLAY = "replay"  # decode.replay.NAME, which cannot be imported without torch


class SameText(NamedTuple):
    """Mean difference MDM − ARM on identical text, its interval, and the number of questions with a value."""

    value: float
    interval: tuple[float, float]
    n: int


def split_replays(traces: Traces) -> tuple[Traces, Iterable[Trace]]:
    """Separate models' own traces from replays; if there are only replays, they are treated as own traces."""
    if isinstance(traces, RunTraces):
        return traces, traces.replays()
    every = as_traces(traces)
    given = [trace for trace in every if trace.data.attrs.get("sampler") == REPLAY]
    if len(given) in (0, len(every)):
        return every, []
    return [trace for trace in every if trace.data.attrs.get("sampler") != REPLAY], given


def question_of(sample_id: str) -> str:
    """The question of a sample, without the condition under which a study asked it.

    >>> question_of("world:long, replay of tiny-arm, long-3") == question_of("world:long, short, long-3")
    True
    """
    parts = sample_id.rsplit(", ", 2)
    return f"{parts[0]}, {parts[2]}" if len(parts) == 3 else sample_id


def texts_of(
    measured: xr.Dataset, replays: Iterable[Trace], floating_N: Callable[[Trace], Array], answers: Sequence[str]
) -> xr.Dataset:
    """Floating over the first 1, 2, … tokens of each text that was replayed for a sample.

    `floating_N` measures a replay; `answers` are the samples' own. Variables: `text` and its `text_tokens` (sample, n_text),
    `floating_text` (sample, n_text, n_token).
    """
    found: list[list[tuple[str, Array]]] = [[] for _ in answers]
    rows: dict[tuple[str, str], list[int]] = {}
    for row, (model, sample) in enumerate(zip(measured["model"].values, measured["sample_id"].values, strict=True)):
        rows.setdefault((str(model), question_of(str(sample))), []).append(row)
    for trace in replays:
        sample = question_of(str(trace.data.attrs.get("sample_id", "")))
        for row in rows.get((trace.model, sample), ()):
            found[row].append((spaced(trace.answer), floating_N(trace)))
    if not any(found):
        return xr.Dataset()
    for row, answer in enumerate(answers):
        written = int(measured["n_written"].values[row])
        if str(measured["model_kind"].values[row]) == "arm" and written:
            found[row].append((spaced(answer), mean_over(measured["floating_writing"].values[row, :, :written], 0)))
    most = max(len(texts) for texts in found)
    longest = max(len(numbers) for texts in found for _, numbers in texts)
    shape = (len(found), most)
    text, count, floating = np.full(shape, "", dtype=object), np.zeros(shape, int), np.full((*shape, longest), np.nan)
    for row, texts in enumerate(found):
        for index, (answer, numbers) in enumerate(texts):
            text[row, index], count[row, index] = answer, len(numbers)
            floating[row, index, : len(numbers)] = numbers
    return xr.Dataset(
        {
            "text": (("sample", "n_text"), text),
            "text_tokens": (("sample", "n_text"), count),
            "floating_text": (("sample", "n_text", "n_token"), floating),
        }
    )


def spaced(text: str) -> str:
    """The text with single spaces, because tokenizers add different ones."""
    return " ".join(text.split())


def difference_on_same_text(measured: xr.Dataset, fewest: int, mdm: str | None, arm: str | None) -> SameText | None:
    """Floating on identical text, MDM minus ARM, question by question; None if no text was replayed.

    `fewest` is the number of tokens that a text must have in both models.
    """
    if "floating_text" not in measured:
        return None
    sides = {
        kind: _by_question(measured, rows_of(measured, kind, model)) for kind, model in (("mdm", mdm), ("arm", arm))
    }
    values = []
    for question, left in sides["mdm"].items():
        pairs = [
            (a[min(len(a), len(b)) - 1], b[min(len(a), len(b)) - 1])
            for text, several in left.items()
            for a in several
            for b in sides["arm"].get(question, {}).get(text, ())
            if min(len(a), len(b)) >= fewest
        ]
        if pairs:
            values.append(definitions.same_text_difference(*np.array(pairs).T))
    there = [value for value in values if np.isfinite(value)]
    value, interval = interval_of_mean(there)
    return SameText(value, interval, len(there))


def _by_question(measured: xr.Dataset, rows: Array) -> dict[str, dict[str, list[Array]]]:
    """The numbers of each text, one per token, by question and text."""
    found: dict[str, dict[str, list[Array]]] = {}
    for row in rows:
        texts = found.setdefault(question_of(str(measured["sample_id"].values[row])), {})
        for index, count in enumerate(measured["text_tokens"].values[row]):
            if count:
                text = str(measured["text"].values[row, index])
                texts.setdefault(text, []).append(measured["floating_text"].values[row, index, : int(count)])
    return found
