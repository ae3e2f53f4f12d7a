"""Sink: where a model's attention settles, and whether that is a position or a token type.

In autoregressive models it is the first token (arXiv 2309.17453, 2402.17762). Here it is asked of any model, on ordinary
prose without a template. On some texts the token id that is most often the sink is found: the candidate. In other texts
every token of its type is then deleted, and one is put back after a few words: a sink that is a token type follows it, one
that is a position does not. Control tokens are put at the same words. Definitions: `recipes/results/PLAN.md`.

Measured on the table `texts` of a study (`floatlens study MODEL --only sink`), one row per text and condition, which
`studies/texts.py` makes with the functions that come first here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from floatlens import untrusted
from floatlens.errors import FloatLensError
from floatlens.findings.finding import CLAIMS, Finding, declare_finding, register_claim
from floatlens.findings.samples import mean, parts_of, per_question
from floatlens.findings.spelling import percent
from floatlens.findings.verdict import Verdict, mean_of
from floatlens.findings.window import LENGTH, PROMPT, read_text
from floatlens.stats import NOT_TESTABLE, Array
from floatlens.store.runs import TEXTS

if TYPE_CHECKING:
    from floatlens.lens import Lens

FIND, AS_IS, OUT = "find", "as is", "out"  # conditions; FIND: the texts on which the candidate is found
WORDS = (5, 30, 50)  # after which a token is put back; the first word cannot tell a position from a type
BACK = f"back at {WORDS[0]}"
WINDOWED = (AS_IS, OUT, BACK)  # conditions whose movement is measured; the others need the last step alone
FEWEST = 0.25  # share of texts whose sink the candidate must be
CONTROLS = (";", " and")  # beside the id next in frequency to the candidate


class Text(NamedTuple):
    """One text under one condition: its tokens, and where a token was inserted (-1: nowhere)."""

    condition: str
    ids: list[int]
    inserted: int = -1


# Texts with the candidate taken out and put back


def spell(tokenizer: Any, token: int) -> str:
    """The characters of a token alone, with the space before it that some tokenizers drop.

    SentencePiece marks the space by ▁; WordPiece marks by ## that there is none.
    """
    text = tokenizer.decode([token])
    piece = str(tokenizer.convert_ids_to_tokens(token)) if hasattr(tokenizer, "convert_ids_to_tokens") else text
    if piece.startswith("##"):
        return piece[2:]
    return f" {text}" if piece.startswith("▁") and not text.startswith(" ") else text


def same_type(tokenizer: Any, candidate: int) -> set[int]:
    """Token ids that count as the candidate's type: those with its characters, or the same word if it is a word."""
    strings = [spell(tokenizer, i) for i in range(len(tokenizer))]
    core = strings[candidate].strip() or strings[candidate]
    if any(c.isalnum() for c in core):
        return {i for i, s in enumerate(strings) if s.strip() == core}
    return {i for i, s in enumerate(strings) if core in s}


def word_start(tokenizer: Any, ids: Sequence[int], word: int) -> int:
    """Position of the token that begins a word, the first one being word 0; without spaces every token is a word."""
    starts = [0] + [i for i in range(1, len(ids)) if spell(tokenizer, ids[i])[:1] in (" ", "\n")]
    return starts[word] if word < len(starts) else word


def conditions(
    tokenizer: Any,
    ids: Sequence[int],
    candidate: int,
    controls: Sequence[int],
    removed: set[int],
    words: Sequence[int] = WORDS,
) -> list[Text]:
    """The text as it is, without the candidate's type, and with the candidate or a control put back after some words."""
    out = [i for i in ids if i not in removed]
    texts = [Text(AS_IS, list(ids[:LENGTH])), Text(OUT, out[:LENGTH])]
    for token, name in [(candidate, "back"), *((c, f"other {c}") for c in controls)]:
        for word in words:
            at = word_start(tokenizer, out, word)
            texts.append(Text(f"{name} at {word}", [*out[:at], token, *out[at:]][:LENGTH], at))
    return texts


