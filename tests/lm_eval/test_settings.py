"""The published settings for lm-evaluation-harness are read by it, and run on tiny checkpoints of the same families."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("lm_eval")

from lm_eval.tasks import TaskManager

import lm_eval
from tests.lm_eval.test_harness import ROOT, caches_of_the_library_stay_here, tasks  # noqa: F401  (fixtures)

FILES = {path.stem: path for path in sorted((ROOT / "recipes" / "lm_eval").glob("*.yaml"))}
TINY = {"llada": "tiny-mdm", "dream": "tiny-dream"}
SHORT = {"max_gen_toks": 8, "steps": 8, "block_length": 4}  # the same settings at a length that a test can wait for


def settings_on_a_tiny_checkpoint(name: str) -> dict[str, Any]:
    given = yaml.safe_load(FILES[name].read_text(encoding="utf-8"))
    given["model_args"] |= {"pretrained": TINY[name.partition("-")[0]], "dtype": "float32"}
    if "mc_num" in given["model_args"]:
        given["model_args"]["mc_num"] = 2
    else:
        given["gen_kwargs"] |= {key: value for key, value in SHORT.items() if key in given["gen_kwargs"]}
    given["tasks"] = ["toy_choice" if "mc_num" in given["model_args"] else "toy_write"]
    return given


def test_every_file_says_all_that_changes_a_score() -> None:
    assert set(FILES) == {"llada-base-gsm8k", "llada-base-arc", "llada-instruct-gsm8k", "dream-instruct-gsm8k"}
    for name, path in FILES.items():
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert {"model", "model_args", "tasks", "num_fewshot", "apply_chat_template", "seed"} <= given.keys(), name
        if "mc_num" not in given["model_args"]:
            assert {"max_gen_toks", "steps", "temperature"} <= given["gen_kwargs"].keys(), name
        if name.startswith("llada") and "gen_kwargs" in given:
            assert "block_length" in given["gen_kwargs"]
            assert {"logits_eos_inf", "confidence_eos_eot_inf"} <= given["model_args"].keys()


@pytest.mark.parametrize("name", FILES)
def test_the_settings_run_on_a_tiny_checkpoint(name: str, tasks: Path) -> None:  # noqa: F811
    given = settings_on_a_tiny_checkpoint(name)
    del given["seed"]
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    found = lm_eval.simple_evaluate(**given | {"num_fewshot": 0}, task_manager=manager, bootstrap_iters=0)
    assert found is not None
    [task] = given["tasks"]
    assert len(found["samples"][task]) == 3
    used = found["config"]
    for key, value in given["model_args"].items():
        assert used["model_args"][key] == value
    if "gen_kwargs" in given:
        assert found["configs"][task]["generation_kwargs"].items() >= given["gen_kwargs"].items()


def test_the_harness_reads_a_file_itself(tasks: Path, tmp_path: Path) -> None:  # noqa: F811
    given = settings_on_a_tiny_checkpoint("llada-instruct-gsm8k") | {"num_fewshot": 0, "fewshot_as_multiturn": False}
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump({**given, "include_path": str(tasks), "limit": 2}))
    words = [sys.executable, "-m", "floatlens.lm_eval", "--config", str(file), "--output_path", str(tmp_path / "out")]
    clean = {**os.environ, "HF_DATASETS_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    [path] = (tmp_path / "out").rglob("results_*.json")
    config = json.loads(path.read_text())["config"]
    assert config["gen_kwargs"]["block_length"] == 4 and config["model_args"]["confidence_eos_eot_inf"] is False
