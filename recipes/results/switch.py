"""The switch: where is the sink, does it follow a token type, and do anchors float without it? See PLAN.md.

    python -m recipes.results.switch measure open-masked-0 --adapter RUNS/open-masked-0/final --family a2d-shifted \\
        --data DATA --out OUT
    python -m recipes.results.switch measure causal-next-0 --adapter RUNS/causal-next-0/final --like open-masked-0 \\
        --data DATA --out OUT
    python -m recipes.results.switch bare open-masked-1 --adapter RUNS/open-masked-1/final --family a2d-shifted \\
        --data DATA --out OUT
    python -m recipes.results.switch claims --out OUT

`measure` writes OUT/NAME.parquet, one row per text and condition; `bare` writes OUT/bare-NAME.parquet, the texts without any
punctuation. Texts that are there already are not measured again. `claims` prints the verdicts of the plan from the tables of
both seeds.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch

import floatlens as fl
from floatlens.findings.sink import WORDS as FOLLOWED
from floatlens.findings.sink import Text, choose_controls, conditions, measure_text, same_type, word_start
from floatlens.findings.window import LENGTH
from floatlens.stats import FAILS, HOLDS, INCONCLUSIVE, NOT_TESTABLE, interval_of_mean

Rows: TypeAlias = list[dict[str, Any]]
NOVELS = "public-domain-novels.txt.gz"
TEXTS = 20  # per test novel, and of the six training novels together
WORDS = (0, *FOLLOWED)
PRIMARY = ("keeps", "type", "absent")
FEWEST = 20  # texts with a value, for a verdict
MARGIN = 400  # tokens read for a text, so that enough are left when some are deleted


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


def find_candidate(lens: fl.Lens, novels: list[list[str]]) -> dict[str, Any]:
    """The token id that is most often the sink of training text, how often, and the control tokens."""
    tokenizer: Any = lens.tokenizer
    joined = [paragraph for book in novels[:6] for paragraph in book]
    sinks = Counter(
        measure_text(lens, Text("training", ids[:LENGTH]))["sink_id"] for ids in spaced_texts(tokenizer, joined, TEXTS)
    )
    candidate, times = sinks.most_common(1)[0]
    counts = Counter(i for paragraph in joined for i in tokenizer(paragraph, add_special_tokens=False)["input_ids"])
    return {
        "candidate": candidate,
        "token": tokenizer.decode([candidate]),
        "texts": times,
        "of": sinks.total(),
        "controls": choose_controls(tokenizer, counts, candidate, same_type(tokenizer, candidate)),
        "sinks": {tokenizer.decode([i]): n for i, n in sinks.most_common()},
    }


def load(name: str, adapter: str | None, family: str | None) -> fl.Lens:
    """SmolLM2 with an adapter, or the model of this name."""
    return fl.load("smollm2" if adapter else name, adapter=adapter, family=family, dtype="bfloat16")


def read_candidate(lens: fl.Lens, name: str, novels: list[list[str]], out: Path, like: str | None) -> dict[str, Any]:
    """What OUT/NAME.json says of the model's candidate, found first if the file is missing; of the model `like` if given."""
    facts = out / f"{name}.json"
    if not facts.exists():
        facts.write_text(json.dumps(find_candidate(lens, novels), indent=1) + "\n", encoding="utf-8")
    return json.loads((out / f"{like or name}.json").read_text(encoding="utf-8"))


def fill_table(
    table: Path,
    lens: fl.Lens,
    novels: list[list[str]],
    rows_of: Callable[[list[int]], Rows],
    every: int = 1,
    only: str | None = None,
) -> None:
    """Add the rows of the test texts that the table has not yet; the table is replaced after each text.

    `every` takes one text of so many, `only` the text of this name alone.
    """
    rows: Rows = pd.read_parquet(table).to_dict("records") if table.exists() else []
    done = {row["text"] for row in rows}
    for book in (6, 7):
        for k, ids in enumerate(spaced_texts(lens.tokenizer, novels[book], TEXTS)):
            label = f"{book}-{k}"
            if label in done or k % every or only not in (None, label):
                continue
            rows += [{"text": label} | row for row in rows_of(ids)]
            pd.DataFrame(rows).to_parquet(table.with_suffix(".tmp"), index=False, compression="zstd")
            table.with_suffix(".tmp").replace(table)
            print(table.stem, label, flush=True)


