"""Training rows of the three SmolLM2 models: questions with their passages, and plain text.

Row i is a function of the seed and i alone, so the three models see the same rows and a run that was interrupted goes on
with the row that comes next. Data that is used for scores is never read, except to leave out what it shares with the
training data.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from floatlens.data import atlas
from floatlens.data.sample import Sample

TRAIN, SCORED = "nq-open-oracle.train2055.jsonl.gz", "nq-open-oracle.first200.jsonl.gz"
TEXT = "wikitext-2.valid-test.txt.gz"
NOVELS = "public-domain-novels.txt.gz"
TRAINING_NOVELS = 6  # of eight; the last two, the shortest, are the test texts
HELD_OUT = 96  # questions of the training file that are kept for validation
SPACED = (
    (" @-@ ", "-"),
    (" @,@ ", ","),
    (" @.@ ", "."),
    (" ,", ","),
    (" .", "."),
    ("( ", "("),
    (" )", ")"),
    (" 's", "'s"),
)


NAMED = re.compile(r"(?<= )(?:[A-Z][a-z]+(?: [A-Z][a-z]+)+|[A-Z][a-z]{3,}|\d[\d,.]*\d)(?=[ ,])")


@dataclass(frozen=True)
class Question:
    """A question, its accepted answers, the passages that hold the answer and others that do not."""

    question: str
    answers: list[str]
    gold: list[str]
    others: list[str]
    source: str


@dataclass(frozen=True)
class Row:
    """Tokens, where the part to be written begins, which tokens are hidden, and the weight of each as a target."""

    ids: list[int]
    start: int
    hidden: list[int]
    weights: list[float]
    source: str


def read_nq(folder: Path) -> tuple[list[Question], list[Question]]:
    """Questions to train on and questions to validate on."""
    with gzip.open(folder / SCORED, "rt", encoding="utf-8") as file:
        scored = [json.loads(line) for line in file]
    secret = {row["question"] for row in scored} | {row["ctxs"][0]["text"] for row in scored}
    with gzip.open(folder / TRAIN, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    questions = []
    for row in rows:
        title, text = row["ctxs"][0]["title"], row["ctxs"][0]["text"]
        standing = [answer for answer in row["answers"] if answer.lower() in text.lower()]
        if standing and not {row["question"], text} & secret:
            questions.append(Question(row["question"], standing, [f"{title}: {text}"], [], "nq"))
    random.Random(0).shuffle(questions)
    return questions[HELD_OUT:], questions[:HELD_OUT]


def atlas_question(rng: random.Random, split: str = "train") -> Question:
    """A question of atlas, one in five over two hops, with passages and wording drawn anew."""
    item = rng.choice(atlas.questions("atlas:hops" if rng.random() < 0.2 else "atlas", split))
    return question_of(atlas.make(item, 5, None, rng.randrange(1 << 30), rng.randrange(8)), "atlas")


def question_of(sample: Sample, source: str) -> Question:
    """A sample as rows use it; an answer that stands in its passage comes first."""
    gold = [passage.line for passage in sample.passages if passage.gold]
    others = [passage.line for passage in sample.passages if not passage.gold]
    answers = sorted(sample.answers, key=lambda answer: answer.lower() not in " ".join(gold).lower())
    return Question(sample.question, answers, gold, others, source)


def cloze_questions(paragraphs: list[str]) -> list[Question]:
    """Sentences of the text with a name or a number left out, and the comma after it.

    The answer is found by matching words, not by knowledge.
    """
    found = []
    for paragraph in paragraphs:
        for sentence in re.split(r"(?<=[a-z]{2}\.) ", paragraph):
            words = sentence.split(" ")
            for match in list(NAMED.finditer(sentence))[:2]:
                first = len(sentence[: match.start()].split(" ")) - 1
                last = first + len(match[0].split(" "))
                if first == 0 or "X" in match[0].split(" "):
                    continue
                asked = [*words[max(0, first - 8) : first], "____", *words[last : last + 8]]
                found.append(Question(f"Complete: {' '.join(asked)}", [match[0]], [f"Text: {paragraph}"], [], "cloze"))
    return found


def read_text(folder: Path) -> Iterator[str]:
    """Paragraphs of WikiText-2, written as people write."""
    with gzip.open(folder / TEXT, "rt", encoding="utf-8") as file:
        for line in file:
            if len(line) > 300 and line.count("<unk>") * 150 < len(line):
                for spaced, plain in SPACED:
                    line = line.replace(spaced, plain)
                yield line.replace("<unk>", "X").strip()


class Rows:
    """All training rows, by index.

    Parameters
    ----------
    lens: the loaded base model; its prompt template and tokenizer make the rows.
    data: folder of the Natural Questions and WikiText files.
    """

    def __init__(self, lens: Any, data: Path, *, seed: int = 0) -> None:
        self.lens, self.seed = lens, seed
        self.nq, self.held_out = read_nq(data)
        self.eos = lens.tokenizer.convert_tokens_to_ids("<|im_end|>")
        paragraphs = list(read_text(data))
        self.cloze = cloze_questions(paragraphs)
        random.Random(0).shuffle(paragraphs)
        self.stream = [i for text in paragraphs for i in [*self.tokens(text), 0]]

    def tokens(self, text: str) -> list[int]:
        return list(self.lens.tokenizer(text, add_special_tokens=False)["input_ids"])

    def __getitem__(self, index: int) -> Row:
        rng = random.Random(f"{self.seed}/{index}")
        kind = rng.random()
        if kind < 0.15:
            return self.text_row(rng)
        if kind < 0.3:
            return self.question_row(rng.choice(self.cloze), rng)
        if kind < 0.6:
            return self.question_row(atlas_question(rng), rng)
        return self.question_row(rng.choice(self.nq), rng)

    def question_row(self, question: Question, rng: random.Random, *, places: int | None = None) -> Row:
        """A prompt and an answer that is filled up with end tokens.

        Passages are often cut to a window around the answer: a shorter row teaches as much for fewer tokens.
        """
        answer = question.answers[0]
        gold, others = question.gold, question.others
        if question.source != "atlas":
            gold = [window(gold[0], answer, 1000 if rng.random() < 0.25 else rng.randint(20, 75), rng)]
            others = [window(rng.choice(self.nq).gold[0], "", 40, rng)]
        count = rng.choice((0, 1, 1, 2, 3, 4) if question.source == "atlas" else (0, 0, 0, 0, 1))
        shown = gold + rng.sample(others, min(len(others), count))
        rng.shuffle(shown)
        if rng.random() < {"atlas": 0.1, "nq": 0.04, "cloze": 0.0}[question.source]:
            shown = []  # closed book
        prompt = self.lens.prompt(question.question, shown)
        written = self.tokens(answer)
        n = places or max(rng.choice((8, 12, 16, 24, 32, 32)), len(written) + 1)
        fill = n - len(written)
        start = len(prompt.ids)
        hidden = [start + i for i in hidden_places(len(written), n, rng)]
        if rng.random() < 0.5:
            said = set(written) | set(self.tokens(" " + answer))
            inside = [i for r in prompt.regions if r.name.startswith("doc") for i in range(r.start, r.end)]
            hidden += [i for i in inside if prompt.ids[i] not in said and rng.random() < 0.15]
        return Row(
            ids=[*prompt.ids, *written, *[self.eos] * fill],
            start=start,
            hidden=sorted(hidden),
            weights=[0.25] * start + [1.0] * (len(written) + 1) + [0.1] * (fill - 1),
            source=question.source,
        )

    def text_row(self, rng: random.Random) -> Row:
        """A piece of text of which a share is hidden; its last tokens are the canvas."""
        length, n, share = rng.randint(80, 176), rng.choice((12, 16, 24, 32)), rng.uniform(0.1, 0.8)
        begin = rng.randrange(len(self.stream) - length)
        hidden = [i for i in range(1, length) if rng.random() < share]
        return Row([1, *self.stream[begin : begin + length - 1]], length - n, hidden, [0.25] * length, "text")


class MatchedRows(Rows):
    """The rows of the plan: more plain text than the released models read, and six novels in it."""

    def __init__(self, lens: Any, data: Path, *, seed: int = 0, variant: str = "matched") -> None:
        super().__init__(lens, data, seed=seed)
        self.variant = variant
        with gzip.open(data / NOVELS, "rt", encoding="utf-8") as file:
            books = [book for book in file.read().split("\n\n\n") if book.strip()]
        if len(books) != 8:
            raise ValueError(f"{NOVELS} has {len(books)} books, expected 8")
        for book in books[:TRAINING_NOVELS]:
            text = "\n".join(part.strip() for part in book.split("\n\n") if part.strip())
            self.stream += [*self.tokens(text), 0]
        vocabulary = lens.tokenizer.convert_ids_to_tokens(list(range(len(lens.tokenizer))))
        self.commas = {i for i, token in enumerate(vocabulary) if "," in token}

    def __getitem__(self, index: int) -> Row:
        rng = random.Random(f"matched/{self.seed}/{index}")
        kind = rng.random()
        if kind < 0.4:
            row = self.text_row(rng)
            if rng.random() < 0.5 or self.variant in ("no-prefix", "random-prefix"):
                row = cut(row, range(1, len(row.ids)))
        else:
            if kind < 0.5:
                row = self.question_row(rng.choice(self.cloze), rng)
            elif kind < 0.7:
                row = self.question_row(atlas_question(rng), rng)
            else:
                row = self.question_row(rng.choice(self.nq), rng)
            if self.variant in ("no-prefix", "random-prefix"):
                row = self.without_prefix(row, random.Random(f"prefix/{self.seed}/{index}"))
        if self.variant == "no-commas":
            row = cut(row, [i for i, token in enumerate(row.ids) if token not in self.commas])
        return row

    def without_prefix(self, row: Row, rng: random.Random) -> Row:
        """The row without the tokens that all rows of its kind begin with, or with random text in their place."""
        n = next(n for n in self.prefixes if row.ids[: len(n)] == n)
        if self.variant == "no-prefix":
            return cut(row, range(len(n), len(row.ids)))
        begin = rng.randrange(len(self.stream) - len(n))
        return replace(row, ids=[*self.stream[begin : begin + len(n)], *row.ids[len(n) :]])

    @property
    def prefixes(self) -> list[list[int]]:
        """What prompts begin with: with passages, and without."""
        if not hasattr(self, "_prefixes"):
            both = []
            for passages in ([["Ada: x"], ["Bob: y"]], [[], []]):
                one, other = (self.lens.prompt(q, p).ids for q, p in zip(("Who?", "When?"), passages, strict=True))
                both.append(one[: next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)])
            self._prefixes = both
        return self._prefixes


def cut(row: Row, kept: Iterable[int]) -> Row:
    """The row with only the tokens at the indices `kept`; if none of its hidden tokens is left, its last token is hidden."""
    chosen = list(kept)
    new = {old: i for i, old in enumerate(chosen)}
    hidden = [new[i] for i in row.hidden if i in new and new[i] > 0]
    start = sum(i < row.start for i in chosen)
    return replace(
        row,
        ids=[row.ids[i] for i in chosen],
        start=max(start, 1),
        hidden=hidden or [len(chosen) - 1],
        weights=[row.weights[i] for i in chosen],
    )


def window(passage: str, answer: str, words: int, rng: random.Random) -> str:
    """About so many words of "title: text", the answer among them; the title stays."""
    title, _, text = passage.partition(": ")
    split = text.split(" ")
    if len(split) <= words:
        return passage
    at = text.lower().find(answer.lower())
    first = len(text[:at].split(" ")) - 1
    last = first + len(answer.split(" "))
    lowest, highest = max(0, last + 1 - words), min(first, len(split) - words)
    begin = rng.randint(min(lowest, highest), max(lowest, highest, 0)) if highest >= 0 else 0
    return f"{title}: {' '.join(split[begin : begin + words])}"


def hidden_places(written: int, n: int, rng: random.Random) -> list[int]:
    """Which of n places are still masked: states that a sampler meets which commits the most certain token first.

    The end tokens at the far end are certain early, so they are often all there is to see; of the answer a beginning or
    any part may stand already.
    """
    tail = n if rng.random() < 0.5 else rng.randint(written + 1, n)
    state = rng.random()
    if state < 0.45:
        seen: set[int] = set()
    elif state < 0.75:
        seen = set(range(rng.randint(0, written)))
    else:
        share = rng.random()
        seen = {i for i in range(tail) if rng.random() < share} - {rng.randint(0, written)}
    return [i for i in range(tail) if i not in seen] or list(range(n))
