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
from floatlens.stats import interval_of_mean

Rows: TypeAlias = list[dict[str, Any]]
NOVELS = "public-domain-novels.txt.gz"
TEXTS = 20  # per test novel, and of the six training novels together
WORDS = (0, *FOLLOWED)
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
            pd.DataFrame(rows).to_parquet(table.with_suffix(".tmp"), index=False)
            table.with_suffix(".tmp").replace(table)
            print(table.stem, label, flush=True)


def measure(name: str, data: Path, out: Path, adapter: str | None, family: str | None, like: str | None) -> None:
    """Measure one model under the conditions of the plan.

    `like` names the model whose candidate is taken out and put back, so that both read the same texts.
    """
    novels, lens = read_novels(data), load(name, adapter, family)
    found = read_candidate(lens, name, novels, out, like)
    removed = same_type(lens.tokenizer, found["candidate"])

    def rows_of(ids: list[int]) -> Rows:
        texts = conditions(lens.tokenizer, ids, found["candidate"], found["controls"], removed, WORDS)
        return [{"model": name, "kind": lens.family.kind} | measure_text(lens, text) for text in texts]

    fill_table(out / f"{name}.parquet", lens, novels, rows_of)


def bare_texts(tokenizer: Any, ids: list[int], candidate: int) -> list[Text]:
    """The text without any token that lacks letters and digits; then with one candidate or one semicolon after word 5."""
    bare = [i for i in ids if any(c.isalnum() for c in tokenizer.decode([i]))]
    at = word_start(tokenizer, bare, 5)
    semicolon = tokenizer(";", add_special_tokens=False)["input_ids"][-1]
    texts = [Text("bare", bare[:LENGTH])]
    for name, token in (("candidate", candidate), ("semicolon", semicolon)):
        texts.append(Text(f"bare {name}", [*bare[:at], token, *bare[at:]][:LENGTH], at))
    return texts


def measure_bare(name: str, data: Path, out: Path, adapter: str | None, family: str | None, like: str | None) -> None:
    """Measure one model on text without punctuation, the last section of the plan."""
    novels, lens = read_novels(data), load(name, adapter, family)
    candidate = read_candidate(lens, name, novels, out, like)["candidate"]

    def rows_of(ids: list[int]) -> Rows:
        texts = bare_texts(lens.tokenizer, ids, candidate)
        return [{"model": name} | measure_text(lens, text, windows=True) for text in texts]

    fill_table(out / f"bare-{name}.parquet", lens, novels, rows_of)


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
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "claims":
        claims(args.out)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    run = {"measure": measure, "bare": measure_bare}[args.what]
    run(args.name, args.data, args.out, args.adapter, args.family, args.like)


if __name__ == "__main__":
    main()