def measure(
    name: str, data: Path, out: Path, adapter: str | None, family: str | None, like: str | None, every: int = 1
) -> None:
    """Measure one model under the conditions of the plan.

    `like` names the model whose candidate is taken out and put back, so that both read the same texts.
    """
    novels, lens = read_novels(data), load(name, adapter, family)
    found = read_candidate(lens, name, novels, out, like)
    removed = same_type(lens.tokenizer, found["candidate"])

    def rows_of(ids: list[int]) -> Rows:
        texts = conditions(lens.tokenizer, ids, found["candidate"], found["controls"], removed, WORDS)
        return [{"model": name, "kind": lens.family.kind} | measure_text(lens, text) for text in texts]

    fill_table(out / f"{name}.parquet", lens, novels, rows_of, every)


def bare_texts(tokenizer: Any, ids: list[int], candidate: int) -> list[Text]:
    """The text without any token that lacks letters and digits; then with one candidate or one semicolon after word 5."""
    bare = [i for i in ids if any(c.isalnum() for c in tokenizer.decode([i]))]
    at = word_start(tokenizer, bare, 5)
    semicolon = tokenizer(";", add_special_tokens=False)["input_ids"][-1]
    texts = [Text("bare", bare[:LENGTH])]
    for name, token in (("candidate", candidate), ("semicolon", semicolon)):
        texts.append(Text(f"bare {name}", [*bare[:at], token, *bare[at:]][:LENGTH], at))
    return texts


def measure_bare(
    name: str, data: Path, out: Path, adapter: str | None, family: str | None, like: str | None, every: int = 1
) -> None:
    """Measure one model on text without punctuation, the last section of the plan."""
    novels, lens = read_novels(data), load(name, adapter, family)
    candidate = read_candidate(lens, name, novels, out, like)["candidate"]

    def rows_of(ids: list[int]) -> Rows:
        texts = bare_texts(lens.tokenizer, ids, candidate)
        return [{"model": name} | measure_text(lens, text, windows=True) for text in texts]

    fill_table(out / f"bare-{name}.parquet", lens, novels, rows_of, every)


def judge(values: np.ndarray, smallest: float, level: float = 0.95) -> tuple[float, tuple[float, float], str]:
    """Mean, interval and verdict of an effect that must exceed `smallest`; `level` is that of the two-sided interval."""
    values = values[np.isfinite(values)]
    if len(values) < FEWEST:
        return float("nan"), (float("nan"), float("nan")), f"{NOT_TESTABLE}: {len(values)} texts have a value"
    value, (low, high) = interval_of_mean(values, level=level)
    return value, (low, high), HOLDS if low > smallest else FAILS if high < smallest else INCONCLUSIVE


def read_tables(out: Path, seed: int) -> dict[str, pd.DataFrame]:
    """The tables of a seed that are there, by the name of the model; `bare` texts as bare-NAME."""
    names = ("open-masked", "causal-masked", "causal-next", "bare-open-masked", "bare-causal-next")
    paths = {name: out / f"{name}-{seed}.parquet" for name in names}
    return {name: pd.read_parquet(path) for name, path in paths.items() if path.exists()}


def column(table: pd.DataFrame, condition: str, value: str) -> pd.Series:
    """A column of one condition by text."""
    return table[table.condition == condition].set_index("text")[value].sort_index()


def follows(table: pd.DataFrame, inserted: str) -> pd.Series:
    """How often the sink is the inserted token, by text; `inserted` is a pattern such as `back`."""
    places = "|".join(str(w) for w in FOLLOWED)
    return table[table.condition.str.fullmatch(rf"{inserted} at ({places})")].groupby("text").follows.mean()


def effects(out: Path, seed: int) -> dict[str, tuple[np.ndarray, float]]:
    """The effects by text of the claims whose tables are there, and their smallest values; `moves` is the paper's claim."""
    tables = read_tables(out, seed)

    def rise(name: str) -> pd.Series:
        return column(tables[name], "out", "floating") - column(tables[name], "as is", "floating")

    found: dict[str, tuple[np.ndarray, float]] = {}
    if {"open-masked", "causal-next"} <= tables.keys():
        one, other = (column(tables[name], "as is", "floating") for name in ("open-masked", "causal-next"))
        found["moves"] = ((one - other).to_numpy(), 0.10)
    if {"open-masked", "causal-masked", "causal-next"} <= tables.keys():
        first = {name: column(tables[name], "as is", "first_share") for name in tables if not name.startswith("bare")}
        smaller = np.minimum(first["causal-next"], first["causal-masked"])
        found["keeps"] = ((smaller - first["open-masked"]).to_numpy(), 0.10)
    if "open-masked" in tables:
        table = tables["open-masked"]
        found["type"] = ((follows(table, "back") - follows(table, r"other \d+")).to_numpy(), 0.5)
    if {"open-masked", "causal-next"} <= tables.keys():
        found["absent"] = ((rise("open-masked") - rise("causal-next")).to_numpy(), 0.10)
    if "bare-open-masked" in tables:
        bare, one = (column(tables["bare-open-masked"], c, "floating") for c in ("bare", "bare candidate"))
        found["switch"] = ((bare - one).to_numpy(), 0.10)
    return found


