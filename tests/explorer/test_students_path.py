"""A student's first minutes: `floatlens explore` in a real browser, from the first film to the attention of one token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import floatlens as fl
from floatlens.models.bundled import installed_smollm2
from tests.browser import Visit
from tests.explorer.test_browser import until
from tests.explorer.test_explore_command import exploring, fill_cache, first_film  # noqa: F401  (a fixture)

QUESTION = "On which day was the ship Golden Otter launched?"
PASSAGES = ("The Golden Otter was launched on 10 February 1847.", "The Calm Dolphin was launched on 6 March 1842.")
CENTRE = """t => { const v = floatlens.panels[0].text, b = v.base.getBoundingClientRect(), s = v.boxOf(t);
    return [b.left + s.x + s.w / 2, b.top + s.y + s.h / 2] }"""


@pytest.mark.usefixtures("first_film")
def test_from_the_command_to_the_attention_of_a_token(open_page: Callable[..., Visit], tmp_path: Path) -> None:
    fill_cache()
    with exploring(folder=tmp_path) as (_, address):
        visit = open_page(address)
        page = visit.page
        if installed_smollm2():  # the first film, of the same text twice
            assert [shown["model"] for shown in visit.state()["shown"]] == ["tiny-mdm", "tiny-mdm"]
        page.get_by_label("Question", exact=True).fill(QUESTION)
        while page.get_by_label("Remove passage 1").count():
            page.get_by_label("Remove passage 1").click()
        for number, text in enumerate(PASSAGES, start=1):
            page.get_by_role("button", name="Add passage").click()
            page.get_by_label(f"Passage {number}", exact=True).fill(text)
        page.get_by_label("Model", exact=True).select_option("tiny-mdm")
        page.get_by_label("New tokens").fill("8")
        page.get_by_role("button", name="Write").click()
        state = until(visit, lambda state: state["live"]["status"] == "Done.")
        lens = fl.load("tiny-mdm")
        trace = lens.trace(QUESTION, PASSAGES, max_new_tokens=8, matrices=["attention_mean"], record=["received"])
        assert [shown["written"] for shown in state["shown"]] == [trace.answer]

        page.get_by_label("Step", exact=True).focus()
        page.keyboard.press("Home")
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        assert visit.state()["step"] == 3
        page.mouse.click(*page.evaluate(CENTRE, 20))
        page.get_by_role("button", name="attends to").click()
        state = until(visit, lambda state: state["shown"][0]["attention"] is not None)
        assert state["layer"] is None, "all layers"
        wanted = trace.data["attention_mean"].values[3, :, 20].mean(0)
        np.testing.assert_allclose(state["shown"][0]["attention"], wanted, atol=2e-3)
        assert "position 20" in page.locator(".inspect").inner_text()
        assert visit.errors == []
