"""Ask a model all questions of a data set, in batches of prompts of like length, and score what it answers.

Batches change no answer; they only share the padding. A question that cannot be asked, or whose generation fails, keeps
its row with the reason. When memory runs out the batch is halved and the run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from floatlens.errors import FloatLensError
from floatlens.tasks.metrics import score
from floatlens.tasks.prompt import Prompt, build, fit
from floatlens.tasks.sample import Sample
from floatlens.tasks.template import DEFAULT, Template

OPEN, CLOSED = "open-book", "closed-book"
WINDOW = 64  # batches whose prompts are sorted by length together; bounds what is in memory
FAILURES = (RuntimeError, MemoryError, ValueError, IndexError)  # of one batch; a FloatLensError is about the settings
SCORES = ("em", "accuracy", "accuracy_words", "f1")


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
    size = asking.batch_size
    for window in _windows(samples, asking.batch_size * WINDOW):
        rows: list[Row] = []
        prompts: dict[int, Prompt] = {}
        for place, sample in enumerate(window):
            blank = Row(sample.id, sample.question, sample.answers, diffusion=lens.family.diffusion, **labels)
            row, prompt = asked(lens, sample, asking, blank)
            rows.append(row)
            if prompt is not None:
                prompts[place] = prompt
            else:
                keep(row)
        order = sorted(
            prompts, key=lambda place: len(prompts[place].ids), reverse=True
        )  # memory fails early, if at all
        while order:
            batch = order[:size]
            try:
                answers = lens.generate([prompts[place] for place in batch], **asking.generation())
            except FAILURES as error:
                if is_out_of_memory(error) and size > 1:
                    size = max(1, len(batch) // 2)
                    _forget()
                elif len(batch) > 1:
                    answers = _one_by_one(lens, [prompts[place] for place in batch], asking)
                    _fill(rows, batch, answers, keep)
                    order = order[len(batch) :]
                else:
                    _fill(rows, batch, [error], keep)
                    order = order[1:]
                continue
            _fill(rows, batch, answers, keep)
            order = order[len(batch) :]
        yield from rows


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
        prompt = build(
            lens.tokenizer,
            sample.question,
            passages,
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
    row.passages, row.dropped, row.gold_at = len(prompt.passages), prompt.dropped, prompt.gold
    row.prompt_tokens = len(prompt.ids)
    return row, replace(prompt, sample_id=sample.id)


def _fill(rows: list[Row], places: Sequence[int], answers: Sequence[Any], keep: Callable[[Row], None]) -> None:
    for place, answer in zip(places, answers, strict=True):
        row = rows[place]
        if isinstance(answer, BaseException):
            what = "out of memory with a batch of one" if is_out_of_memory(answer) else str(answer).strip()
            row.error = what.splitlines()[0] if what else type(answer).__name__
            keep(row)
            continue
        row.answer = answer.text.strip()
        row.em, row.accuracy, row.accuracy_words, row.f1 = score(row.answer, row.gold)
        row.confidence, row.steps, row.new_tokens = float(answer.confidence), int(answer.steps), len(answer.ids)
        keep(row)


def _one_by_one(lens: Any, prompts: Sequence[Prompt], asking: Asking) -> list[Any]:
    """Find the question that fails; the others of its batch are answered."""
    answers: list[Any] = []
    for prompt in prompts:
        try:
            answers += lens.generate([prompt], **asking.generation())
        except FAILURES as error:
            answers.append(error)
    return answers


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a smaller batch may help.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"))
    True
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    said = str(error).lower()
    return "out of memory" in said or "can't allocate memory" in said or "not enough memory" in said


def _forget() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _windows(samples: Iterable[Sample], size: int) -> Iterator[list[Sample]]:
    window: list[Sample] = []
    for sample in samples:
        window.append(sample)
        if len(window) == size:
            yield window
            window = []
    if window:
        yield window
