"""Passages that do not hold the answer: drawn at random, retrieved because they look right, or the data's own."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from floatlens.data.corpus import Document
from floatlens.data.metrics import accuracy_words, normalise
from floatlens.data.retrieval import Index
from floatlens.data.sample import Passage, Sample
from floatlens.errors import FloatLensError
from floatlens.evaluation.stress.level import Options, draw

KINDS = ("random", "hard", "own")
SPARE = 50  # documents retrieved beyond those wanted, since some hold the answer


def finder(samples: Sequence[Sample], options: Options) -> Callable[[Sample, int], list[Passage]]:
    """A function that finds so many distractors for a question.

    `random` draws passages of other questions, `hard` takes the best BM25 hits for the question among all passages (or
    in the corpus), `own` takes the question's own passages that are not gold.
    """
    if options.distractors not in KINDS:
        raise FloatLensError(f"distractors {options.distractors!r} are not known; use one of {', '.join(KINDS)}")
    if options.distractors == "own":
        return lambda sample, count: [p for p in sample.passages if not p.gold][:count]
    pool = list({p.line: Passage(p.text, p.title) for sample in samples for p in sample.passages}.values())
    if options.distractors == "hard":
        index = options.index or _indexed(pool)
        return lambda sample, count: _hard(sample, count, index, pool, options.seed)
    return lambda sample, count: _random(sample, count, pool, options.seed)


def misleads(passage: Passage, sample: Sample) -> bool:
    """Whether a passage is a distractor: neither gold nor a holder of the answer.

    >>> sample = Sample("1", "Where?", ["Molen"], [Passage("Ada is in Molen.", gold=True)])
    >>> misleads(Passage("Ben is in Rusk."), sample), misleads(Passage("Molen is a town."), sample)
    (True, False)
    """
    if any(accuracy_words(passage.line, answer) for answer in sample.answers):
        return False
    gold = [p for p in sample.passages if p.gold]
    return not any(normalise(p.text) == normalise(passage.text) or (p.title and p.title == passage.title) for p in gold)


def _random(sample: Sample, count: int, pool: Sequence[Passage], seed: int) -> list[Passage]:
    own = {p.line for p in sample.passages}
    order = list(range(len(pool)))
    draw(seed, sample).shuffle(order)
    found: list[Passage] = []
    for place in order:
        if len(found) == count:
            return found
        if pool[place].line not in own and misleads(pool[place], sample):
            found.append(pool[place])
    if len(found) < count:
        raise FloatLensError(
            f"the data has only {len(found)} passages that can distract from question {sample.id[:80]!r}, "
            f"{count} are wanted; read more questions or ask for less noise"
        )
    return found


def _hard(sample: Sample, count: int, index: Index, pool: Sequence[Passage], seed: int) -> list[Passage]:
    """The best hits, and random passages where there are too few that share a word with the question."""
    hits = [hit.document.passage for hit in index.search(sample.question, count + SPARE)]
    found = [passage for passage in hits if misleads(passage, sample)][:count]
    if len(found) < count:
        taken = {passage.line for passage in found}
        found += _random(sample, count - len(found), [p for p in pool if p.line not in taken], seed)
    return found


def _indexed(pool: Sequence[Passage]) -> Index:
    folder = Path(tempfile.mkdtemp(prefix="floatlens-distractors-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Index.build(folder, (Document(str(i), passage) for i, passage in enumerate(pool)))
