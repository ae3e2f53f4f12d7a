"""The notebook for a hosted GPU: its cells run on a tiny checkpoint of LLaDA's layout, without a GPU."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from floatlens.store.folder import RunFolder
from tests.models import checkpoints
from tests.small_tokenizers import byte_level

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "llada-on-a-hosted-gpu.ipynb"
LLADA = '"GSAI-ML/LLaDA-8B-Instruct"'
HOSTED = "hosted"  # the tag of cells that install packages or need a GPU


def test_the_notebook_for_a_hosted_gpu_runs(tmp_path: Path, monkeypatch: Any) -> None:
    tokenizer = byte_level()
    model = checkpoints.llada(tmp_path / "model", vocab=len(tokenizer) + 1, context=512)
    tokenizer.save_pretrained(model)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = [cell for cell in notebook.cells if HOSTED not in cell.metadata.get("tags", [])]
    assert len(notebook.cells) - len(cells) == 2 and sum(LLADA in cell.source for cell in cells) == 1
    for cell in cells:
        cell.source = cell.source.replace(LLADA, json.dumps(str(model)))
    notebook.cells = cells
    # `!floatlens` runs the program of this environment.
    monkeypatch.setenv("PATH", os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    NotebookClient(
        notebook, kernel_name="python3", timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    printed = "".join(output.get("text", "") for cell in cells for output in cell.get("outputs", []))
    assert "fused" in printed  # the way in which attention was observed
    last = "".join(output.get("text", "") for output in cells[-1].outputs)
    assert "figures/absorption" in last and "rror" not in last
    with RunFolder.open(tmp_path / "llada") as run:
        assert [name for name, _ in run.samples()] == ["ada"]