def verdicts(out: Path, seed: int) -> dict[str, dict[str, Any]]:
    """Value, 95 % interval and verdict of every claim of the plan that the tables of a seed allow.

    Of the three primary claims the clearest effect is judged at 5 %/3, the next at 5 %/2, the last at 5 %, all one-sided
    (Holm); after one that is not decided, none is. `moves` and `switch` are judged alone.
    """
    found = effects(out, seed)
    levels = dict.fromkeys(found, 0.95)
    primary = [name for name in PRIMARY if name in found]
    blocked = no_candidate(out, seed)
    undecided = False
    rows: dict[str, dict[str, Any]] = {}
    for rank, name in enumerate(sorted(primary, key=lambda name: -clearness(*found[name]))):
        levels[name] = 1 - 2 * 0.05 / (len(PRIMARY) - rank)
    for name in sorted(found, key=lambda name: -levels[name] if name in PRIMARY else -1):
        values, smallest = found[name]
        value, (low, high), _ = judge(values, smallest)
        verdict = judge(values, smallest, levels[name])[2]
        if name in PRIMARY:
            undecided |= verdict == INCONCLUSIVE
            verdict = INCONCLUSIVE if undecided and verdict in (HOLDS, FAILS) else verdict
        if blocked and name in ("type", "absent"):
            verdict = blocked
        n = int(np.isfinite(values).sum())
        rows[name] = {"value": value, "low": low, "high": high, "n": n, "smallest": smallest, "verdict": verdict}
    return {name: rows[name] for name in found}


def clearness(values: np.ndarray, smallest: float) -> float:
    """Distance of the mean from the smallest effect, in standard errors."""
    there = values[np.isfinite(values)]
    error = there.std(ddof=1) / np.sqrt(len(there)) if len(there) > 1 else np.inf
    return float(abs(there.mean() - smallest) / error) if error else np.inf


def no_candidate(out: Path, seed: int) -> str:
    """Why no token type can be tested; empty if one is the sink of a quarter of the training texts or more."""
    facts = out / f"open-masked-{seed}.json"
    if not facts.exists():
        return ""
    found = json.loads(facts.read_text(encoding="utf-8"))
    if found["texts"] * 4 >= found["of"]:
        return ""
    return f"{NOT_TESTABLE}: the most frequent sink is {found['token']!r}, in {found['texts']} of {found['of']} texts"


def print_claims(out: Path) -> None:
    for seed in (0, 1):
        found = verdicts(out, seed)
        for name in ("moves", *PRIMARY, "switch"):
            if name in found:
                row = found[name]
                interval = f"{row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
                print(f"seed {seed} {name}: {interval}, smallest effect {row['smallest']}: {row['verdict']}")
            else:
                print(f"seed {seed} {name}: not measured yet")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which model is measured, on which data, and where its tables are."""
    parser.add_argument("name", nargs="?", help="name of the model in the tables")
    parser.add_argument("--adapter", help="folder of an adapter of SmolLM2")
    parser.add_argument("--family", help="family, for an adapter that changes it")
    parser.add_argument("--like", help="measured model whose candidate token is used; by default the model's own")
    parser.add_argument("--data", type=Path, help="folder of the novels")
    parser.add_argument("--out", type=Path, required=True, help="folder of the tables")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "bare", "claims"))
    add_options(parser)
    parser.add_argument("--every", type=int, default=1, help="read every so many texts; by default all 40")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "claims":
        print_claims(args.out)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    run = {"measure": measure, "bare": measure_bare}[args.what]
    run(args.name, args.data, args.out, args.adapter, args.family, args.like, args.every)


if __name__ == "__main__":
    main()
