"""Ask a model all questions of a data set, in batches of prompts of like length, and score what it answers.

Batches change no answer; they only share the padding. They are planned from all questions before any is asked, so that a
question has the same company in a run that was cut off and resumed, or that many workers share. A question that cannot be
asked, or whose generation fails, keeps its row with the reason. When memory runs out the batch is halved and the run goes
on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from floatlens.data.length_limit import bounded
from floatlens.data.metrics import score
from floatlens.data.prompt import Prompt, build, fit
from floatlens.data.sample import Sample
from floatlens.data.template import DEFAULT, Template
from floatlens.errors import FloatLensError
from floatlens.runs.oom_retry import BatchRetry, error_reason

OPEN, CLOSED = "open-book", "closed-book"
WINDOW = 64  # batches whose prompts are sorted by length together; bounds what is in memory
SCORES = ("em", "accuracy", "accuracy_words", "f1")
Key = tuple[str, str, str]  # model, data, condition
Origin = tuple[Key, str]  # a question's key and id


@dataclass(frozen=True)
class Asking:
    """How the questions are asked: the same for all models of a comparison, and recorded with the answers."""

    max_new_tokens: int = 32
    steps: int | None = None
    batch_size: int = 16
    seed: int = 0
    order: str = "last"
    template: Template = DEFAULT
    chat: bool = True
    sampler: dict[str, Any] = field(default_factory=dict)

    def generation(self) -> dict[str, Any]:
        """The settings that the sampler gets."""
        return {"max_new_tokens": self.max_new_tokens, "steps": self.steps, "seed": self.seed, **self.sampler}

    def recorded(self) -> dict[str, Any]:
        return {**asdict(self), "template": self.template.text}


@dataclass
class Row:
    """One question under one condition: what was asked, answered and scored. Scores of an error are None."""

    id: str
    question: str
    gold: list[str]
    model: str = ""
    data: str = ""
    condition: str = OPEN
    answer: str = ""
    em: float | None = None
    accuracy: float | None = None
    accuracy_words: float | None = None
    f1: float | None = None
    confidence: float | None = None
    steps: int | None = None
    error: str | None = None
    passages: int = 0
    dropped: int = 0
    gold_at: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    new_tokens: int = 0
    recall: float | None = None
    answer_recall: float | None = None
    diffusion: bool = False
    stress: str = ""
    level: str = ""
    x: float | None = None


@dataclass(frozen=True)
class Window:
    """Questions that are planned together: their rows in order, and batches of (places among the rows, prompts).

    A row without a prompt has its error already. A place in `origins` is in no batch: its prompt is asked elsewhere.
    """

    rows: list[Row]
    batches: list[tuple[list[int], list[Prompt]]]
    origins: dict[int, Origin] = field(default_factory=dict)


def windows(
    lens: Any,
    samples: Iterable[Sample],
    asking: Asking,
    origin: Callable[[Prompt], Origin | None] | None = None,
    **labels: Any,
) -> Iterator[Window]:
    """Plan batches of prompts of like length. `lens` is asked for its tokenizer and its context, not for its weights.

    `origin` says which question asks the same, if there is one; its answer will do.
    """
    for part in _parts(samples, asking.batch_size * WINDOW):
        rows: list[Row] = []
        prompts: dict[int, Prompt] = {}
        origins: dict[int, Origin] = {}
        for place, sample in enumerate(part):
            blank = Row(sample.id, sample.question, sample.answers, diffusion=lens.family.diffusion, **labels)
            row, prompt = asked(lens, sample, asking, blank)
            rows.append(row)
            same = origin(prompt) if origin is not None and prompt is not None else None
            if same is not None:
                origins[place] = same
            elif prompt is not None:
                prompts[place] = prompt
        # The longest first: memory fails early, if at all.
        order = sorted(prompts, key=lambda place: len(prompts[place].ids), reverse=True)
        cut = [order[i : i + asking.batch_size] for i in range(0, len(order), asking.batch_size)]
        yield Window(rows, [(places, [prompts[place] for place in places]) for places in cut], origins)


def evaluate(
    lens: Any,
    samples: Iterable[Sample],
    asking: Asking,
    *,
    keep: Callable[[Row], None] = lambda row: None,
    **labels: Any,
) -> Iterator[Row]:
    """Yield a row for each sample, in the samples' order; `keep` is given each as soon as it is done.

    `labels` are fields of the rows: model, data, condition and so on.
    """
    ask: BatchRetry[Prompt, Any] = BatchRetry(lambda prompts: lens.generate(prompts, **asking.generation()))
    for window in windows(lens, samples, asking, **labels):
        for row in window.rows:
            if row.error is not None:
                keep(row)
        for places, prompts in window.batches:
            for place, answer in zip(places, ask(prompts), strict=True):
                fill(window.rows[place], answer)
                keep(window.rows[place])
        yield from window.rows


def asked(lens: Any, sample: Sample, asking: Asking, row: Row) -> tuple[Row, Prompt | None]:
    """The prompt of a sample and its row; without a prompt the row says why it cannot be asked."""
    passages = [] if row.condition == CLOSED else sample.passages
    if row.condition != CLOSED:
        row.recall, row.answer_recall = sample.meta.get("recall"), sample.meta.get("answer_recall")
    if row.condition == OPEN and not passages:
        retrieved = "answer_recall" in sample.meta
        row.error = "no passage was retrieved for the question" if retrieved else "the question has no passages"
        return row, None
    try:
        if lens.tokenizer is None:
            raise FloatLensError(f"{lens.name} has no tokenizer, so it cannot be asked; add its tokenizer files")
        shown = bounded(sample.question, passages, lens.context_length)
        prompt = build(
            lens.tokenizer,
            sample.question,
            shown,
            answers=sample.answers,
            order=asking.order,
            template=asking.template,
            chat=asking.chat,
        )
        if lens.context_length:
            prompt = fit(prompt, lens.tokenizer, lens.context_length - asking.max_new_tokens)
    except FloatLensError as error:
        row.error = str(error)
        return row, None
    row.passages, row.gold_at = len(prompt.passages), prompt.gold
    row.dropped = prompt.dropped + len(passages) - len(shown)
    row.prompt_tokens = len(prompt.ids)
    return row, replace(prompt, sample_id=sample.id)


def fill(row: Row, answer: Any) -> None:
    """Score an answer into its row, or note the error that came instead."""
    if isinstance(answer, BaseException):
        row.error = error_reason(answer)
        return
    row.answer = answer.text.strip()
    row.em, row.accuracy, row.accuracy_words, row.f1 = score(row.answer, row.gold)
    row.confidence, row.steps, row.new_tokens = float(answer.confidence), int(answer.steps), len(answer.ids)


def copied(row: Row, origin: Row) -> Row:
    """A row with the answer that the same prompt got elsewhere."""
    if origin.error is not None:
        row.error = origin.error
        return row
    row.answer = origin.answer
    row.em, row.accuracy, row.accuracy_words, row.f1 = score(row.answer, row.gold)
    row.confidence, row.steps, row.new_tokens = origin.confidence, origin.steps, origin.new_tokens
    return row


def _parts(samples: Iterable[Sample], size: int) -> Iterator[list[Sample]]:
    window: list[Sample] = []
    for sample in samples:
        window.append(sample)
        if len(window) == size:
            yield window
            window = []
    if window:
        yield window
