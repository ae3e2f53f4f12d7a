"""On real questions (HotpotQA, Natural Questions), regions, retrieval and stress levels are correct for all of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from floatlens.data.prompt import build, clean
from floatlens.data.read import read
from floatlens.data.retrieval import index_of, retrieve
from floatlens.evaluation.stress import STRESSES, StressOptions


@pytest.fixture(scope="module")
def hotpot():
    folder = Path(os.environ.get("FLOATLENS_DATA", Path(__file__).parents[3] / "shared" / "data"))
    path = folder / "hotpotqa-dev.first200.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there; set FLOATLENS_DATA to the folder of real questions")
    return list(read(str(path)))


def letters(text):
    return "".join(text.split())


@pytest.mark.parametrize("kind", ["byte_level", "metaspace"])
def test_every_region_of_every_question_decodes_to_its_text(tokenizers, hotpot, kind):
    tokenizer = tokenizers[kind]
    for sample in hotpot[:40]:
        prompt = build(tokenizer, sample.question, sample.passages)
        wanted = {"query": sample.question} | {f"doc{i}": p.line for i, p in enumerate(prompt.passages, 1)}
        for name, text in wanted.items():
            region = prompt.region(name)
            said = tokenizer.decode(prompt.ids[region.start : region.end], clean_up_tokenization_spaces=False)
            assert letters(said) == letters(clean(text)), (sample.id, name)
        assert prompt.gold == sample.gold


def test_bm25_finds_most_of_the_supporting_paragraphs(hotpot, tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    passages = {p.line: p for sample in hotpot for p in sample.passages}
    corpus.write_text("".join(json.dumps({"title": p.title, "text": p.text}) + "\n" for p in passages.values()))
    index = index_of(corpus, cache=tmp_path / "cache")
    found = [retrieve(sample, index, 10) for sample in hotpot]
    recall = sum(sample.meta["recall"] for sample in found) / len(found)
    assert len(index) == len(passages) and recall > 0.6


CASES = [
    ("noise", "random"),
    ("noise", "hard"),
    ("noise", "own"),
    *((n, "random") for n in ("position", "layout", "query")),
]


@pytest.mark.parametrize(("name", "distractors"), CASES)
def test_every_stress_has_its_levels(hotpot, name, distractors):
    some = [sample for sample in hotpot[:30] if len(sample.passages) == 10]
    levels = STRESSES[name].levels(some, StressOptions(distractors=distractors))
    assert len(levels) >= 3
    for level in levels:
        assert len(level.samples) == len(some)
        assert all(len(s.gold) == len(o.gold) for s, o in zip(level.samples, some, strict=True))
