"""The switch: where is the sink, does it follow a token type, and do anchors float without it? See PLAN.md.

    python -m recipes.results.switch measure open-masked-0 --adapter RUNS/open-masked-0/final --family a2d-shifted \\
        --data DATA --out OUT
    python -m recipes.results.switch measure causal-next-0 --adapter RUNS/causal-next-0/final --like open-masked-0 \\
        --data DATA --out OUT
    python -m recipes.results.switch claims --out OUT

`measure` writes OUT/NAME.parquet, one row per text and condition; texts that are there already are not measured again.
`claims` prints the verdicts of the plan from the tables of both seeds.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

import floatlens as fl
from floatlens.findings import window
from floatlens.stats import interval_of_mean

NOVELS = "public-domain-novels.txt.gz"
PROMPT, WRITTEN, HIDDEN = 64, 96, 8  # tokens; the last ones stay masked at the last step
LENGTH = PROMPT + WRITTEN + HIDDEN
TEXTS = 20  # per test novel, and of the six training novels together
WORDS = (0, 5, 30, 50)
FOLLOWED = (5, 30, 50)  # word 0 cannot tell a position from a type
WINDOWED = ("as is", "out", "back at 5")  # conditions whose movement is measured; the others need the last step alone
MARGIN = 400  # tokens read for a text, so that enough are left when some are deleted


class Text(NamedTuple):
    """One text under one condition: its tokens, and where a token was inserted (-1: nowhere)."""

    condition: str
    ids: list[int]
    inserted: int = -1


def read_novels(data: Path) -> list[list[str]]:
    """The paragraphs of the eight novels."""
    with gzip.open(data / NOVELS, "rt", encoding="utf-8") as file:
        books = [book for book in file.read().split("\n\n\n") if book.strip()]
    if len(books) != 8:
        raise fl.FloatLensError(f"{NOVELS} has {len(books)} books, expected 8")
    return [[part.strip() for part in book.split("\n\n") if part.strip()] for book in books]


def spaced_texts(tokenizer: Any, paragraphs: list[str], count: int) -> Iterator[list[int]]:
    """Texts that begin at evenly spaced paragraphs."""
    for k in range(count):
        begin = int((k + 0.5) * len(paragraphs) / count)
        text = "\n".join(paragraphs[begin : begin + 60])
        ids = tokenizer(text, add_special_tokens=False)["input_ids"][:MARGIN]
        if len(ids) == MARGIN:
            yield ids


def same_type(tokenizer: Any, candidate: int) -> set[int]:
    """Token ids that count as the candidate's type: those with its characters, or the same word if it is a word."""
    strings = [tokenizer.decode([i]) for i in range(len(tokenizer))]
    core = strings[candidate].strip() or strings[candidate]
    if any(c.isalnum() for c in core):
        return {i for i, s in enumerate(strings) if s.strip() == core}
    return {i for i, s in enumerate(strings) if core in s}


def word_start(tokenizer: Any, ids: list[int], word: int) -> int:
    """Position of the token that begins a word, the first one being word 0."""
    starts = [0] + [i for i in range(1, len(ids)) if tokenizer.decode([ids[i]])[:1] in (" ", "\n")]
    return starts[word]


def conditions(tokenizer: Any, ids: list[int], candidate: int, controls: list[int], removed: set[int]) -> list[Text]:
    """The text under every condition of the plan."""
    out = [i for i in ids if i not in removed]
    texts = [Text("as is", ids[:LENGTH]), Text("out", out[:LENGTH])]
    for token, name in [(candidate, "back"), *((c, f"other {c}") for c in controls)]:
        for w in WORDS:
            at = word_start(tokenizer, out, w)
            texts.append(Text(f"{name} at {w}", [*out[:at], token, *out[at:]][:LENGTH], at))
    return texts


