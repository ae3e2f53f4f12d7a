"""Readers: each layout in each file format, streamed, and the messages about data that cannot be used."""

from __future__ import annotations

import csv
import gzip
import json
import os
import sys
import types
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pandas
import pytest

from floatlens.data import formats
from floatlens.data.formats import ending_of
from floatlens.data.layouts import parse_columns
from floatlens.data.read import READERS, NamedData, Problems, expand, label, read, register_reader, take
from floatlens.data.sample import Passage, Sample
from floatlens.errors import FloatLensError

GOOD = {"id": "a", "question": "Who?", "answers": ["Ann"]}


def write(path, rows):
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return str(path)


def problems_of(tmp_path, *rows):
    reading = read(write(tmp_path / "d.jsonl", [GOOD, *rows]))
    assert len(list(reading)) >= 1
    return reading.problems.sentences()


@pytest.fixture(scope="session")
def data():
    root = Path(__file__).parents[2]
    folder = Path(os.environ.get("FLOATLENS_DATA", root.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there; set FLOATLENS_DATA to the folder of real questions")
    return folder


def test_real_kilt_like_questions(data):
    reading = read(str(data / "hotpotqa-dev.first200.jsonl.gz"))
    samples = list(reading)
    assert len(samples) == 200 and not reading.problems.kept
    assert all(s.gold and s.answers and s.passages[0].title for s in samples)
    assert Counter(len(s.gold) for s in samples).most_common(1)[0][0] == 2  # two supporting paragraphs


@pytest.mark.parametrize("place", [0, 4, 9])
def test_real_lost_in_the_middle_questions(data, place):
    name = f"CONSTRUCTED-from-oracle-10docs-random-distractors_gold_at_{place}.first200.jsonl.gz"
    samples = list(read(str(data / name)))
    assert len(samples) == 200
    assert all(s.gold == [place] and len(s.passages) == 10 for s in samples)


def test_real_key_value_pairs(data):
    samples = list(read(str(data / "kv-retrieval-75_keys.first100.jsonl.gz")))
    assert len(samples) == 100
    for sample in samples:
        (place,) = sample.gold
        assert sample.passages[place].text == sample.answers[0] and len(sample.passages) == 75


def test_hotpot_s_own_layout_and_the_hub_s(tmp_path):
    listed = {"_id": "x", "question": "Q?", "answer": "y", "context": [["A", ["x."]], ["B", ["y. ", "z."]]]}
    listed["supporting_facts"] = [["B", 0]]
    named = {**listed, "_id": "y", "context": {"title": ["A", "B"], "sentences": [["x."], ["y. ", "z."]]}}
    named["supporting_facts"] = {"title": ["B"], "sent_id": [0]}
    for sample in read(write(tmp_path / "h.jsonl", [listed, named])):
        assert sample.passages == [Passage("x.", "A"), Passage("y. z.", "B", gold=True)]


@pytest.mark.parametrize("name", ["world:fresh", "atlas:hops", "prose"])
def test_samples_that_were_written_as_json_are_read_as_they_were(tmp_path, name):
    samples = [replace(sample, answers=[text.strip() for text in sample.answers]) for sample in read(name, limit=20)]
    assert list(read(write(tmp_path / "d.jsonl", [asdict(sample) for sample in samples]))) == samples


def test_the_same_samples_from_jsonl_csv_and_parquet(tmp_path):
    rows = [
        {"id": "1", "question": "Who, then?", "answers": ["Ann", "A"], "passages": ["One.", "Two."], "gold": 1},
        {"id": "2", "question": "Where\nis it?", "answers": ["Molen"], "passages": ["Three."], "gold": 0},
    ]
    wanted = list(read(write(tmp_path / "d.jsonl", rows)))
    assert wanted[0].gold == [1] and wanted[1].question == "Where\nis it?"
    pandas.DataFrame(rows).to_parquet(tmp_path / "d.parquet")
    for suffix, delimiter in ((".csv", ","), (".tsv", "\t")):
        with (tmp_path / f"d{suffix}").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter=delimiter)
            writer.writerow(rows[0])
            writer.writerows([[v if isinstance(v, str) else json.dumps(v) for v in r.values()] for r in rows])
    for name in ("d.csv", "d.tsv", "d.parquet"):
        assert list(read(str(tmp_path / name))) == wanted, name


def test_named_columns(tmp_path):
    path = write(tmp_path / "d.jsonl", [{"key": 7, "ask": "Who?", "target": "Ann", "docs": [{"contents": "x"}]}])
    names = parse_columns("id=key, question=ask,answers=target,passages=docs")
    (sample,) = read(path, columns=names)
    assert (sample.id, sample.question, sample.answers, sample.passages) == ("7", "Who?", ["Ann"], [Passage("x")])
    with pytest.raises(FloatLensError, match="--columns 'ask=question' is not understood"):
        parse_columns("ask=question")


def test_answers_of_squad_and_trivia_qa(tmp_path):
    rows = [{"question": "Q?", "answers": {"text": ["a", "b", "a"], "answer_start": [1, 2, 3]}, "context": "abc"}]
    rows += [{"question": "Q?", "answer": {"value": "c", "aliases": ["c", "d"]}}]
    first, second = read(write(tmp_path / "d.jsonl", rows))
    assert first.answers == ["a", "b"] and first.passages == [Passage("abc")] and second.answers == ["c", "d"]


def test_a_folder_has_a_file_for_each_split(tmp_path):
    write(tmp_path / "validation.jsonl.gz", [GOOD])
    assert len(list(read(str(tmp_path), split="validation"))) == 1
    with pytest.raises(FloatLensError, match=r"has no file test\.jsonl"):
        read(str(tmp_path))
    with pytest.raises(FloatLensError, match="leave out --split"):
        read(str(tmp_path / "validation.jsonl.gz"), split="test")


def test_a_hub_data_set_streams_without_remote_code(monkeypatch):
    asked = {}

    def load_dataset(path, config, **options):
        asked.update(path=path, config=config, **options)
        return iter([GOOD])

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setattr("huggingface_hub.dataset_info", lambda path, timeout: None)
    (sample,) = read("owner/name:small", split="train")
    assert sample.question == "Who?"
    assert asked == {"path": "owner/name", "config": "small", "split": "train", "streaming": True}


def test_the_hub_library_itself_reads_what_a_data_set_holds(tmp_path, monkeypatch):
    pytest.importorskip("datasets", reason="THE HUB READER IS NOT TESTED: datasets is not installed")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "owner" / "name"
    folder.mkdir(parents=True)
    rows = [GOOD | {"question": f"Who {i}?"} for i in range(5)]
    pandas.DataFrame(rows).to_parquet(folder / "validation-00000.parquet")
    found = [record for _, record in formats.hub(str(folder), "validation")]
    assert [record["question"] for record in found] == [row["question"] for row in rows]
    assert {key: found[0][key] for key in rows[0]} == rows[0]
    with pytest.raises(FloatLensError, match="cannot be opened.*check name, config and --split"):
        list(formats.hub(str(folder), "nowhere"))


def test_a_hub_name_without_the_extra_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(FloatLensError, match=r"pip install 'floatlens\[datasets\]'"):
        list(read("owner/name"))


def test_limit_stops_reading_and_a_seed_draws_fairly_in_one_pass():
    read_so_far = []
    source = (read_so_far.append(i) or i for i in range(1000))
    assert list(take(source, 3)) == [0, 1, 2] and len(read_so_far) <= 4
    counts = Counter(i for seed in range(2000) for i in take(range(10), 3, seed))
    assert all(500 < counts[i] < 700 for i in range(10))  # 600 expected, 4.9 sigma
    drawn = list(take(range(100), 20, seed=5))
    assert drawn == sorted(drawn) == list(take(range(100), 20, seed=5))
    assert len(list(take(range(3), 20, seed=5))) == 3


def test_a_large_file_never_sits_in_memory(tmp_path):
    import tracemalloc

    row = {"question": "Who?", "answers": ["Ann"], "ctxs": [{"title": "t", "text": "x " * 20_000}]}
    path = write(tmp_path / "big.jsonl", [row] * 500)  # 20 MB
    tracemalloc.start()
    assert sum(1 for _ in read(path)) == 500
    assert len(list(read(path, limit=5, seed=1))) == 5
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * 2**20


# Bad input: each is named with file and line, counted, and does not stop the rest.


@pytest.mark.parametrize("name", ["d.jsonl", "d.jsonl.gz", "d.csv", "d.parquet"])
def test_an_empty_file(tmp_path, name):
    path = tmp_path / name
    if name.endswith("parquet"):
        pandas.DataFrame({"question": []}).to_parquet(path)
    else:
        write(path, [])
    with pytest.raises(FloatLensError, match="is empty"):
        list(read(str(path)))


def test_wrong_encoding(tmp_path):
    path = tmp_path / "d.jsonl"
    bad = json.dumps({**GOOD, "id": "b", "question": "Où?"}, ensure_ascii=False).encode("latin-1")
    path.write_bytes(json.dumps(GOOD).encode() + b"\n" + bad + b"\n")
    reading = read(str(path))
    assert len(list(reading)) == 1
    assert "d.jsonl, line 2: is not UTF-8 (byte 0xf9" in reading.problems.sentences()[0]
    path.write_text(json.dumps(GOOD), encoding="utf-16")
    with pytest.raises(FloatLensError, match="is UTF-16, expected UTF-8; convert it with iconv"):
        list(read(str(path)))
    path.write_text(json.dumps(GOOD), encoding="utf-8-sig")
    assert len(list(read(str(path)))) == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "b", "answers": ["x"]}, "line 2: has no question; expected the field question or input or query"),
        ({"id": "b", "question": "Why?"}, "line 2: has no answers; expected the field"),
        ({"id": "b", "question": " ", "answers": ["x"]}, "line 2: question is ' '; expected the question"),
        ({"id": "b", "question": 5, "answers": ["x"]}, "line 2: question is 5; expected the question as a string"),
        ({"id": "b", "question": "Why?", "answers": 5}, "line 2: answers is 5; expected a string or a list"),
        ({"id": "b", "question": "Why?", "answers": [5, None]}, "answers is [5, None]; expected a string or a list"),
        ({"id": "b", "question": "Why?", "answers": []}, "answers is []; expected a string or a list"),
        ({"id": ["b"], "question": "Why?", "answers": ["x"]}, "line 2: id is ['b']; expected"),
        ({**GOOD}, "line 2: id 'a' was already used on line 1"),
        ({**GOOD, "id": "b", "passages": ["x"], "gold": 1}, "gold is 1; expected an index of the 1 passages, from 0"),
        ({**GOOD, "id": "b", "passages": ["x"], "gold": -1}, "gold is -1; expected an index"),
        ({**GOOD, "id": "b", "passages": ["x"], "gold": "0"}, "gold is '0'; expected an index"),
        ({**GOOD, "id": "b", "passages": 3}, "passages is 3; expected a list of passages"),
        ({**GOOD, "id": "b", "passages": [{"n": 1}]}, "passages[0] has no text"),
        ({**GOOD, "id": "b", "passages": [7]}, "passages[0] is 7; expected"),
        ("{not json", "line 2: is not JSON"),
        ("[" * 100_000, "line 2: is not JSON"),
        ("[1]", "line 2: is a list; expected one JSON object per line"),
    ],
)
def test_a_bad_line_is_named_and_the_rest_is_read(tmp_path, row, message):
    (problem,) = problems_of(tmp_path, row, {**GOOD, "id": "z"})
    assert message in problem


