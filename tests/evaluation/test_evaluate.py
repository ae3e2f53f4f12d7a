"""Evaluation: every question has its row, batches change nothing, and errors are reported."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from types import SimpleNamespace

import pandas
import pytest
import torch

import floatlens as fl
from floatlens.data.read import read
from floatlens.data.sample import Passage, Sample, gold_among
from floatlens.errors import FloatLensError
from floatlens.evaluation.answers import AnswerRecord
from floatlens.evaluation.loop import (
    Experiment,
    ModelWorker,
    error_reason,
    evaluate,
    is_out_of_memory,
    run_experiments,
)
from floatlens.evaluation.sources import CLOSED
from floatlens.evaluation.summary import averages, comparisons, results
from floatlens.evaluation.table import files, table1, terminal
from floatlens.options import Sampling
from floatlens.store.engine import Engine, WorkerDied
from floatlens.store.folder import RunFolder


@dataclass
class Answer:
    text: str
    ids: list
    steps: int = 4
    confidence: float = 0.5
    ended: bool = True


class Oracle:
    """A lens that copies the gold passage's text and knows nothing else; it can be told to fail."""

    family = SimpleNamespace(kind="arm")
    name = "oracle"

    block_length, batched = None, True

    def __init__(self, tokenizer, context_length=4096, fails=None):
        self.tokenizer, self.context_length, self.fails = tokenizer, context_length, fails
        self.batches = []

    def generate(self, prompts, **settings):
        self.batches.append([len(p.ids) for p in prompts])
        self.settings = settings
        if self.fails:
            self.fails(prompts)
        return [Answer(" ".join(p.passages[i].text for i in p.gold), [1, 2]) for p in prompts]


def questions(count=10, passages=4):
    return [
        Sample(
            f"q{i}",
            f"Where is {'very ' * (i * 7 % 5)}Ada?",
            [f"Molen{i}"],
            [
                Passage(f"Molen{i}" if j == i % passages else f"Rusk{j}", gold=j == i % passages)
                for j in range(passages)
            ],
        )
        for i in range(count)
    ]


@pytest.fixture
def tokenizer(tokenizers):
    return tokenizers["byte_level"]


def rows_of(lens, samples, **options):
    """What fl.evaluate returns, one named tuple per question."""
    return list(evaluate(lens, samples, **options).itertuples(index=False))


def test_each_question_has_its_row_in_order_with_scores_and_settings(tokenizer):
    lens = Oracle(tokenizer)
    options = {"max_new_tokens": 8, "steps": 4, "batch_size": 3, "temperature": 0.5}
    rows = rows_of(lens, questions(), data="d", **options)
    assert [r.id for r in rows] == [f"q{i}" for i in range(10)]
    assert all((r.model, r.data, r.condition, r.kind) == ("oracle", "d", "open-book", "arm") for r in rows)
    assert all(r.em == r.accuracy == r.f1 == 1.0 and r.error is None and r.passages == 4 for r in rows)
    assert rows[5].gold_at == [1] and rows[5].steps == 4 and rows[5].confidence == 0.5
    shared = vars(Sampling(max_new_tokens=8, steps=4, temperature=0.5))
    assert lens.settings == {**shared, "stop_when_answered": True}
    flat = [n for batch in lens.batches for n in batch]
    assert flat == sorted(flat, reverse=True) and max(map(len, lens.batches)) == 3


def test_the_public_function_takes_what_read_returns(tokenizer):
    answers = fl.evaluate(Oracle(tokenizer), fl.read("world:fresh", limit=3, passages=2))
    assert fl.evaluate is evaluate and fl.read is read
    assert isinstance(answers, pandas.DataFrame) and list(answers["data"]) == ["world:fresh"] * 3
    assert answers["accuracy"].tolist() == [1.0] * 3


def test_a_template_of_ones_own_goes_into_the_prompt(tokenizer):
    short, long = Oracle(tokenizer), Oracle(tokenizer)
    evaluate(short, questions(1), template="{passages}\n\n{question}", chat=False)
    evaluate(long, questions(1), template="Read this with care.\n\n{passages}\n\n{question}", chat=False)
    assert long.batches[0][0] > short.batches[0][0]


def test_an_id_that_occurs_twice_is_refused(tokenizer):
    with pytest.raises(FloatLensError, match="the id 'q0' occurs twice"):
        evaluate(Oracle(tokenizer), questions(2) + questions(1))


def test_batches_change_no_answer(tokenizer):
    one = evaluate(Oracle(tokenizer), questions(), batch_size=1)
    many = evaluate(Oracle(tokenizer), questions(), batch_size=7)
    pandas.testing.assert_frame_equal(one, many)


def test_closed_book_shows_no_passage(tokenizer):
    rows = rows_of(Oracle(tokenizer), questions(3), closed_book=True)
    assert all(r.passages == 0 and r.accuracy == 0.0 and r.error is None for r in rows)