def choose_controls(tokenizer: Any, counts: Counter[int], candidate: int, removed: set[int]) -> list[int]:
    """Tokens to put where the candidate is put back: the id next in frequency, the bare semicolon, and " and"."""
    ranked = [i for i, _ in counts.most_common() if i == candidate or i not in removed]
    rank = ranked.index(candidate) if candidate in ranked else len(ranked) - 2
    chosen = [
        *ranked[rank + 1 : rank + 2],
        *(tokenizer(t, add_special_tokens=False)["input_ids"][-1] for t in CONTROLS),
    ]
    unknown = getattr(tokenizer, "unk_token_id", None)
    return [i for i in dict.fromkeys(chosen) if i not in removed and i not in (candidate, unknown)]


def measure_text(lens: Lens, text: Text, *, windows: bool | None = None) -> dict[str, Any]:
    """`read_text` of a text, by default with `windows` under the conditions WINDOWED, and whether its sink was inserted."""
    found = read_text(lens, text.ids, windows=text.condition in WINDOWED if windows is None else windows)
    follows = float(found["sink"] == text.inserted) if text.inserted >= 0 else float("nan")
    return {"condition": text.condition, "inserted": text.inserted, **found, "follows": follows}


# The finding


def texts_of(source: pd.DataFrame | str | Path | Iterable[str | Path]) -> pd.DataFrame:
    """The table of texts itself, or those of run folders together."""
    if isinstance(source, pd.DataFrame):
        return source
    paths = [Path(source)] if isinstance(source, str | Path) else [Path(path) for path in source]
    files = {path: path / TEXTS / f"{TEXTS}.parquet" for path in paths}
    found = [untrusted.read_parquet(file, path) for path, file in files.items() if file.exists()]
    if not found:
        raise FloatLensError(f"{', '.join(map(str, paths))} has no texts; create them with floatlens study --only sink")
    return pd.concat(found, ignore_index=True)


def describe_sink(part: xr.Dataset) -> dict[str, Any]:
    """The row of the table: what the sink is, in words, and the numbers."""
    return {"sink": _describe(part), **Finding.row(sink, part)}


@declare_finding(row=describe_sink)
def sink(texts: Any) -> xr.Dataset:
    """Measure where the sink is and what becomes of it without its token, one row per model and text."""
    table = texts_of(texts)
    table = table[table["error"].isna()]
    tested = table[table["condition"] != FIND]
    if tested.empty:
        raise FloatLensError("no text could be read; see errors.jsonl of the run")
    key = ["model", "data", "id"]
    order, coords = per_question(tested, key)

    def column(condition: str, name: str) -> Array:
        return tested[tested["condition"] == condition].set_index(key)[name].reindex(order).to_numpy()

    def follows(prefix: str) -> Array:
        part = tested[tested["condition"].str.startswith(prefix)]
        return part.groupby(key)["follows"].mean().reindex(order).to_numpy(float)

    candidates = {model: _candidate(part) for model, part in table.groupby("model", sort=False)}
    of_row = [candidates[model] for model in coords["model"][1]]
    pairs = zip(column(OUT, "nats"), column(BACK, "nats"), column(BACK, "inserted"), strict=True)
    layers = max(len(each) for each in tested["share_by_layer"])
    by_layer = {"share": "share_by_layer", "first": "first_by_layer", "floating": "floating_by_layer"}
    arrays = {name: _by_layer(column(AS_IS, of), layers) for name, of in by_layer.items()}
    there = np.isfinite(arrays["share"])
    last = np.maximum(there.sum(axis=1, keepdims=True) - 1, 1)
    depth = np.where(there, np.arange(layers) / last, np.nan)
    numbers = {
        **{name: column(AS_IS, name) for name in ("sink_share", "first_share")},
        "deep_floating": column(AS_IS, "floating"),
        "deep_floating_out": column(OUT, "floating"),
        "deep_floating_back": column(BACK, "floating"),
        "follows": follows("back at "),
        "follows_other": follows("other "),
        "nats_saved": [_nats_saved(*pair) for pair in pairs],
        "candidate_share": [share for _, share in of_row],
    }
    return xr.Dataset(
        {
            **{name: (("sample", "layer"), values) for name, values in arrays.items()},
            **{name: ("sample", np.asarray(values, float)) for name, values in numbers.items()},
            "candidate": ("sample", np.array([token for token, _ in of_row], object)),
            "depth": (("sample", "layer"), depth),
        },
        coords={**coords, "layer": np.arange(layers)},
    )


