"""The program as a user runs it: output, files and errors."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.progress import Progress

import floatlens
from floatlens.cli import main, shared
from floatlens.cli.main import COMMANDS
from floatlens.store.folder import RunFolder
from tests.commands import run
from tests.models import checkpoints
from tests.small_tokenizers import byte_level


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random LLaDA with a tokenizer that reads text."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = byte_level()
    tokenizer.save_pretrained(folder)
    checkpoints.llada(folder, vocab=len(tokenizer) + 8)
    return folder


def test_help_names_every_command() -> None:
    shown = run("--help").stdout
    assert all(name in shown for name in COMMANDS)


@pytest.mark.parametrize("name", [*COMMANDS])
def test_each_command_has_help_with_an_example(name: str) -> None:
    assert f"floatlens {name}" in " ".join(run(name, "--help").stdout.split())


def test_version_says_what_a_bug_report_needs() -> None:
    told = dict(line.split(" ", 1) for line in run("--version").stdout.splitlines())
    assert told["floatlens"] == floatlens.__version__ and told["torch"] == torch.__version__
    assert {"python", "transformers", "platform"} <= set(told)
    assert told["device"].startswith(("cpu", "cuda", "mps")) and told["threads"].startswith(
        f"{torch.get_num_threads()} of"
    )


@pytest.mark.parametrize(
    ("typed", "offered", "not_offered"),
    [
        ("floatlens tr", {"trace"}, {"figure"}),
        ("floatlens trace --pass", {"--passage", "--passages"}, {"--prompt"}),
        ("floatlens --ver", {"--version"}, {"--debug"}),
    ],
)
def test_a_shell_completes_commands_and_their_options(
    typed: str, offered: set[str], not_offered: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_FLOATLENS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    out = io.StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit) as done:  # click ends the process itself here
        sys.exit(main.run([]))
    found = set(out.getvalue().split())
    assert done.value.code in (0, None) and offered <= found and not not_offered & found


@pytest.mark.parametrize(("shell", "place"), [("bash", ".bashrc"), ("zsh", ".zshrc")])
def test_completion_can_be_shown_and_installed(shell: str, place: str, tmp_path: Path) -> None:
    told = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}

    def floatlens(*words: str) -> str:
        words = (sys.executable, "-m", "floatlens", *words)
        return subprocess.run(words, env=told, capture_output=True, text=True, check=True, timeout=120).stdout

    assert "_FLOATLENS_COMPLETE" in floatlens("--show-completion", shell)
    floatlens("--install-completion", shell)
    assert (tmp_path / place).is_file() and any("floatlens" in path.name for path in tmp_path.rglob("*"))


def test_models_and_inspect_print_json(folder: Path) -> None:
    assert {f["name"] for f in json.loads(run("models", "--json").stdout)["families"]} >= {"llada", "dream", "causal"}
    about = json.loads(run("models", folder, "--json").stdout)
    assert about["family"] == "llada" and about["layers"] == 3


def test_trace_of_a_question_makes_a_run(folder: Path, tmp_path: Path) -> None:
    words = ("--prompt", "Where does Ada Tarn live?", "--passage", "Ada Tarn lives in Molen.", "--gold-at", 1)
    done = run("trace", folder, *words, "--max-new-tokens", 8, "--steps", 4, "--out", tmp_path / "run", "--json")
    assert json.loads(done.stdout)["run"] == str(tmp_path / "run") and done.stderr == ""
    [(name, path)] = RunFolder.open(tmp_path / "run").samples()
    trace = floatlens.Trace.open(path)
    assert name == "prompt" and trace.data.sizes["step"] == 4 and trace.gold == ["doc1"]


def test_trace_replays_a_given_answer_after_a_raw_text(folder: Path, tmp_path: Path) -> None:
    words = (
        "--text",
        "[[doc: Ada Tarn lives in Molen.]]",
        "--replay",
        "Molen it rains",
        "--sampler-set",
        "order=random",
    )
    done = run("trace", folder, *words, "--seed", 3, "--out", tmp_path / "run")
    [(_, path)] = RunFolder.open(tmp_path / "run").samples()
    trace, lens = floatlens.Trace.open(path), floatlens.load(str(folder))
    prompt = lens.text_prompt("Ada Tarn lives in Molen.", {"doc": (0, 24)})
    expected = lens.replay(prompt, "Molen it rains", "random", seed=3)
    np.testing.assert_allclose(trace.data["received"], expected.data["received"], rtol=1e-3, atol=1e-6)  # in float16
    assert trace.order == expected.order and trace.answer == "Molen it rains" and "<floatlens.Trace>" in done.stdout
    ids = ",".join(map(str, prompt.ids))
    run("trace", folder, "--ids", ids, "--max-new-tokens", 2, "--out", tmp_path / "ids")
    [(_, path)] = RunFolder.open(tmp_path / "ids").samples()
    assert floatlens.Trace.open(path).final_tokens.tolist()[:-2] == prompt.ids


def test_trace_under_an_intervention_is_that_of_the_library(tmp_path: Path) -> None:
    passages, spec = ["Ada Tarn lives in Molen.", "Bo Tarn lives in Karsk."], "mask-positions(region=gold)"
    words = [word for text in passages for word in ("--passage", text)] + ["--gold-at", "1,2"]
    asked = ("trace", "tiny-mdm", "--prompt", "Where does Ada Tarn live?", *words, "--max-new-tokens", 4)
    run(*asked, "--intervention", spec, "--out", tmp_path / "run", "--json")
    [(_, path)] = RunFolder.open(tmp_path / "run").samples()
    found, lens = floatlens.Trace.open(path), floatlens.load("tiny-mdm")
    with lens.intervene(spec):
        expected = lens.trace("Where does Ada Tarn live?", passages, gold=[0, 1], max_new_tokens=4)
    assert found.gold == ["doc1", "doc2"]
    assert json.loads(found.data.attrs["interventions"]) == json.loads(expected.data.attrs["interventions"]) != []
    np.testing.assert_allclose(found.data["received"], expected.data["received"], rtol=1e-3, atol=1e-6)  # in float16
    assert "ablate-head" in run(*asked, "--intervention", "ablate-head", "--out", tmp_path / "no", code=2).stderr
    assert not (tmp_path / "no").exists(), "refused before anything is made"


def test_trace_of_a_data_set_goes_on_where_it_stopped(folder: Path, tmp_path: Path) -> None:
    rows = [{"id": f"../{i}", "question": f"Where does Ada live {'so ' * i}?", "answers": ["Molen"]} for i in range(5)]
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    words = ("trace", folder, "--data", data, "--max-new-tokens", 4, "--batch-size", 2, "--out", tmp_path / "run")
    run(*words)
    samples = RunFolder.open(tmp_path / "run").samples()
    assert {name for name, _ in samples} == {row["id"] for row in rows}
    assert all(path.parent == tmp_path / "run" / "samples" for _, path in samples)
    before = {name: floatlens.Trace.open(path).load() for name, path in samples}
    import shutil

    shutil.rmtree(samples[1][1])
    assert "is already a run" in run(*words, code=2).stderr
    run(*words, "--resume")
    for name, path in RunFolder.open(tmp_path / "run").samples():
        np.testing.assert_allclose(
            floatlens.Trace.open(path).data["received"], before[name].data["received"], atol=1e-6
        )


@pytest.fixture
def odd_data(tmp_path: Path) -> Path:
    """Five usable lines with columns of their own, and five that are not."""
    rows = [
        {
            "key": str(i),
            "ask": f"Where does Ada{i} live?",
            "target": "Molen",
            "docs": ["Ada lives in Molen.", "Ben bakes."],
        }
        for i in range(5)
    ]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join([*map(json.dumps, rows), *["broken"] * 5]))
    return path


COLUMNS = ("--columns", "id=key,question=ask,answers=target,passages=docs")


def test_trace_reads_data_as_eval_does_and_reports_what_it_skips(folder: Path, tmp_path: Path, odd_data: Path) -> None:
    template = tmp_path / "template.txt"
    template.write_text("Read well.\n\n{passages}\n\nQ: {question}")
    words = ("trace", folder, "--data", odd_data, "--max-new-tokens", 4, *COLUMNS)
    done = run(*words, "--passages", 1, "--template", template, "--out", tmp_path / "run", "--json")
    assert json.loads(done.stdout)["results"][0]["n"] == 5
    assert "5 lines skipped" in json.loads(done.stdout)["problems"]["data"]
    traces = [floatlens.Trace.open(path) for _, path in RunFolder.open(tmp_path / "run").samples()]
    assert {trace.data.attrs["sample_id"] for trace in traces} == set("01234")
    for trace in traces:
        assert "Read well." in trace.data.attrs["prompt"] and "doc2" not in [region.name for region in trace.regions]
    listed = [json.loads(line) for line in (tmp_path / "run" / "problems.jsonl").read_text().splitlines()]
    assert [line["line"] for line in listed] == [6, 7, 8, 9, 10] and listed[0]["problem"].startswith("is not JSON")
    shown = run(*words, "--record", "massive,near,attention_mean", "--out", tmp_path / "again").stderr
    _, path = RunFolder.open(tmp_path / "again").samples()[0]
    kept = set(floatlens.Trace.open(path).data.data_vars)
    assert {"received", "hidden_norm", "massive_channel", "near", "attention_mean"} <= kept
    assert "unknown statistic 'vibes'" in run(*words, "--record", "vibes", "--out", tmp_path / "none", code=2).stderr
    assert "data: 5 lines skipped: data.jsonl, line 6: is not JSON" in shown and "and 2 more (listed in" in shown
    assert "found key, ask, target, docs; name it with --columns" in run(*words[:-2], "--out", "x", code=2).stderr


def test_trace_says_that_a_gold_passage_was_left_out(folder: Path, tmp_path: Path) -> None:
    row = {"question": "Where?", "answers": ["Molen"], "passages": ["Ben bakes.", "Ada lives in Molen."], "gold": [1]}
    (tmp_path / "data.jsonl").write_text(json.dumps({"id": "1", **row}))
    words = ("trace", folder, "--data", tmp_path / "data.jsonl", "--max-new-tokens", 4, "--max-passages", 1)
    said = run(*words, "--out", tmp_path / "run").stderr
    assert "--max-passages 1 left out the gold passage of 1 of 1 questions; --passages 1 keeps it" in said


def test_every_command_on_data_lists_all_skipped_lines_in_its_run(folder: Path, tmp_path: Path, odd_data: Path) -> None:
    run("eval", folder, "--data", odd_data, "--max-new-tokens", 4, *COLUMNS, "--out", tmp_path / "run", "--json")
    assert len((tmp_path / "run" / "problems.jsonl").read_text().splitlines()) == 5


def test_study_reads_data_and_loads_models_as_eval_does(folder: Path, tmp_path: Path, odd_data: Path) -> None:
    template = tmp_path / "template.txt"
    template.write_text("Read well.\n\n{passages}\n\nQ: {question}")
    family = json.loads(run("models", folder, "--json").stdout)["family"]
    words = ("study", f"{folder}:{family}", "--data", odd_data, "--only", "knowledge", "--jobs", 1, *COLUMNS)
    words += ("--max-new-tokens", 4)
    done = run(*words, "--template", template, "--out", tmp_path / "run", "--json")
    found = json.loads(done.stdout)
    assert {entry["n"] for entry in found["results"]} == {5} and "5 lines skipped" in found["notes"][-1]
    study = RunFolder.open(tmp_path / "run")
    asked = study.manifest["asked"]
    assert asked["read"]["template"].startswith("Read well.") and asked["models"] == [f"{folder}:{family}"]
    listed = [json.loads(line) for line in (tmp_path / "run" / "problems.jsonl").read_text().splitlines()]
    assert [problem["line"] for problem in listed] == [6, 7, 8, 9, 10]


def test_trace_retrieves_passages_from_a_corpus(folder: Path, tmp_path: Path, odd_data: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": f"Ada{i} lives in Rusk {i}."}) + "\n" for i in range(5)))
    words = ("--corpus", corpus, "--max-passages", 1, "--limit", 2, "--max-new-tokens", 4)
    run("trace", folder, "--data", odd_data, *COLUMNS, *words, "--out", tmp_path / "run")
    for name, path in RunFolder.open(tmp_path / "run").samples():
        assert f"[1] Ada{name} lives in Rusk {name}." in floatlens.Trace.open(path).data.attrs["prompt"]


def test_noise_on_too_little_data_names_the_option_that_helps(folder: Path, odd_data: Path) -> None:
    words = ("--columns", "id=key,question=ask,answers=target,passages=docs,gold=which", "--limit", 2)
    odd_data.write_text(odd_data.read_text().replace('"docs"', '"which": 0, "docs"'))
    said = run("stress", "noise", folder, "--data", odd_data, *words, code=2).stderr
    assert "use smaller numbers in --levels (such as --levels 0)" in said


def test_a_trace_can_be_drawn(folder: Path, tmp_path: Path) -> None:
    run("trace", folder, "--prompt", "Where does Ada Tarn live?", "--max-new-tokens", 4, "--out", tmp_path / "run")
    run("figure", "drift", tmp_path / "run", "--out", tmp_path / "figures")
    made = {path.suffix for path in (tmp_path / "figures").iterdir()}
    assert {".png", ".svg", ".pdf", ".parquet"} <= made


def test_the_papers_files_become_a_run(tmp_path: Path) -> None:
    from tests.trace.test_npz import paper_file

    paper_file(tmp_path / "x.npz")
    run("import", tmp_path / "x.npz", "--out", tmp_path / "run")
    assert len(RunFolder.open(tmp_path / "run").samples()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("models", "nowhere"), "floatlens: unknown model 'nowhere'; use a folder"),
        (("trace", "FOLDER", "--out", "OUT"), "pass exactly one of --prompt"),
        (("trace", "FOLDER", "--prompt", "x", "--data", "y", "--out", "OUT"), "pass exactly one of --prompt"),
        (("trace", "FOLDER", "--data", "world", "--replay", "x", "--out", "OUT"), "--replay needs one prompt"),
        (
            ("trace", "FOLDER", "--ids", "1,b", "--out", "OUT"),
            "--ids '1,b' is not understood; write token ids as 1,5,7",
        ),
        (
            ("trace", "FOLDER", "--prompt", "x", "--replay", "y", "--sampler-set", "order=9", "--out", "OUT"),
            "by its index from 0",
        ),
        (
            ("trace", "FOLDER", "--prompt", "x", "--sampler-set", "block_length=5", "--out", "OUT"),
            "block_length 5 does not divide",
        ),
        (
            ("trace", "FOLDER", "--prompt", "x", "--max-new-tokens", 500, "--out", "OUT"),
            "exceed the model's context of 128",
        ),
        (("trace", "FOLDER", "--prompt", "x", "--layers", "a", "--out", "OUT"), "--layers 'a' is not understood"),
        (("trace", "FOLDER", "--prompt", "x", "--layers", "7", "--out", "OUT"), "layer 7 does not exist"),
        (("trace", "FOLDER", "--data", "none.jsonl", "--out", "OUT"), "none.jsonl"),
        (("figure", "drift", "OUT"), "is not a run folder"),
        (("import", "OUT", "--out", "OUT"), "does not exist"),
        (
            ("trace", "FOLDER", "--prompt", "x", "--out", "FOLDER/config.json/run"),
            "cannot be created: Not a directory; choose another --out",
        ),
        (("trace", "FOLDER", "--prompt", "x", "--out", "x" * 300), "the name is too long for the disk"),
        (("models", "FOLDER", "--dtype", "float8"), "float8"),
        (("trace", "FOLDER", "--prompt", "x", "--out", "OUT", "--detail", "little"), "unknown detail 'little'"),
    ],
)
def test_what_a_user_can_mend_is_one_sentence_and_code_2(folder: Path, tmp_path: Path, words: tuple, said: str) -> None:
    places = {"FOLDER": folder, "OUT": tmp_path / "out", "FOLDER/config.json/run": folder / "config.json" / "run"}
    done = run(*(places.get(word, word) for word in words), code=2)
    assert said in done.stderr and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr and done.stdout == ""
    assert not (tmp_path / "out").exists()


def test_debug_adds_the_traceback(folder: Path) -> None:
    assert "Traceback" in run("--debug", "models", "nowhere", code=2).stderr


def test_a_wrong_option_is_code_2() -> None:
    run("trace", "--nonsense", code=2)
    run("dance", code=2)


@pytest.mark.parametrize(
    "words",
    [
        ("eval", "tiny-mdm", "--data", "world", "--batch-size", 0),
        ("trace", "tiny-mdm", "--data", "world", "--out", "OUT", "--batch-size", -1),
        ("trace", "tiny-mdm", "--data", "world", "--out", "OUT", "--max-passages", -1),
        ("trace", "tiny-mdm", "--data", "world", "--out", "OUT", "--passages", -1),
        ("models", "tiny-mdm", "--positions", 0),
    ],
)
def test_a_number_out_of_its_range_is_refused_by_the_option(words: tuple, tmp_path: Path) -> None:
    said = run(*(tmp_path / "out" if word == "OUT" else word for word in words), code=2).stderr
    assert f"Invalid value for '{words[-2]}'" in said and not (tmp_path / "out").exists()


def test_help_and_mistakes_in_options_need_no_torch() -> None:
    source = str(Path(floatlens.__file__).parents[1])
    code = "import sys; sys.argv = ['floatlens', *sys.argv[1:]]; from floatlens.cli.main import main\n"
    code += "try: main()\nfinally: print('torch' in sys.modules, file=sys.stderr)"
    mistakes = (
        ["dance"],
        ["trace", "tiny-mdm", "--out", "x"],
        ["eval", "tiny-mdm", "--data", "world", "--resume"],
        ["eval", "tiny-mdm", "--data", "nowhere.jsonl"],
        ["stress", "heat", "tiny-mdm", "--data", "world"],
        ["ablate", "tiny-mdm", "--data", "world", "--columns", "x"],
        ["trace", "no-such-model", "--prompt", "x", "--out", "x"],
        ["eval", "tiny-mdm", "no-such-model", "--data", "world"],
        ["study", "tiny-mdm", "--data", "nowhere.jsonl", "--out", "x"],
        ["study", "tiny-mdm", "--data", "world", "--setting", "long", "--out", "x"],
        ["explore", "no-such-model"],
        ["explore", "tiny-mdm", "--template", "no-such-file"],
        ["trace", "tiny-mdm:lada", "--prompt", "x", "--out", "x"],
        ["study", "tiny-mdm", "--data", "world", "--engine", "cloud", "--out", "x"],
        ["trace", "tiny-mdm", "--prompt", "x", "--out", "x", "--intervention", "mask-anchor(top(1))"],
        ["trace", "tiny-mdm", "--prompt", "x", "--out", "x", "--intervention", "mask-anchors(rul=top(1))"],
        ["ablate", "tiny-mdm", "--data", "world", "--intervention", "mask-anchors(rule=topp({n}))"],
        ["models", str(Path(__file__).parent)],
        ["plan", "no-such-model.gguf", "--data", "world", "--gpus", "8xA100"],
    )
    for words, wanted in ((["--help"], 0), *((words, 2) for words in mistakes)):
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": source},
        )
        assert done.returncode == wanted and done.stderr.strip().endswith("False")


def test_without_a_terminal_a_part_prints_a_line_when_it_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = 0.0
    monkeypatch.setattr("floatlens.cli.shared.time.monotonic", lambda: clock)
    with shared.bar() as watch:
        advance = watch("tiny-mdm, traces", 4)
        for _ in range(4):
            clock += 2
            advance()
    assert capsys.readouterr().err == "tiny-mdm, traces: 4 of 4, 2 s each\n"


def test_a_part_prints_a_line_each_minute_even_if_it_does_not_advance(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock, lines = 0.0, []
    monkeypatch.setattr("floatlens.cli.shared.time.monotonic", lambda: clock)
    monkeypatch.setattr("floatlens.cli.shared.EVERY", 0.01)

    def wait_for(said: str) -> None:
        for _ in range(1000):
            time.sleep(0.01)
            lines.extend(capsys.readouterr().err.splitlines())
            if lines and lines[-1] == said:
                return
        raise AssertionError(lines[-1:])

    with shared.bar() as watch:
        advance = watch("tiny-mdm, traces", 4)
        clock = 120.0
        wait_for("tiny-mdm, traces: 0 of 4, for 2 min")
        advance()
        wait_for("tiny-mdm, traces: 1 of 4, 120 s each, 6 min left")
        for _ in range(3):
            advance()
        wait_for("tiny-mdm, traces: 4 of 4, 30 s each")
        time.sleep(0.1)
        assert capsys.readouterr().err == "", "a finished part says nothing more"


def test_work_of_a_few_seconds_prints_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with shared.bar() as watch:
        watch("tiny-mdm, fresh", 1)()
    assert capsys.readouterr().err == ""


def test_a_terminal_shows_one_total_and_the_active_part(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    class Observed(Progress):
        def __init__(self, *columns: Any, **settings: Any) -> None:
            super().__init__(*columns, **settings)
            made.append(self)

    made: list[Progress] = []
    monkeypatch.setattr("rich.progress.Progress", Observed)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with shared.bar(6) as watch:
        for part in ("tiny-mdm, traces", "tiny-mdm, texts", "tiny-mdm, figures"):
            advance = watch(part, 2)
            advance()
            if "figures" not in part:
                advance()
        [progress] = made
        shown = [task for task in progress.tasks if task.visible]
        assert [(task.description, task.completed, task.total) for task in shown] == [
            ("total", 5, 6),
            ("tiny-mdm, figures", 1, 2),
        ]
        assert not any("question" in task.fields["rate"] for task in progress.tasks), "no unit but the time of one"