def test_strict_stops_at_the_first_bad_line(tmp_path):
    path = write(tmp_path / "d.jsonl", [GOOD, "oops"])
    with pytest.raises(FloatLensError, match=r"d\.jsonl, line 2: is not JSON.*leave out strict=True"):
        list(read(path, strict=True))


def test_nothing_usable_is_an_error_with_the_first_reasons(tmp_path):
    path = write(tmp_path / "d.jsonl", [{"q": 1}] * 5)
    with pytest.raises(
        FloatLensError, match=r"no usable line \(5 lines skipped: d.jsonl, line 1: has no question.*and 2 more"
    ):
        list(read(path))


def test_an_id_with_path_characters_is_kept(tmp_path):
    reading = read(write(tmp_path / "d.jsonl", [{**GOOD, "id": "../../etc/passwd"}]), strict=True)
    assert [s.id for s in reading] == ["../../etc/passwd"]


def test_a_question_of_100_000_characters_is_read(tmp_path):
    (sample,) = read(write(tmp_path / "d.jsonl", [{**GOOD, "question": "why " * 25_000}]))
    assert len(sample.question) == 100_000


def test_no_passages_at_all_is_a_closed_book_question(tmp_path):
    rows = [{**GOOD, "id": "1"}, {**GOOD, "id": "2", "passages": []}, {**GOOD, "id": "3", "passages": None}]
    assert [s.passages for s in read(write(tmp_path / "d.jsonl", rows))] == [[], [], []]