def _candidate(part: pd.DataFrame) -> tuple[str, float]:
    """The token that is most often the sink of a model's first texts, and in which share of them."""
    sinks = part.loc[part["condition"] == FIND]
    if sinks.empty:
        return "", 0.0
    chosen = find_candidate(sinks["sink_id"])
    token = sinks.loc[sinks["sink_id"] == chosen, "sink_token"].iloc[0]
    return str(token), float((sinks["sink_id"] == chosen).mean())


def find_candidate(sink_ids: Iterable[int]) -> int:
    """The token id that is most often the sink; the first to appear if several are."""
    return Counter(int(i) for i in sink_ids).most_common(1)[0][0]


def _describe(part: xr.Dataset) -> str:
    """What the sink is, in words."""
    if mean(part["first_share"].values) > CLAIMS["sink.first"].effect:
        return "the first token"
    if _blocked(part):
        return "no token type and not the first token"
    token = str(part["candidate"].values[0])
    followed = mean(part["follows"].values) - mean(part["follows_other"].values) > CLAIMS["sink.type"].effect
    return f"the token type {token!r}" if followed else f"often {token!r}, not as a type"


def _by_layer(cells: Any, layers: int) -> Array:
    """Numbers by layer of all rows (sample, layer); NaN where a row has none."""
    rows = [list(numbers) if isinstance(numbers, Sequence | np.ndarray) else [] for numbers in cells]
    return pd.DataFrame(rows).reindex(columns=range(layers)).to_numpy(float)


def _nats_saved(out: Any, back: Any, inserted: Any) -> float:
    """Mean surprise at the tokens after the prompt, without the candidate minus with one, which moves them by one."""
    if not isinstance(out, Sequence | np.ndarray) or not isinstance(back, Sequence | np.ndarray) or inserted >= PROMPT:
        return float("nan")
    return float(np.mean(np.asarray(out, float)[:-1]) - np.mean(np.asarray(back, float)[1:]))


# Claims


def _blocked(part: xr.Dataset) -> str:
    """Why a claim on the candidate cannot be tested; empty if it can."""
    share = float(part["candidate_share"].values.max(initial=0.0))
    if share >= FEWEST:
        return ""
    return f"no token type is the sink: the most frequent one is it in {percent(share)} of the texts"


def _on_type(measured: xr.Dataset, values: Array, model: str | None, **beside: Array) -> Verdict:
    part = measured if model is None else dict(parts_of(measured))[model]
    token = f"the candidate is {str(part['candidate'].values[0])!r}"
    found = mean_of(measured, values, model=model, what="texts", beside=beside, reason=token)
    reason = _blocked(part)
    return replace(found, verdict=NOT_TESTABLE, reason=reason) if reason else found


@register_claim("sink.type")
def follows_a_type(measured: xr.Dataset, *, model: str | None = None) -> Verdict:
    back, other = measured["follows"].values, measured["follows_other"].values
    return _on_type(measured, back - other, model, candidate=back, controls=other)


@register_claim("sink.absent")
def floats_without_it(measured: xr.Dataset, *, model: str | None = None) -> Verdict:
    as_is, out = measured["deep_floating"].values, measured["deep_floating_out"].values
    return _on_type(measured, out - as_is, model, **{"as is": as_is, "out": out})


@register_claim("sink.back")
def stands_with_one(measured: xr.Dataset, *, model: str | None = None) -> Verdict:
    out, back = measured["deep_floating_out"].values, measured["deep_floating_back"].values
    return _on_type(measured, out - back, model, **{"out": out, "back": back})


measure, figure, claims = sink.measure, sink.figure, sink.claims
