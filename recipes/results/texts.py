"""Beyond question answering: the same numbers of attention on four tasks whose prompts have equal numbers of tokens.

Question answering sets the length. Free continuation takes as many tokens of plain text; key-value retrieval as many
random pairs as fit; infilling the plain text with masks in its middle, for models that can look ahead. Plain text is a
file, or the passages of the synthetic world one after another.
"""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Any

import pandas as pd

import floatlens as fl
from floatlens.data.prompt import Prompt
from floatlens.data.sample import Passage
from floatlens.files import atomic_write
from floatlens.lens import Lens
from recipes.results.measured import measure_attention
from recipes.results.models import REAL

TASKS = ("question", "continuation", "key-value", "infilling")
NEW = 32
PASSAGES = 5
PART = 10  # texts that are measured before their numbers are stored


def run(models: list[str], out: Path, limit: int, plain: Path | None = None) -> None:
    """Measure every task with every model, a few texts at a time; tables that exist are kept."""
    for model in models:
        lens: Lens | None = None
        for task in TASKS:
            target = out / f"{model} {task}.parquet"
            if target.exists():
                continue
            lens = lens or fl.load(model, dtype="bfloat16" if model in REAL else "auto")
            if task == "infilling" and lens.family.kind == "arm":
                continue
            prompts = prompts_of(lens, task, limit, plain)
            table = measure_in_parts(lens, task, prompts, out / "parts" / f"{model} {task}")
            table.assign(model=model, kind=lens.family.kind, task=task).to_parquet(target, index=False)


def measure_in_parts(lens: Lens, task: str, prompts: list[Prompt], folder: Path) -> pd.DataFrame:
    """Return the numbers of all prompts; each part is stored when it is measured, so that an interrupted run goes on."""
    folder.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {} if task == "infilling" else {"max_new_tokens": NEW}
    parts = []
    for start in range(0, len(prompts), PART):
        path = folder / f"{start}.parquet"
        if not path.exists():
            some = prompts[start : start + PART]
            numbers = [str(start + index) for index in range(len(some))]
            with atomic_write(path) as temporary:
                measure_attention(lens, some, numbers, **settings).to_parquet(temporary, index=False)
        parts.append(pd.read_parquet(path))
    return pd.concat(parts, ignore_index=True)


def prompts_of(lens: Lens, task: str, limit: int, plain: Path | None = None) -> list[Prompt]:
    """Return the prompts of a task; the i-th of every task have equally many tokens, as nearly as the task allows."""
    samples = list(fl.read("world:fresh" if plain is None else "atlas", limit=limit, passages=PASSAGES))
    asked = [lens.prompt(s.question, s.passages, answers=s.answers) for s in samples]
    if task == "question":
        return asked
    lengths = [len(prompt.ids) for prompt in asked]
    if task == "key-value":
        return [key_values(lens, length, number) for number, length in enumerate(lengths)]
    ids = plain_ids(lens, plain, sum(lengths))
    made, at = [], 0
    for length in lengths:
        part, at = ids[at : at + length], at + length
        if task == "continuation":
            made.append(Prompt.from_ids(part))
        else:
            half = (length - NEW) // 2
            left, right = (lens.tokenizer.decode(side) for side in (part[:half], part[half : length - NEW]))
            made.append(lens.infill_prompt(f"{left}{' [MASK]' * NEW}{right}"))
    return made


def key_values(lens: Lens, length: int, number: int) -> Prompt:
    """Return a question for one of as many random pairs as fit into `length` tokens, at least two."""
    draw = random.Random(number)
    word = lambda: f"{draw.getrandbits(24):06x}"  # noqa: E731
    pairs = [(word(), word()) for _ in range(100)]
    found: Prompt | None = None
    for count in range(2, len(pairs) + 1):
        gold = draw.randrange(2)
        shown = [Passage(value, key, i == gold) for i, (key, value) in enumerate(pairs[:count])]
        made = lens.prompt(f"What is the value of {pairs[gold][0]}?", shown, answers=[pairs[gold][1]])
        if found is not None and len(made.ids) > length:
            break
        found = made
    assert found is not None
    return found


def plain_ids(lens: Lens, plain: Path | None, count: int) -> list[int]:
    """Return tokens of plain text."""
    if plain is None:
        texts = (p.text for sample in fl.read("world:common", split="validation") for p in sample.passages)
    else:
        with gzip.open(plain, "rt", encoding="utf-8") as file:
            texts = iter([line.strip() for line in file if len(line) > 200])
    ids: list[int] = []
    for text in texts:
        ids += lens.tokenizer(f"{text} ", add_special_tokens=False)["input_ids"]
        if len(ids) >= count:
            return ids
    raise fl.FloatLensError(f"the plain text has {len(ids)} tokens, and {count} are needed; use a smaller --limit")


def collect(run: Path) -> pd.DataFrame:
    """Return one row per model, task and sample: means over layers."""
    table = pd.concat([pd.read_parquet(path) for path in sorted(run.glob("*.parquet"))], ignore_index=True)
    return table.groupby(["model", "kind", "task", "id"], sort=False).mean(numeric_only=True).reset_index()