def test_a_prompt_too_long_drops_passages_and_says_so_in_the_row(tokenizer):
    lens = Oracle(tokenizer, context_length=120)
    (row,) = rows_of(lens, [questions(1, passages=20)[0]], max_new_tokens=8)
    assert row.dropped > 0 and row.passages + row.dropped == 20 and row.prompt_tokens <= 112 and row.error is None


def test_a_question_that_does_not_fit_keeps_its_row_with_the_reason(tokenizer):
    samples = [Sample("long", "why " * 25_000, ["x"], [Passage("a")]), *questions(2), Sample("bare", "Who?", ["x"], [])]
    answers = evaluate(Oracle(tokenizer), samples)
    rows = list(answers.itertuples(index=False))
    assert [r.id for r in rows] == ["long", "q0", "q1", "bare"]
    assert "shorten the question" in rows[0].error and rows[0].em != rows[0].em
    assert rows[3].error == "the question has no passages"
    assert rows[1].error is None
    (result,) = results(answers)
    assert (result["n"], result["errors"], result["accuracy"]) == (2, 2, 1.0)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory"), MemoryError()]
)
def test_out_of_memory_halves_the_batch_and_goes_on(tokenizer, error):
    def fails(prompts):
        if len(prompts) > 2:
            raise error

    lens = Oracle(tokenizer, fails=fails)
    assert evaluate(lens, questions(10), batch_size=8)["em"].eq(1.0).all()
    assert [len(b) for b in lens.batches] == [8, 4, 2, 2, 2, 2, 2]


def test_a_question_that_alone_exhausts_the_memory_is_an_error_of_its_own(tokenizer):
    def fails(prompts):
        if any(p.question == "q3" for p in prompts):
            raise MemoryError

    samples = [Sample(f"q{i}", f"q{i}", ["x"], [Passage("x", gold=True)]) for i in range(6)]
    rows = rows_of(Oracle(tokenizer, fails=fails), samples, batch_size=4)
    assert [r.error for r in rows if r.error] == ["out of memory with a batch of one"] and rows[3].error


def test_one_failing_question_does_not_take_its_batch_along(tokenizer):
    def fails(prompts):
        if any(p.question == "q3" for p in prompts):
            raise RuntimeError("the size of tensor a must match\nmore")

    samples = [Sample(f"q{i}", f"q{i}", ["x"], [Passage("x", gold=True)]) for i in range(6)]
    rows = rows_of(Oracle(tokenizer, fails=fails), samples, batch_size=6)
    assert [r.error for r in rows] == [None, None, None, "the size of tensor a must match", None, None]


class Deadly(Engine):
    """No worker survives a batch with more than the first question."""

    def run(self, worker, jobs):
        self.seen = []
        for batch in jobs:
            self.seen.append(batch)
            yield batch, WorkerDied("its worker was killed")


def test_a_batch_that_no_worker_survives_costs_only_the_questions_without_a_result(tokenizer, tmp_path):
    lens = Oracle(tokenizer)
    worker, engine = ModelWorker(lambda _: lens), Deadly()
    with RunFolder.create(tmp_path / "run", {"command": "eval"}) as folder:
        run_experiments([Experiment("oracle", "d", "open-book", questions(1), batch_size=4)], worker, folder)
        records, _ = run_experiments(
            [Experiment("oracle", "d", "open-book", questions(4), batch_size=4)], worker, folder, engine=engine
        )
    (batch,) = engine.seen
    assert len(batch.cases) == 4 and len(batch.missing) == 3  # the answered question keeps the batch as it was
    assert [record.error for record in records] == [None, *["its worker was killed"] * 3]
    assert sorted(one.cases[0].record.id for one in batch.split()) == ["q1", "q2", "q3"]


NUMBERS = ({"kl": "x"}, {"control_seed": 0.5}, {"role": 3}, {"accuracy": 1.0}, {"nats": {"a": 1}}, {"share": [["x"]]})


@pytest.mark.parametrize(
    "change",
    [
        {"f1": "high"},
        {"gold": "Molen"},
        {"gold": [3]},
        {"unknown": 1},
        {"steps": "x"},
        *({"numbers": n} for n in NUMBERS),
    ],
)
def test_a_result_with_other_fields_is_refused(tokenizer, change):
    (record,) = run_experiments(
        [Experiment("oracle", "d", "open-book", questions(1))],
        ModelWorker(lambda _: Oracle(tokenizer)),
    )[0]
    assert AnswerRecord.from_result(record.key, asdict(record)) == record
    with pytest.raises(FloatLensError, match="the result of oracle"):
        AnswerRecord.from_result(record.key, {**asdict(record), **change})


def test_settings_that_cannot_work_stop_the_run(tokenizer):
    def fails(prompts):
        raise FloatLensError("steps 5 cannot be divided")

    with pytest.raises(FloatLensError, match="steps 5"):
        evaluate(Oracle(tokenizer, fails=fails), questions(3))