def test_lines_and_gzip_have_a_bound(tmp_path, monkeypatch):
    path = write(tmp_path / "d.jsonl.gz", [GOOD, "x" * 5000, {**GOOD, "id": "b"}])
    monkeypatch.setattr(formats, "MAX_LINE", 1000)
    with pytest.raises(FloatLensError, match="line 2 is longer than 1,000 bytes; it is not a text file"):
        list(read(path))


def test_a_gzip_file_cut_short_gives_what_it_has(tmp_path):
    path = tmp_path / "d.jsonl.gz"
    rows = [{**GOOD, "id": str(i), "note": os.urandom(50).hex()} for i in range(200)]
    write(path, rows)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    reading = read(str(path))
    assert 10 < len(list(reading)) < 200
    assert "the gzip file is damaged from here on" in reading.problems.sentences()[-1]
    path.write_bytes(b"no gzip at all")
    with pytest.raises(FloatLensError, match="is not a complete gzip file"):
        list(read(str(path)))


def test_csv_rows_that_do_not_fit_the_header(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text('question,answers\nWho?,Ann\nWho?\n"Wh"o?,x\nWhere?,Molen\n', encoding="utf-8")
    reading = read(str(path))
    assert [s.answers for s in reading] == [["Ann"], ["Molen"]]
    assert "line 3: has 1 cells; the header has 2" in reading.problems.sentences()[0]
    assert "line 4: is not CSV" in reading.problems.sentences()[1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone.jsonl", "does not exist"),
        ("d.xlsx", "has the ending '.xlsx'"),
        ("world:mars", "unknown data set 'world:mars'"),
    ],
)
def test_names_that_lead_nowhere(tmp_path, name, message):
    (tmp_path / "d.xlsx").write_text("x")
    with pytest.raises(FloatLensError, match=message):
        read(name if name.startswith("world") else str(tmp_path / name))


