"""The notebook that trains SmolLM2 for 20 minutes: its cells run on a tiny model for a few seconds."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from floatlens.studies.track import open_track
from tests.models import checkpoints

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "watch-the-sink.ipynb"
MODEL, MINUTES = 'MODEL, MINUTES, TEXT = "smollm2", 20, ', "MODEL, MINUTES, TEXT = {}, 0.02, "


def test_the_notebook_that_trains_a_model_runs(tmp_path: Path) -> None:
    model = checkpoints.readable(tmp_path / "tiny")
    (tmp_path / "train.txt").write_text("The boat was empty, and the tide came in. " * 200)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert sum(MODEL in cell.source for cell in notebook.cells) == 1
    for cell in notebook.cells:
        cell.source = cell.source.replace(MODEL, MINUTES.format(json.dumps(str(model))))
    NotebookClient(
        notebook, kernel_name="python3", timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    watched, tracked = open_track(tmp_path / "out"), open_track(tmp_path / "track")
    assert watched["step"].values[0] == 0 and watched["kind"].values[0] == "mdm"
    names = tracked["checkpoint"].values.tolist()
    assert names[:2] == ["tiny", "tiny:a2d-shifted"] and names[-1] == "checkpoint-last:a2d-shifted"
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)  # the figure