def test_passages_are_chosen_with_the_gold_or_as_ranked():
    sample = questions(4)[3]  # gold is the last of four
    assert gold_among(sample, 2).gold == [1] and len(gold_among(sample, 2).passages) == 2
    assert gold_among(sample, 1).passages[0].gold and gold_among(sample, 0).passages == []


@pytest.fixture
def answers(tokenizer):
    tables = []
    for model, context in (("copy", 4096), ("short", 70)):
        for closed in (True, False):
            for data in ("d1", "d2"):
                lens = Oracle(tokenizer, context_length=context)
                lens.name = model
                tables.append(evaluate(lens, questions(12, 6), max_new_tokens=4, data=data, closed_book=closed))
    return pandas.concat(tables, ignore_index=True)


def test_results_have_the_agreed_fields(answers):
    found = results(answers)
    assert len(found) == 8
    entry = next(e for e in found if e["condition"] == "open-book")
    assert {"model", "data", "condition", "passages", "n", "em", "accuracy", "f1", "intervals"} <= set(entry)
    assert entry["passages"] == 6 and entry["n"] == 12 and entry["intervals"]["f1"] == [1.0, 1.0]
    columns = ["id", "model", "data", "condition", "question", "answer", "gold", "em", "accuracy", "f1", "confidence"]
    assert {*columns, "steps", "error"} <= set(answers.columns)


def test_answers_survive_parquet(answers, tmp_path):
    answers.to_parquet(tmp_path / "a.parquet")
    back = pandas.read_parquet(tmp_path / "a.parquet")
    assert list(back["gold"][0]) == ["Molen0"] and back["error"].isna().all() and back["steps"].dtype.kind == "i"


def test_paired_comparisons_of_conditions_and_models(answers):
    found = [c for c in comparisons(answers) if c["data"] == "d1" and c["score"] == "em"]
    gain = next(c for c in found if c["left"]["model"] == c["right"]["model"] == "copy")
    assert gain["difference"] == 1.0 and gain["p"] < 0.001 and gain["n"] == 12
    between = next(
        c for c in found if c["left"]["model"] != c["right"]["model"] and c["left"]["condition"] == "open-book"
    )
    assert between["difference"] > 0 and between["interval"][0] <= between["difference"] <= between["interval"][1]


def test_table_1_in_four_forms(answers):
    table = table1(results(answers), averages(answers))
    assert list(table.index) == ["copy", "copy + passages", "short", "short + passages"]
    assert list(dict.fromkeys(data for data, _ in table)) == ["d1", "d2", "average"]
    best = table.loc["copy + passages"]
    assert best["d1", "Acc"] == best["d1", "Acc gain"] == 100.0
    made = files(table)
    assert "| copy + passages | **100.00 (+100.00)** |" in made["table1.md"] and "d2 Words" in made["table1.md"]
    assert r"\textbf{100.00 (+100.00)}" in made["table1.tex"] and made["table1.tex"].count(r"\\") == 6
    lines = made["table1.csv"].splitlines()
    assert lines[0].startswith("model,d1 Acc,d1 Acc gain") and lines[2].startswith("copy + passages,100.0000,100.0000")
    assert "d1 Words" in lines[0] and len(lines[0].split(",")) == 1 + 3 * 8
    assert [len(part.columns) for part in terminal(table)] == [6, 6, 6]


def test_the_printed_table_has_the_number_of_answers(answers):
    first, _, average = terminal(table1(results(answers), averages(answers)))
    assert list(first.columns[-1].cells) == ["12"] * 4 and list(average.columns[-1].cells) == ["–"] * 4


def test_names_from_outside_are_escaped():
    results_ = [{"model": "=A_1", "condition": CLOSED, "data": "50%", "accuracy": 0.5, "f1": 0.5, "em": None}]
    made = files(table1(results_))
    assert r"=A\_1" in made["table1.tex"] and r"50\%" in made["table1.tex"]
    assert made["table1.csv"].splitlines()[1].startswith("'=A_1,50.0000,,")
    assert "–" in made["table1.md"]


def test_a_text_that_begins_with_a_mask_is_answered():
    """Its prompt is empty: all of its tokens come at or after the first mask."""
    texts = ["[MASK] is the capital of France.", "The [MASK] of France is Paris."]
    samples = [Sample(f"q{i}", text, ["capital"], infill=True) for i, text in enumerate(texts)]
    answers = fl.evaluate(fl.load("tiny-mdm"), samples)
    assert not answers["error"].any() and answers["answer"].str.len().all()


def test_an_error_is_one_line_and_missing_memory_is_recognised_by_its_text():
    assert error_reason(RuntimeError("sizes differ\nmore")) == "sizes differ"
    assert error_reason(ValueError()) == "ValueError"
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"))
    assert not is_out_of_memory(RuntimeError("sizes differ"))