def test_a_damaged_parquet_file(tmp_path):
    (tmp_path / "d.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(FloatLensError, match="not a readable parquet file"):
        list(read(str(tmp_path / "d.parquet")))


def test_the_world_s_data_sets_are_there():
    samples = list(read("world:fresh", split="test", limit=5, passages=4, gold_at=2))
    assert len(samples) == 5 and all(s.gold == [2] and len(s.passages) == 4 for s in samples)
    kinds = {s.meta["kind"] for s in read("world", limit=2)}
    assert {"common", "fresh", "hops", "needle"} <= kinds


# What a user is told about columns, separators and empty fields.


def test_a_missing_column_is_told_with_the_option_that_names_it(tmp_path):
    path = write(tmp_path / "d.jsonl", [{"ask": "Who?", "target": "Ann"}])
    with pytest.raises(FloatLensError, match="found ask, target; name it with --columns question=NAME"):
        list(read(path))
    with pytest.raises(FloatLensError, match="found ask, target; name it with --columns answers=NAME"):
        list(read(path, columns={"question": "ask"}))


@pytest.mark.parametrize(("name", "separator"), [("d.csv", ";"), ("d.csv", "\t"), ("d.tsv", ","), ("d.csv.gz", "|")])
def test_another_separator_is_named(tmp_path, name, separator):
    path = write(tmp_path / name, [f"question{separator}answers", f"Who?{separator}Ann"])
    with pytest.raises(FloatLensError, match="seems to have the separator") as error:
        list(read(path))
    assert repr(separator) in str(error.value) and "a .csv file needs commas" in str(error.value)


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_an_empty_field_is_called_empty_and_not_missing(tmp_path, ending):
    path = tmp_path / f"d.{ending}"
    rows = [
        {"question": "Who?", "answers": "Ann"},
        {"question": None, "answers": "x"},
        {"question": "Why?", "answers": None},
    ]
    if ending == "csv":
        pandas.DataFrame(rows).to_csv(path, index=False)
    else:
        write(path, rows)
    reading = read(path)
    assert len(list(reading)) == 1
    assert [p["problem"] for p in reading.problems.kept] == [
        "question is empty; expected the question",
        "answers is empty; expected the answers",
    ]


def test_every_problem_is_kept_for_the_full_list(tmp_path):
    reading = read(write(tmp_path / "d.jsonl", [GOOD, *["oops"] * 300]))
    assert len(list(reading)) == 1 and len(reading.problems.kept) == reading.problems.skipped == 300
    assert "and 297 more (listed in problems.jsonl with --out)" in reading.problems.summary()


# Readers of a user's own.


@pytest.fixture
def readers(monkeypatch):
    """The registry of readers, as it was after the test."""
    READERS.load()
    monkeypatch.setattr(READERS, "_entries", dict(READERS._entries))


def test_a_function_reads_records(tmp_path):
    def trivia(record):
        return Sample(record["qid"], record["ask"], [record["target"]], [Passage(record["note"], gold=True)])

    rows = [{"qid": str(i), "ask": "Who?", "target": "Ann", "note": "Ann did."} for i in range(3)]
    reading = read(write(tmp_path / "d.jsonl", [*rows, {"qid": "4"}]), reader=trivia)
    assert [(s.id, s.answers, s.gold) for s in reading] == [(str(i), ["Ann"], [0]) for i in range(3)]
    assert reading.problems.sentences() == ["d.jsonl, line 4: reader trivia failed (KeyError: 'ask')"]
    with pytest.raises(FloatLensError, match="reader <lambda> returned dict; expected a floatlens.Sample"):
        list(read(write(tmp_path / "d.jsonl", rows), reader=lambda record: record))
    with pytest.raises(FloatLensError, match="layout cannot be combined with reader"):
        read(tmp_path / "d.jsonl", layout="kilt", reader=trivia)


def test_a_registered_function_is_a_layout(tmp_path, readers):
    @register_reader
    def mine(record):
        return Sample("", record["ask"], ["x"])

    (sample,) = read(write(tmp_path / "d.jsonl", [{"ask": "Who?"}]), layout="mine")
    assert (sample.id, sample.question) == ("d-1", "Who?")
    with pytest.raises(FloatLensError, match=r"unknown layout 'yours'; use one of .*mine"):
        read(tmp_path / "d.jsonl", layout="yours")


def test_a_data_set_with_a_name_of_its_own_is_one_line(readers):
    def samples(name, split, limit, *, passages, gold_at, seed):
        return (Sample(f"{name}-{i}", "Who?", ["Ann"]) for i in range(limit or 9))

    register_reader(NamedData("quiz", ["quiz:easy", "quiz:hard"], samples))
    assert [s.id for s in read("quiz:hard", limit=2)] == ["quiz:hard-0", "quiz:hard-1"]
    assert label("quiz:hard") == "quiz:hard" and expand("quiz") == ["quiz:easy", "quiz:hard"]
    with pytest.raises(FloatLensError, match="the reader 'world' is already registered"):
        register_reader(NamedData("world", ["world"], samples))


def test_the_list_of_problems_says_how_many_it_does_not_have(monkeypatch):
    monkeypatch.setattr("floatlens.data.read.KEPT", 2)
    problems = Problems()
    for line in range(1, 6):
        problems.add("nq.jsonl", line, "has no question")
    records = list(problems.to_records())
    assert [record["line"] for record in records] == [1, 2, None] and records[-1]["problem"] == "and 3 more lines"


def test_prose_is_ordinary_english_that_is_given_in_two_parts() -> None:
    stories = list(read("prose"))
    assert len(stories) == 20 and all(sample.continuation and not sample.passages for sample in stories)
    for sample in stories:
        whole = sample.question + sample.answers[0]
        assert len(whole.split()) >= 138 and "," in whole and "  " not in whole
    assert [sample.id for sample in read("prose", limit=2)] == ["prose-1", "prose-2"]
    with pytest.raises(FloatLensError, match="unknown data set 'prose:x'"):
        read("prose:x")


@pytest.mark.parametrize(
    ("layout", "record", "answers", "gold"),
    [
        ("middle", {"question": "Who?", "answers": ["Ann"], "ctxs": [{"text": "b", "isgold": True}]}, ["Ann"], [0]),
        ("keyvalue", {"ordered_kv_records": [["k", "v"], ["l", "w"]], "key": "l", "value": "w"}, ["w"], [1]),
        (
            "hotpot",
            {
                "question": "Q?",
                "answer": "y",
                "context": [["A", ["x."]], ["B", ["y. ", "z."]]],
                "supporting_facts": [["B", 0]],
            },
            ["y"],
            [1],
        ),
        ("continue", {"continue": "It was the best of"}, [], []),
        ("infill", {"infill": "The [MASK] of France is Paris.", "answers": ["capital"]}, ["capital"], []),
        (
            "kilt",
            {"input": "Who?", "output": [{"answer": "A"}, {"answer": " "}, {"text": "T"}, "S"]},
            ["A", "T", "S"],
            [],
        ),
        ("columns", {"question": "Who?", "answer": "Ann", "passages": ["Ann did."], "gold": 0}, ["Ann"], [0]),
    ],
)
def test_a_record_of_each_layout_is_recognised(tmp_path, layout, record, answers, gold):
    path = write(tmp_path / "d.jsonl", [record])
    (found,), (chosen,) = read(path), read(path, layout=layout)
    assert found == chosen and (found.answers, found.gold) == (answers, gold)
    assert (found.infill, found.continuation) == (layout == "infill", layout == "continue")


def test_data_has_a_short_name_and_a_format_by_its_ending():
    assert [label(name) for name in ("data/nq-open.jsonl.gz", "world:fresh")] == ["nq-open", "world:fresh"]
    assert ending_of(Path("nq.JSONL.gz")) == ".jsonl"
    assert expand("nq.jsonl") == ["nq.jsonl"] and len(expand("world")) == 6 and expand("world:hops") == ["world:hops"]
