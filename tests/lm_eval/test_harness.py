"""The model `floatlens` in lm-evaluation-harness itself, on local tasks."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lm_eval")

from lm_eval.api.registry import Registry
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

import floatlens as fl
import lm_eval
from floatlens.lm_eval.model import FloatLensLM, available
from floatlens.store.folder import RunFolder
from floatlens.store.runs import RunTraces

ROOT = Path(__file__).parents[2]
QUESTIONS: list[dict[str, Any]] = [
    {"passage": passage, "question": question, "choices": choices, "gold": gold}
    for passage, question, choices, gold in (
        ("Ada Tarn was born in Rusk.", "Where was Ada Tarn born?", ["Rusk", "Molen"], 0),
        ("Ben Oder lives in Molen.", "Where does Ben Oder live?", ["Rusk", "Molen"], 1),
        ("Ada Tarn is a baker.", "Who is a baker?", ["Ada Tarn", "a baker in Rusk"], 0),
    )
]
COMMON = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
metadata: {{version: 1.0}}
"""
TASKS = {
    "toy_choice": """
output_type: multiple_choice
doc_to_text: "{{passage}} {{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: gold
target_delimiter: " "
metric_list:
  - metric: acc
""",
    "toy_write": """
output_type: generate_until
doc_to_text: "{{passage}} {{question}}"
doc_to_target: "{{choices[gold]}}"
generation_kwargs: {until: ["\\n", "."], max_gen_toks: 6, do_sample: false}
metric_list:
  - metric: exact_match
""",
    "toy_text": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{passage}} {{question}}"
metric_list:
  - metric: word_perplexity
""",
}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of task files with their data, as a user keeps them."""
    folder = tmp_path_factory.mktemp("tasks")
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    for name, text in TASKS.items():
        (folder / f"{name}.yaml").write_text(COMMON.format(name=name, data=data) + text)
    return folder


@pytest.fixture(autouse=True)
def caches_of_the_library_stay_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def run(model: Any, folder: Path, *names: str, **options: Any) -> dict[str, list[Any]]:
    """What the harness got from a model, by task: the responses to each document."""
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    found = lm_eval.simple_evaluate(
        model=model, tasks=list(names), task_manager=manager, log_samples=True, bootstrap_iters=0, **options
    )
    assert found is not None
    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    return {name: [s["resps"] for s in sorted(found["samples"][name], key=lambda s: s["doc_id"])] for name in names}


def test_an_autoregressive_model_gets_what_the_harness_own_model_gets(tasks: Path) -> None:
    lens = fl.load("tiny-arm")
    theirs = run(HFLM(pretrained=lens.model, tokenizer=lens.tokenizer, device="cpu", batch_size=2), tasks, *TASKS)
    ours = run("floatlens", tasks, *TASKS, model_args="pretrained=tiny-arm", batch_size=2)
    assert ours["toy_write"] == theirs["toy_write"]
    for expected, found in zip(theirs["toy_choice"], ours["toy_choice"], strict=True):
        assert [(bool(greedy)) for [(_, greedy)] in found] == [bool(greedy) for [(_, greedy)] in expected]
        assert [value for [(value, _)] in found] == pytest.approx([value for [(value, _)] in expected], abs=1e-3)
    assert [value for [[value]] in ours["toy_text"]] == pytest.approx([v for [[v]] in theirs["toy_text"]], abs=1e-2)


def test_a_diffusion_model_writes_with_its_sampler_and_is_scored_by_the_bound(tasks: Path) -> None:
    arguments = "pretrained=tiny-mdm,mc_num=4,seed=3,steps=3"
    found = run("floatlens", tasks, "toy_choice", "toy_write", model_args=arguments, batch_size=4)
    again = run("floatlens", tasks, "toy_choice", "toy_write", model_args=arguments, batch_size=4)
    assert found == again
    lens = fl.load("tiny-mdm")
    for question, [[text]], choices in zip(QUESTIONS, found["toy_write"], found["toy_choice"], strict=True):
        asked = f"{question['passage']} {question['question']}"
        prompt = lens.tokenizer.encode(asked)
        [made] = lens.generate([prompt], max_new_tokens=6, steps=3)
        whole = lens.tokenizer.decode(made.ids, skip_special_tokens=True)
        assert text == whole.split("\n")[0].split(".")[0]
        for choice, [(value, _)] in zip(question["choices"], choices, strict=True):
            answer = lens.tokenizer.encode(f"{asked} {choice}")[len(prompt) :]
            if len(answer) == 1:  # one token has one masking, so the bound is the probability itself
                with torch.no_grad():
                    row = lens.model(torch.tensor([[*prompt, lens.mask_id]])).logits[0, -1].log_softmax(-1)
                assert value == pytest.approx(float(row[answer[0]]), abs=1e-3)
    other = run("floatlens", tasks, "toy_choice", model_args=arguments.replace("seed=3", "seed=4"))
    assert other["toy_choice"] != found["toy_choice"]  # answers of three tokens and more are estimated


