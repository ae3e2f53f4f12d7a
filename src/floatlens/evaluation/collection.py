"""Collection: the passages come from a collection that changes while questions are asked.

Each question is asked at six stages in the life of its document: before the document is added, after it is added, after it
is replaced by a version with another answer, after near-duplicates of that version are added, after a misleading document
(with a wrong answer) is added too, and after all of them are withdrawn. The stages of all questions are interleaved in one
stream, so the collection changes constantly. Passages are retrieved with BM25 when the question is asked, the same for all
models.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from floatlens import stats
from floatlens.data.retrieval import Document, Index
from floatlens.data.sample import Passage, Sample, contains_words, normalise
from floatlens.errors import FloatLensError
from floatlens.evaluation.metrics import score
from floatlens.evaluation.stress import StressLevel, StressOptions, StressTest

STAGES = ("absent", "present", "replaced", "copied", "misled", "withdrawn")
ABSENT, PRESENT, REPLACED, COPIED, MISLED, WITHDRAWN = STAGES
CURRENT, COPY, MISLEADING, OTHER = ROLES = ("current", "copy", "misleading", "other")
COPIES = 2
SHARES = ("accuracy_words", "outdated", "misled")  # of answers, each 0 or 1
RECALLS = ("recall", "answer_recall")
Lives = Mapping[str, Sequence[Sample]]
RETRIEVED = 5  # default number of passages per question


@dataclass(frozen=True)
class DocumentLife:
    """A question, the documents that are added or replace others at each stage, the new answer and the wrong one."""

    sample: Sample
    documents: dict[str, list[Document]]
    new: str
    wrong: str

    def begin(self, stage: str, index: Index) -> None:
        """Make the changes to the collection that begin a stage."""
        if stage == REPLACED:
            index.replace(self.documents[stage])
        elif stage == WITHDRAWN:
            index.withdraw([each.id for added in (REPLACED, COPIED, MISLED) for each in self.documents[added]])
        elif stage != ABSENT:
            index.add(self.documents[stage])

    def ask(self, stage: str, index: Index, passages: int) -> Sample:
        """Return the question as it is asked at a stage, with the passages that are retrieved then.

        `answers` are the correct answers at this stage. `meta` has `outdated` (the answer of the replaced document),
        `misled` (the wrong answer of the misleading document), `roles` (one per passage), `recall` and `answer_recall`.
        """
        changed = stage in (REPLACED, COPIED, MISLED)
        answers = [self.new] if changed else self.sample.answers
        outdated = self.sample.answers if changed else [self.new] if stage == WITHDRAWN else []
        named = {COPIED: COPY, MISLED: MISLEADING} | ({} if stage in (ABSENT, WITHDRAWN) else {PRESENT: CURRENT})
        roles = {each.id: role for added, role in named.items() for each in self.documents[added]}
        hits = [document for document, _ in index.search(self.sample.question, passages)]
        found = [roles.get(hit.id, OTHER) for hit in hits]
        shown = [
            Passage(hit.passage.text, hit.passage.title, role == CURRENT) for hit, role in zip(hits, found, strict=True)
        ]
        meta: dict[str, Any] = {"roles": found, "outdated": outdated, "misled": [self.wrong] if stage == MISLED else []}
        if CURRENT in roles.values():
            meta["recall"] = found.count(CURRENT) / len(self.documents[PRESENT])
        meta["answer_recall"] = float(any(contains_words(p.line, a) for p in shown for a in answers))
        return replace(self.sample, answers=list(answers), passages=shown, meta=meta)


def lives(samples: Sequence[Sample], seed: int = 0) -> list[DocumentLife]:
    """Return the lives of the questions whose gold passages contain an answer that can be replaced.

    New and wrong answers are drawn from the answers of other questions, of the same number of words where there are any.
    """
    pool = list(dict.fromkeys(answer for sample in samples for answer in sample.answers[:1]))
    found = []
    for number, sample in enumerate(samples):
        gold = [Passage(p.text, p.title) for p in sample.passages if p.gold]
        holding = next((i for i, p in enumerate(gold) if can_change(p, sample.answers)), None)
        random_ = random.Random(f"{seed} {sample.id}")
        others = draw_answers(sample, pool, random_)
        if holding is None or len(others) < 2:
            continue
        new, wrong = others
        updated = [put_answer(p, sample.answers, new) if i == holding else p for i, p in enumerate(gold)]
        copies = [drop_word(updated[holding], f"{sample.question} {new}", random_) for _ in range(COPIES + 1)]
        misleading = put_answer(copies.pop(), [new], wrong)
        texts = {PRESENT: ("", gold), REPLACED: ("", updated), COPIED: (" copy", copies)}
        texts[MISLED] = (" misleading", [misleading])
        documents = {
            stage: [Document(f"question {number},{role} {i}", passage) for i, passage in enumerate(several)]
            for stage, (role, several) in texts.items()
        }
        found.append(DocumentLife(sample, documents, new, wrong))
    if not found:
        raise FloatLensError(
            f"none of the {len(samples)} questions has a gold passage that contains its answer; use other data"
        )
    return found


def can_change(passage: Passage, answers: Sequence[str]) -> bool:
    """Return whether the passage contains an answer, and no longer contains one after it is replaced."""
    changed = put_answer(passage, answers, "")
    return changed.text != passage.text and not any(contains_words(changed.text, answer) for answer in answers)


def draw_answers(sample: Sample, pool: Sequence[str], random_: random.Random) -> list[str]:
    """Return up to two answers of other questions, drawn among those whose number of words is closest."""
    own = [normalise(answer) for answer in sample.answers]
    text = " ".join(p.line for p in sample.passages if p.gold)
    free = [
        answer
        for answer in pool
        if normalise(answer)
        and not any(normalise(answer) in mine or mine in normalise(answer) for mine in own)
        and not contains_words(text, answer)
    ]
    random_.shuffle(free)
    length = len(sample.answers[0].split())
    apart: list[str] = []  # answers that do not contain each other, so that a text cannot count as both
    for answer in sorted(free, key=lambda each: abs(len(each.split()) - length)):
        if not any(normalise(answer) in normalise(a) or normalise(a) in normalise(answer) for a in apart):
            apart.append(answer)
    return apart[:2]


def put_answer(passage: Passage, old: Sequence[str], new: str) -> Passage:
    """Return the passage with the old answers replaced by a new one."""
    ordered = sorted((answer for answer in old if answer.strip()), key=len, reverse=True)
    pattern = re.compile(r"\b(?:" + "|".join(map(re.escape, ordered)) + r")(?!\w)", re.IGNORECASE)
    return Passage(pattern.sub(lambda _: new, passage.text), passage.title)


def drop_word(passage: Passage, kept: str, random_: random.Random) -> Passage:
    """Return a near-duplicate: the passage without one of its words that is not in `kept`."""
    parts = passage.text.split(" ")
    protected = {normalise(word) for word in kept.split()}
    free = [i for i, word in enumerate(parts) if normalise(word) and normalise(word) not in protected]
    if not free:
        return passage
    gone = random_.choice(free)
    return Passage(" ".join(word for i, word in enumerate(parts) if i != gone), passage.title)


def collection(samples: Sequence[Sample], corpus: Iterable[Document] = ()) -> Index:
    """Return the index of the permanent documents: a corpus, and the passages that are not evidence."""
    others = {p.line: Passage(p.text, p.title) for sample in samples for p in sample.passages if not p.gold}
    gold = {p.line for sample in samples for p in sample.passages if p.gold}
    found = [each.passage for each in corpus] + list(others.values())
    kept = [passage for passage in found if passage.line not in gold]
    if not kept:
        raise FloatLensError(
            "the questions have no passages besides their evidence; pass a collection with --corpus FILE"
        )
    return Index(Document(f"passage {number}", passage) for number, passage in enumerate(kept))


def stream(samples: Sequence[Sample], index: Index, *, passages: int = 5, seed: int = 0) -> dict[str, list[Sample]]:
    """Run the stream through the index, and return the questions as they were asked, by stage, in one order.

    The index is changed; at the end every document of a question has been withdrawn again.
    """
    found = lives(samples, seed)
    order = [life for life in range(len(found)) for _ in STAGES]
    random.Random(f"{seed} stream").shuffle(order)
    asked: dict[int, list[Sample]] = {number: [] for number in range(len(found))}
    for number in order:
        stage = STAGES[len(asked[number])]
        found[number].begin(stage, index)
        asked[number].append(found[number].ask(stage, index, passages))
    return {stage: [asked[number][i] for number in range(len(found))] for i, stage in enumerate(STAGES)}


def levels(samples: Sequence[Sample], options: StressOptions) -> list[StressLevel]:
    """Ask at each stage; the collection has the documents of the corpus and the passages that are not evidence."""
    if options.values is not None:
        raise FloatLensError("the stages of stress collection are fixed; leave out --levels")
    index = collection(samples, options.index or ())
    stages = stream(samples, index, passages=options.passages or RETRIEVED, seed=options.seed)
    return [StressLevel(stage, float("nan"), several) for stage, several in stages.items()]


# Not registered: it has outcomes of its own, and is not a part of the study.
COLLECTION = StressTest("collection", "stage", "documents are added, replaced, copied and withdrawn", levels)


def with_outcomes(answers: pd.DataFrame, streams: Mapping[str, Lives]) -> pd.DataFrame:
    """Return the answers with `outdated` and `misled`: 1 if an answer is the outdated one, or the misleading one.

    `streams` has the questions as they were asked, by data set and stage, which is the answers' `level`. NaN where a stage
    has no such answer.
    """
    meta = {
        (data, stage, sample.id): sample.meta
        for data, stages in streams.items()
        for stage, several in stages.items()
        for sample in several
    }

    def outcome(row: pd.Series[Any], name: str) -> float:
        wrong = meta[row["data"], row["level"], row["id"]][name]
        return score(row["answer"], wrong)["accuracy_words"] if wrong and row["error"] is None else np.nan

    return answers.assign(**{n: answers.apply(outcome, axis=1, args=(n,)) for n in ("outdated", "misled")})


def summary(answers: pd.DataFrame) -> pd.DataFrame:
    """Return one row per model, data set and stage: the number of answers, and mean, low and high of each measure.

    Answers are right or wrong, so the intervals of `SHARES` are those of a share, also if no answer is right.
    """
    rows = []
    for (model, data, condition), part in answers.groupby(["model", "data", "condition"], sort=False):
        stage = str(condition).removeprefix("collection=")
        row: dict[str, Any] = {"model": model, "data": data, "stage": stage, "n": int(part["error"].isna().sum())}
        for name in SHARES:
            value, (low, high) = stats.interval_of_mean(part[name].to_numpy(float), binary=True)
            row |= {name: value, f"{name}_low": low, f"{name}_high": high}
        for name in RECALLS:
            found = stats.percentile_mean(part[name].to_numpy(float))
            row |= {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
        rows.append(row)
    return pd.DataFrame(rows)
