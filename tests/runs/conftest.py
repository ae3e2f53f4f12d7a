"""A small random model, questions for it, and runs of them that nothing disturbed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.runs.nursery import Nursery
from tests.tasks.conftest import byte_level

QUESTIONS, TRACED = 14, 8


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random autoregressive checkpoint with a byte-level tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("model")
    tokenizer = byte_level()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id, pad_token_id=tokenizer.pad_token_id, initializer_range=0.5,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "towns.jsonl"
    rows = [
        {
            "id": f"../q{i}",
            "question": f"Where does {'Ada ' * (i % 5)}Tarn live?",
            "answers": [f"Molen {i}"],
            "passages": [f"Tarn lives in Rusk {i}.", f"Tarn lives in Molen {i}."],
            "gold": 1,
        }
        for i in range(QUESTIONS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.fixture(scope="session")
def words(model: Path, data: Path) -> dict[str, tuple[object, ...]]:
    """The command lines of the runs, without --out."""
    common = (model, "--data", data, "--max-new-tokens", 4, "--batch-size", 2)
    return {"eval": ("eval", *common, "--both"), "trace": ("trace", *common, "--limit", TRACED)}


@pytest.fixture(scope="session")
def undisturbed(
    nursery: Nursery, words: dict[str, tuple[object, ...]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Run folders of commands that nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    for name, line in words.items():
        code = nursery.run(*line, "--out", folder / name, errors=folder / f"{name}.err")
        assert code == 0, (folder / f"{name}.err").read_text()
    return {name: folder / name for name in words}