def test_the_samples_are_traced_on_request(tasks: Path, tmp_path: Path) -> None:
    plain = run("floatlens", tasks, *TASKS, model_args="pretrained=tiny-mdm,mc_num=2", batch_size=2)
    place = tmp_path / "run"
    arguments = f"pretrained=tiny-mdm,mc_num=2,trace_to={place}"
    assert run("floatlens", tasks, *TASKS, model_args=arguments, batch_size=2) == plain
    folder = RunFolder.open(place)
    traces = {str(trace.data.attrs["sample_id"]): trace for trace in RunTraces([folder])}
    written = {f"toy_write/{i}" for i in range(3)}
    scored = {f"toy_choice/{i}/{choice}" for i in range(3) for choice in range(2)} | {
        f"toy_text/{i}/0" for i in range(3)
    }
    assert traces.keys() == written | scored and len(folder.results()) == len(traces)
    lens = fl.load("tiny-mdm")
    for i, [[text]] in enumerate(plain["toy_write"]):
        assert traces[f"toy_write/{i}"].answer.startswith(text.strip())
    for i, question in enumerate(QUESTIONS):
        for choice, name in enumerate(question["choices"]):
            assert lens.decode(traces[f"toy_choice/{i}/{choice}"].written) == name
    assert fl.findings.absorption.measure(traces["toy_write/0"])["absorption"].notnull().all()
    with pytest.raises(fl.FloatLensError, match="is already a run; .*another"):
        FloatLensLM("tiny-mdm", trace_to=str(place))


def test_traces_of_the_samples_can_be_summaries(tasks: Path, tmp_path: Path) -> None:
    arguments = f"pretrained=tiny-mdm,mc_num=2,trace_to={tmp_path / 'run'},detail=summary"
    run("floatlens", tasks, "toy_write", model_args=arguments, batch_size=2)
    traces = list(RunTraces([RunFolder.open(tmp_path / "run")]))
    assert len(traces) == 3 and all(trace.is_summary for trace in traces)


def test_repetitions_of_a_sampled_answer_differ(tasks: Path) -> None:
    text = (tasks / "toy_write.yaml").read_text().replace("do_sample: false", "do_sample: true, temperature: 2.0")
    (tasks / "sampled").mkdir()
    text = text.replace("toy_write", "toy_sampled").replace('["\\n", "."]', "[]") + "repeats: 3\n"
    (tasks / "sampled" / "toy_sampled.yaml").write_text(text)
    found = run("floatlens", tasks / "sampled", "toy_sampled", model_args="pretrained=tiny-arm", batch_size=3)
    assert all(len(set(responses)) > 1 for [responses] in found["toy_sampled"])
    assert found == run("floatlens", tasks / "sampled", "toy_sampled", model_args="pretrained=tiny-arm", batch_size=2)


def test_special_tokens_stop_an_answer_and_settings_are_checked() -> None:
    model = FloatLensLM("tiny-arm")
    vocabulary = model.tokenizer.get_vocab()
    end = model.tokenizer.convert_ids_to_tokens(model.eot_token_id)
    ids = model.tok_encode("Rusk. Molen", add_special_tokens=False)
    assert model._cut([*ids, vocabulary[end], *ids], [end]).strip() == "Rusk. Molen"
    assert model._cut(ids, ["."]).strip() == "Rusk"
    with pytest.raises(fl.FloatLensError, match="has no setting 'stepz'"):
        FloatLensLM("tiny-mdm", stepz=3)
    with pytest.raises(fl.FloatLensError, match="batch_size 'auto' is not a number"):
        FloatLensLM("tiny-mdm", batch_size="auto")
    with pytest.raises(fl.FloatLensError, match="do not fit max_length 8"):
        FloatLensLM("tiny-arm", max_length=8)._fitted([1, 2], 8)
    assert FloatLensLM("tiny-arm", max_length=8)._fitted(list(range(9)), 5) == [6, 7, 8]


def test_the_entry_point_is_the_class() -> None:
    """What releases after 0.4.13 do: register installed entry points, and load the one that is asked for."""
    [(name, value)] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][
        "lm_eval.models"
    ].items()
    registry: Registry[Any] = Registry("model")
    registry.register(name, target=EntryPoint(name, value, "lm_eval.models"))
    assert registry.get("floatlens") is FloatLensLM


def test_the_program_runs_a_task_from_the_command_line(tasks: Path, tmp_path: Path) -> None:
    words = [
        *(sys.executable, "-m", "floatlens.lm_eval", "--model", "floatlens"),
        *("--model_args", "pretrained=tiny-mdm,mc_num=2", "--tasks", "toy_choice", "--batch_size", "4"),
        *("--include_path", str(tasks), "--limit", "2", "--output_path", str(tmp_path / "results")),
    ]
    clean = {**os.environ, "HF_DATASETS_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    [path] = (tmp_path / "results").rglob("results_*.json")
    found = json.loads(path.read_text())
    assert found["results"]["toy_choice"]["acc,none"] in (0.0, 0.5, 1.0)
    assert found["config"]["model_family"] == "llada"
    assert found["config"]["model_likelihood"] == "lower bound, 2 maskings"
    words[words.index("pretrained=tiny-mdm,mc_num=2")] = "pretrained=tiny-mdm,mc_num=0"
    refused = subprocess.run(words, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=500)
    assert refused.returncode == 2 and "error: samples should be an integer" in refused.stderr


def test_a_device_that_is_there_is_used() -> None:
    assert available("cpu") == "cpu" and available(None) is None
