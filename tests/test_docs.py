"""Code in the documentation runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import floatlens
from floatlens.observe.registry import STATISTICS
from tests.models import checkpoints
from tests.small_tokenizers import byte_level

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("page", ["statistics.md"])
def test_the_code_of_a_page_runs(page: str, tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.save_pretrained(tmp_path)
    lens = floatlens.load(str(checkpoints.llada(tmp_path, vocab=len(tokenizer) + 8)))
    before = dict(STATISTICS)
    names: dict[str, object] = {"lens": lens}
    try:
        for block in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL):
            exec(compile(block, page, "exec"), names)
    finally:
        STATISTICS.clear()
        STATISTICS.update(before)
    assert names["trace"].data["peak"].dims == ("step", "layer", "head")  # type: ignore[attr-defined]