def attend(lens: fl.Lens, ids: list[int], *, windows: bool) -> tuple[list[np.ndarray], np.ndarray]:
    """Head-averaged attention (layer, query, key) after each written window, or after the last alone; and nats per token.

    The likelihood of a token is that before its window is written, given the tokens to its left (and masks for a diffusion
    model); it is measured only with `windows`.
    """
    prompt = fl.Prompt.from_ids(ids[:PROMPT])
    if lens.family.kind == "mdm":
        size = window.ROWS if windows else WRITTEN
        answer = list(range(LENGTH - PROMPT))
        order = [answer[i : i + size] for i in range(0, WRITTEN, size)] + [answer[WRITTEN:]]
        trace = lens.replay(prompt, ids[PROMPT:], order, record=("received",), matrices=("attention_mean",))
        confidence, at = trace.data["confidence"].values, trace.data["committed_at"].values
        nats = -np.log([confidence[at[i], i] for i in range(PROMPT, LENGTH)])
        return list(trace.data["attention_mean"].values[1:]), nats
    whole = fl.Prompt.from_ids(ids)
    trace = lens.trace(whole, max_new_tokens=1, record=("received",), matrices=("attention_mean",))
    with torch.no_grad():
        logits = lens.model(torch.tensor([ids])).logits[0, PROMPT - 1 : -1].float()
    nats = -logits.log_softmax(-1)[range(len(logits)), ids[PROMPT:]].numpy()
    matrix = trace.data["attention_mean"].values[0]
    return [matrix] * (WRITTEN // window.ROWS if windows else 1), nats


def measure_text(lens: fl.Lens, text: Text) -> dict[str, Any]:
    """Sink, first-token share and movement of one text under one condition."""
    matrices, nats = attend(lens, text.ids, windows=text.condition in WINDOWED)
    layers = len(matrices[0])
    rows = slice(PROMPT, PROMPT + WRITTEN)
    last_LQT = matrices[-1][:, rows, : PROMPT + WRITTEN]
    received_LT = last_LQT.mean(axis=1)
    causal = lens.family.attention == "causal"
    sees = np.arange(PROMPT, PROMPT + WRITTEN) + 1 if causal else np.full(WRITTEN, LENGTH)
    deep = slice(layers // 2, None)
    profile_T = received_LT[deep].mean(axis=0)
    sink = int(profile_T.argmax())
    found: dict[str, Any] = {
        "condition": text.condition,
        "inserted": text.inserted,
        "first_share": float(received_LT[deep, 0].mean() - (1 / sees).mean()),
        "first_by_layer": (received_LT[:, 0] - (1 / sees).mean()).tolist(),
        "sink": sink,
        "sink_id": text.ids[sink],
        "sink_token": lens.tokenizer.decode([text.ids[sink]]),
        "sink_share": float(profile_T[sink]),
        "sink_by_layer": received_LT.argmax(axis=1).tolist(),
        "share_by_layer": received_LT.max(axis=1).tolist(),
        "follows": float(sink == text.inserted) if text.inserted >= 0 else np.nan,
    }
    if text.condition in WINDOWED:
        starts = range(PROMPT, PROMPT + WRITTEN, window.ROWS)
        profiles = [
            window.profile(m[:, s : s + window.ROWS], s).astype(float) for m, s in zip(matrices, starts, strict=True)
        ]
        moved = window.moves(profiles)
        assert moved is not None
        found |= {
            "floating": float(np.nanmean(moved.floating[deep])) if np.isfinite(moved.floating[deep]).any() else np.nan,
            "moved": float(moved.moved[deep].mean()),
            "without_anchors": float(moved.without[deep].mean()),
            "floating_by_layer": moved.floating.tolist(),
            "moved_by_layer": moved.moved.tolist(),
            "nats": nats.tolist(),
        }
    return found


def find_candidate(lens: fl.Lens, novels: list[list[str]]) -> dict[str, Any]:
    """The token id that is most often the sink of training text, how often, and the control tokens."""
    tokenizer = lens.tokenizer
    joined = [paragraph for book in novels[:6] for paragraph in book]
    sinks = Counter(
        measure_text(lens, Text("training", ids[:LENGTH]))["sink_id"] for ids in spaced_texts(tokenizer, joined, TEXTS)
    )
    candidate, times = sinks.most_common(1)[0]
    counts = Counter(i for paragraph in joined for i in tokenizer(paragraph, add_special_tokens=False)["input_ids"])
    ranked = [i for i, _ in counts.most_common()]
    rank = ranked.index(candidate) if candidate in ranked else len(ranked) - 2
    neighbour = ranked[rank + 1]
    semicolon, conjunction = (tokenizer(t, add_special_tokens=False)["input_ids"][0] for t in (";", " and"))
    controls = [i for i in dict.fromkeys((neighbour, semicolon, conjunction)) if i != candidate]
    return {
        "candidate": candidate,
        "token": tokenizer.decode([candidate]),
        "texts": times,
        "of": sinks.total(),
        "controls": controls,
        "sinks": {tokenizer.decode([i]): n for i, n in sinks.most_common()},
    }


def measure(name: str, data: Path, out: Path, adapter: str | None, family: str | None, like: str | None) -> None:
    """Measure one model; the texts that its table has already are kept.

    `like` names the model whose candidate is taken out and put back, so that both read the same texts.
    """
    out.mkdir(parents=True, exist_ok=True)
    novels = read_novels(data)
    lens = fl.load("smollm2" if adapter else name, adapter=adapter, family=family, dtype="bfloat16")
    facts, table = out / f"{name}.json", out / f"{name}.parquet"
    if not facts.exists():
        facts.write_text(json.dumps(find_candidate(lens, novels), indent=1) + "\n", encoding="utf-8")
    found = json.loads(facts.read_text(encoding="utf-8"))
    print(name, found, flush=True)
    if like:
        found = json.loads((out / f"{like}.json").read_text(encoding="utf-8"))
    removed = same_type(lens.tokenizer, found["candidate"])
    rows = pd.read_parquet(table).to_dict("records") if table.exists() else []
    done = {row["text"] for row in rows}
    for book in (6, 7):
        for k, ids in enumerate(spaced_texts(lens.tokenizer, novels[book], TEXTS)):
            label = f"{book}-{k}"
            if label in done:
                continue
            for text in conditions(lens.tokenizer, ids, found["candidate"], found["controls"], removed):
                rows.append({"model": name, "kind": lens.family.kind, "text": label} | measure_text(lens, text))
            pd.DataFrame(rows).to_parquet(table.with_suffix(".tmp"), index=False)
            table.with_suffix(".tmp").replace(table)
            print(name, label, flush=True)


def judge(values: np.ndarray, smallest: float, level: float) -> tuple[float, tuple[float, float], str]:
    """Mean, interval and verdict of an effect that must exceed `smallest`; `level` is that of the two-sided interval."""
    values = values[np.isfinite(values)]
    if len(values) < 20:
        return float("nan"), (float("nan"), float("nan")), f"not testable here: {len(values)} texts have a value"
    value, (low, high) = interval_of_mean(values, level=level)
    return value, (low, high), "holds" if low > smallest else "fails" if high < smallest else "inconclusive"


def effects(out: Path, seed: int) -> dict[str, tuple[np.ndarray, float]]:
    """The effects of the three primary claims by text, and their smallest values."""
    tables = {
        name: pd.read_parquet(out / f"{name}-{seed}.parquet")
        for name in ("open-masked", "causal-masked", "causal-next")
    }

    def column(name: str, condition: str, value: str) -> pd.Series:
        table = tables[name]
        return table[table.condition == condition].set_index("text")[value].sort_index()

    smaller = np.minimum(column("causal-next", "as is", "first_share"), column("causal-masked", "as is", "first_share"))
    keeps = smaller - column("open-masked", "as is", "first_share")
    table = tables["open-masked"]
    places = "|".join(str(w) for w in FOLLOWED)
    back = table[table.condition.str.fullmatch(rf"back at ({places})")].groupby("text").follows.mean()
    other = table[table.condition.str.fullmatch(rf"other \d+ at ({places})")].groupby("text").follows.mean()

    def rise(name: str) -> pd.Series:
        return column(name, "out", "floating") - column(name, "as is", "floating")

    return {
        "keeps": (keeps.to_numpy(), 0.10),
        "type": ((back - other).to_numpy(), 0.5),
        "absent": ((rise("open-masked") - rise("causal-next")).to_numpy(), 0.10),
    }


def claims(out: Path) -> None:
    """Print the primary claims: Holm over the three with seed 0, then the same effects with seed 1."""
    for seed in (0, 1):
        if not (out / f"causal-next-{seed}.parquet").exists():
            print(f"seed {seed}: not measured")
            continue
        found = effects(out, seed)
        # Holm: the clearest effect is judged at 5 %/3, the next at 5 %/2, the last at 5 %, all one-sided
        scores = {}
        for name, (values, smallest) in found.items():
            there = values[np.isfinite(values)]
            error = there.std(ddof=1) / np.sqrt(len(there)) if len(there) > 1 else np.inf
            scores[name] = abs(there.mean() - smallest) / error if error else np.inf
        for rank, name in enumerate(sorted(scores, key=lambda n: -scores[n])):
            values, smallest = found[name]
            value, (low, high), verdict = judge(values, smallest, 1 - 2 * 0.05 / (3 - rank))
            print(f"seed {seed} {name}: {value:.3f} [{low:.3f}, {high:.3f}], smallest effect {smallest}: {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "claims"))
    parser.add_argument("name", nargs="?", help="name of the model in the tables")
    parser.add_argument("--adapter", help="folder of an adapter of SmolLM2")
    parser.add_argument("--family", help="family, for an adapter that changes it")
    parser.add_argument("--like", help="measured model whose candidate token is used; by default the model's own")
    parser.add_argument("--data", type=Path, help="folder of the novels")
    parser.add_argument("--out", type=Path, required=True, help="folder of the tables")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "claims":
        claims(args.out)
    else:
        measure(args.name, args.data, args.out, args.adapter, args.family, args.like)


if __name__ == "__main__":
    main()
