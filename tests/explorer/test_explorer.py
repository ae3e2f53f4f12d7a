"""The explorer in a real browser, from a file on disk."""

from __future__ import annotations

import json
import shlex
import struct
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import floatlens as fl
from floatlens.anchors import find_anchors
from floatlens.data.template import parse
from floatlens.explorer.film import film
from floatlens.explorer.page import asset, page, script_hashes
from floatlens.explorer.widget import FilmFrame
from floatlens.store.folder import RunFolder
from tests.browser import CLIPBOARD, Visit
from tests.commands import run
from tests.explorer.traces import planted, tiny

Open = Callable[..., Visit]

CENTRE = """([view, position, row]) => {
  const panel = window.floatlens.panels[0], map = panel[view], box = map.base.getBoundingClientRect();
  const { x, y } = map.centre(position, row);
  return [box.left + x, box.top + y];
}"""
PIXEL = """([view, position, row]) => {
  const map = window.floatlens.panels[0][view], { x, y } = map.centre(position, row), r = devicePixelRatio;
  return [...map.base.getContext("2d").getImageData(Math.floor(x * r), Math.floor(y * r), 1, 1).data];
}"""
PICTURE = "view => window.floatlens.panels[0][view].base.toDataURL()"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """The address of a page with the films of some traces."""
    folder = tmp_path_factory.mktemp("pages")

    def write(*traces: fl.Trace, **options: Any) -> str:
        path = folder / f"{len(list(folder.iterdir()))}.html"
        path.write_text(page([film(trace, **options) for trace in traces]))
        return path.as_uri()

    return write


@pytest.fixture(scope="module")
def mdm() -> fl.Trace:
    return tiny("tiny-mdm", matrices=("attention_mean",))


@pytest.fixture(scope="module")
def arm() -> fl.Trace:
    return tiny("tiny-arm", matrices=("attention_mean",))


def test_a_page_from_disk_complains_of_nothing_and_asks_nobody(open_page: Open, written: Any, mdm: fl.Trace) -> None:
    address = written(mdm)
    visit = open_page(address)
    visit.page.mouse.move(300, 400)
    for key in (" ", "ArrowDown", "h", "c", "r", "]", "f", "t", "d", "Escape", "End"):
        visit.page.keyboard.press("Tab") if key == " " else None
        visit.page.keyboard.press(key)
    visit.page.wait_for_timeout(100)
    assert visit.errors == []
    assert visit.requests == [address]


def test_the_film_ends_with_what_the_model_wrote(open_page: Open, written: Any, mdm: fl.Trace) -> None:
    visit = open_page(written(mdm))
    state = visit.set(step=10_000)
    assert state["step"] == mdm.data.sizes["step"] - 1
    assert state["shown"][0]["written"] == mdm.answer
    assert "▯" in visit.set(step=0)["shown"][0]["written"]


def test_scrubbing_changes_what_is_drawn(open_page: Open, written: Any, mdm: fl.Trace) -> None:
    visit = open_page(written(mdm))
    before = [visit.page.evaluate(PICTURE, view) for view in ("text", "layers", "steps")]
    visit.page.get_by_role("slider", name="Step").fill("5")
    assert visit.state()["step"] == 5
    after = [visit.page.evaluate(PICTURE, view) for view in ("text", "layers", "steps")]
    assert before[0] != after[0] and before[1] != after[1]
    assert before[2] == after[2], "the map of all steps stays; only its cursor moves"
    visit.set(layer=1)
    assert visit.page.evaluate(PICTURE, "steps") != after[2]
    visit.set(step=0, layer=None)
    assert [visit.page.evaluate(PICTURE, view) for view in ("text", "layers", "steps")] == before


def test_playing_moves_the_film_to_its_end(open_page: Open, written: Any) -> None:
    visit = open_page(written(planted(steps=6, layers=2, heads=2, positions=30)))
    visit.set(speed=16)
    visit.page.get_by_role("button", name="Play").click()
    visit.page.wait_for_function("() => { const s = window.floatlens.state(); return s.step === 5 && !s.playing }")


def test_numbers_and_anchors_are_those_of_the_trace(open_page: Open, written: Any, arm: fl.Trace) -> None:
    visit = open_page(written(arm))
    for step, layer, rule in ((0, 1, "sigma(k=3)"), (1, 3, "share(eps=0.3)"), (1, None, "top(n=1)")):
        shown = visit.set(step=step, layer=layer, rule=rule, pin={"panel": 0, "position": 4})["shown"][0]
        received = arm.data["received"].isel(step=step).mean("head")
        if layer is None:
            received = received.mean("layer")
            expected = np.flatnonzero(find_anchors(received.values, rule, arm.attention_kind)).tolist()
        else:
            expected = np.flatnonzero(arm.anchors(rule).isel(step=step, layer=layer)).tolist()
            received = received.isel(layer=layer)
        assert shown["anchors"] == expected
        assert shown["received"] == pytest.approx(float(received[4]), rel=2e-3)


def test_the_views_are_linked_and_agree(open_page: Open, written: Any, mdm: fl.Trace) -> None:
    visit = open_page(written(mdm))
    T = mdm.data.sizes["position"]
    top = int(mdm.data["received"].isel(step=3, layer=2).mean("head").values.argmax())
    # the same cell of both maps has the same colour, and another than an ordinary one
    visit.set(step=3, layer=2, rule="first")
    cells = [(position, visit.page.evaluate(PIXEL, ["layers", position, 2])) for position in (5, top, T - 3)]
    for position, colour in cells:
        assert visit.page.evaluate(PIXEL, ["steps", position, 3]) == colour
    assert cells[0][1] != cells[1][1]
    # a cell of the steps' map moves the film and keeps the token; a cell of the layers' map chooses the layer
    visit.page.mouse.click(*visit.page.evaluate(CENTRE, ["steps", top, 6]))
    state = visit.state()
    assert (state["step"], state["pin"]["position"]) == (6, top)
    visit.page.mouse.click(*visit.page.evaluate(CENTRE, ["layers", 9, 4]))
    state = visit.state()
    assert (state["step"], state["layer"], state["pin"]["position"]) == (6, 4, 9)
    # pointing at a word tells the maps and the line of words
    box = visit.page.evaluate(
        "t => { const v = floatlens.panels[0].text, b = v.base.getBoundingClientRect(), s = v.boxOf(t);"
        " return [b.left + s.x + s.w / 2, b.top + s.y + s.h / 2] }",
        20,
    )
    visit.page.mouse.move(*box)
    state = visit.state()
    assert state["hover"] == {"panel": 0, "position": 20}
    said = visit.page.locator(".inspect").inner_text()
    word = mdm.strings()[20].lstrip("Ġ")
    assert said.startswith(word) and "position 20" in said and "layer 4" in said


def test_no_anchor_falls_between_two_pixels(open_page: Open, written: Any) -> None:
    visit = open_page(written(planted(steps=12, layers=2, heads=1, positions=3000)))
    visit.set(layer=1, rule="share(eps=0.3)")  # no anchors by this rule, so nothing is drawn over the shades
    assert visit.state()["shown"][0]["anchors"] == []
    ordinary = visit.page.evaluate(PIXEL, ["steps", 1500, 4])
    for step in range(12):
        assert visit.page.evaluate(PIXEL, ["steps", step, step]) != ordinary, step
        assert visit.page.evaluate(PIXEL, ["steps", 1500 + step, step])[1] >= ordinary[1] - 40, "elsewhere it is pale"


def test_another_film_of_the_same_model_is_drawn_anew(open_page: Open, written: Any) -> None:
    first, second = (planted(steps=3, layers=2, heads=2, positions=30, seed=seed) for seed in (0, 1))
    second.data["received"][:] = second.data["received"].values[..., ::-1]
    visit = open_page(written(first, second))
    visit.set(films=[0])
    before = [visit.page.evaluate(PICTURE, view) for view in ("text", "layers", "steps", "heads")]
    visit.set(films=[1])
    after = [visit.page.evaluate(PICTURE, view) for view in ("text", "layers", "steps", "heads")]
    assert all(a != b for a, b in zip(before, after, strict=True))


def test_a_long_text_shows_what_is_written_and_then_what_is_chosen(open_page: Open, written: Any) -> None:
    visit = open_page(written(planted(steps=3, layers=2, heads=1, positions=900)))
    assert visit.page.evaluate(SEEN, 899) and not visit.page.evaluate(SEEN, 5)
    visit.set(pin={"panel": 0, "position": 5})
    assert visit.page.evaluate(SEEN, 5)


SEEN = """t => { const v = floatlens.panels[0].text, b = v.boxOf(t), e = v.element;
    return b.y >= e.scrollTop && b.y + b.h <= e.scrollTop + e.clientHeight }"""


def test_the_line_being_written_stays_in_sight(open_page: Open, written: Any) -> None:
    trace = planted(steps=8, layers=1, heads=1, positions=1200, new=800)
    trace.data["committed_at"].values[400:] = np.arange(800) // 100  # from left to right
    visit = open_page(written(trace))
    for step in (0, 3, 7, 1):
        visit.set(step=step)
        assert visit.page.evaluate(SEEN, 400 + 100 * step + 99), step
    # A notebook may draw the film before its frame has a size.
    visit.page.evaluate("floatlens.panels[0].text.element.style.display = 'none'")
    visit.set(step=6)
    visit.page.evaluate("floatlens.panels[0].text.element.style.display = ''")
    visit.set(layer=0)
    assert visit.page.evaluate(SEEN, 1099)


@pytest.mark.parametrize("width", [420, 760, 1200])
def test_selecting_a_token_does_not_move_the_text(open_page: Open, written: Any, mdm: fl.Trace, width: int) -> None:
    visit = open_page(written(mdm), width=width)
    place = "() => { const e = floatlens.panels[0].text.element; return [e.getBoundingClientRect().top, e.scrollTop] }"
    before = visit.page.evaluate(place)
    for position in (3, 30, 0):
        visit.page.evaluate("t => floatlens.panels[0].text.base.scrollIntoView(false)", position)
        start = visit.page.evaluate(place)
        box = visit.page.evaluate("t => floatlens.panels[0].text.boxOf(t)", position)
        canvas = visit.page.evaluate("() => floatlens.panels[0].text.base.getBoundingClientRect()")
        visit.page.mouse.click(canvas["x"] + box["x"] + box["w"] / 2, canvas["y"] + box["y"] + box["h"] / 2)
        assert visit.state()["pin"]["position"] == position
        assert visit.page.evaluate(place) == start
    assert before[1] == visit.page.evaluate(place)[1]


def test_own_regions_each_have_their_label(open_page: Open, written: Any) -> None:
    trace = planted(steps=2, layers=1, heads=1, positions=40)
    names = ["subject", "verb", "object", "place", "time"]
    regions = [{"name": name, "start": 2 + 2 * i, "end": 4 + 2 * i} for i, name in enumerate(names)]
    trace.data.attrs["regions"] = json.dumps(regions)
    visit = open_page(written(trace))
    labels = visit.page.evaluate("() => floatlens.panels[0].text.labels.map(label => [label.name, label.y])")
    assert [name for name, _ in labels] == names
    assert min(np.diff([y for _, y in labels])) >= 12
    height = visit.page.evaluate("() => floatlens.panels[0].text.base.getBoundingClientRect().height")
    assert labels[-1][1] + 12 <= height


def test_a_head_can_be_chosen(open_page: Open, written: Any, mdm: fl.Trace) -> None:
    visit = open_page(written(mdm))
    visit.set(step=2, layer=1, pin={"panel": 0, "position": 7})
    box = visit.page.locator('canvas[data-view="heads"]').bounding_box()
    visit.page.mouse.click(box["x"] + box["width"] * 0.97, box["y"] + box["height"] * 0.4)
    visit.page.mouse.move(5, 5)
    state = visit.state()
    assert state["head"] == 3
    expected = float(mdm.data["received"].isel(step=2, layer=1, head=3, position=7))
    assert state["shown"][0]["received"] == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("model", ["mdm", "arm"])
def test_the_attention_of_one_token(open_page: Open, written: Any, model: str, request: Any) -> None:
    trace = request.getfixturevalue(model)
    visit = open_page(written(trace))
    visit.set(step=1, layer=2, pin={"panel": 0, "position": 12})
    visit.page.get_by_role("button", name="attends to").click()
    matrix = trace.data["attention_mean"].isel(layer=2, step=1 if model == "mdm" else 0).values
    row = [np.nan if v is None else v for v in visit.state()["shown"][0]["attention"]]
    np.testing.assert_allclose(row[:30], matrix[12, :30], rtol=2e-3, atol=1e-6)
    visit.page.get_by_role("button", name="attended by").click()
    column = visit.state()["shown"][0]["attention"]
    np.testing.assert_allclose(column[:30], matrix[:30, 12], rtol=2e-3, atol=1e-6)


def test_without_matrices_it_is_said_how_to_get_them(open_page: Open, written: Any) -> None:
    visit = open_page(written(planted(steps=3, layers=2, heads=2, positions=30)))
    visit.set(pin={"panel": 0, "position": 3})
    assert visit.page.get_by_role("button", name="attends to").is_disabled()
    assert "attention_mean" in visit.page.locator(".inspect").inner_text()


def test_two_films_share_one_cursor(open_page: Open, written: Any, mdm: fl.Trace, arm: fl.Trace) -> None:
    visit = open_page(written(mdm, arm))
    last = mdm.data.sizes["step"] - 1
    left, right = visit.set(step=last, pin={"panel": 0, "position": 30})["shown"]
    assert (left["model"], right["model"]) == ("tiny-mdm", "tiny-arm")
    assert right["step"] == arm.data.sizes["step"] - 1, "both are at their end"
    assert (left["position"], right["position"]) == (30, 30), "the prompts are the same"
    assert left["peak"] == right["peak"], "shades of both mean the same"
    assert visit.set(step=0)["shown"][1]["step"] == 0
    visit.page.get_by_role("combobox", name="Second film").select_option(label="none")
    assert len(visit.state()["shown"]) == 1


HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "\"'`${window.hacked=1}",
    "\u202eright to left\u202c",
    "שלום",
    "a\u200bb\u2060",
    "\u0000\u0007",
    "e\u0301\u0301\u0301",
    "𝕏👩‍👩‍👧",
    "x" * 5000,
    "&lt;b&gt;",
    "\u2028\u2029",
]


def test_hostile_tokens_stay_text(open_page: Open, written: Any) -> None:
    trace = planted(steps=4, layers=2, heads=2, positions=80, words=HOSTILE)
    for name in ("question", "output", "model"):
        trace.data.attrs[name] = HOSTILE[0] + HOSTILE[1]
    trace.data.attrs["answers"] = json.dumps([HOSTILE[2]])
    trace.data.attrs["regions"] = json.dumps([{"name": HOSTILE[1], "start": 0, "end": 60}])
    visit = open_page(written(trace))
    for position in range(80):
        visit.page.evaluate("p => { floatlens.set({ pin: { panel: 0, position: p } }); floatlens.state() }", position)
    visit.set(step=3, colour="region")
    assert visit.page.evaluate("window.hacked") is None
    assert visit.errors == [] and len(visit.requests) == 1
    inside = "document.querySelector('#explorer').shadowRoot"
    assert visit.page.evaluate(f"{inside}.querySelectorAll('script, img, b b').length") == 0
    assert visit.page.evaluate(f"{inside}.querySelector('h2').textContent") == HOSTILE[0] + HOSTILE[1]
    assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "a long token widens nothing"


def test_dark_and_light(open_page: Open, written: Any) -> None:
    address = written(planted(steps=2, layers=2, heads=2, positions=30))
    paper = (
        "() => getComputedStyle(document.querySelector('#explorer').shadowRoot.querySelector('.root')).backgroundColor"
    )
    dark, light = open_page(address, dark=True), open_page(address, dark=False)
    assert (dark.state()["theme"], light.state()["theme"]) == ("dark", "light")
    assert dark.page.evaluate(paper) != light.page.evaluate(paper)
    assert dark.page.evaluate(PICTURE, "text") != light.page.evaluate(PICTURE, "text")
    light.page.get_by_role("button", name="Dark or light theme").click()
    assert light.state()["theme"] == "dark"
    assert dark.page.evaluate(PICTURE, "text") == light.page.evaluate(PICTURE, "text")
    assert dark.page.evaluate(paper) == light.page.evaluate(paper)


def test_a_page_may_set_the_theme_for_all_that_it_holds(open_page: Open, written: Any) -> None:
    visit = open_page(written(planted(steps=2, layers=2, heads=2, positions=30)))
    visit.page.evaluate("document.documentElement.dataset.theme = 'dark'")
    assert visit.state()["theme"] == "dark"


def test_a_phone_shows_all_of_it(open_page: Open, written: Any, mdm: fl.Trace, arm: fl.Trace) -> None:
    visit = open_page(written(mdm, arm), width=390, height=844)
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
    boxes = [box.bounding_box() for box in visit.page.locator("canvas[data-view]").all() if box.is_visible()]
    assert len(boxes) == 8
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= 390 for box in boxes)


def test_everything_has_a_name_and_the_keyboard_reaches_it(open_page: Open, written: Any, mdm: fl.Trace) -> None:
    visit = open_page(written(mdm))
    nameless = visit.page.evaluate(
        """() => [...document.querySelector('#explorer').shadowRoot.querySelectorAll('button, select, input, canvas')]
            .filter(e => !e.getAttribute('aria-label') && !e.textContent && e.getAttribute('aria-hidden') !== 'true')
            .map(e => e.outerHTML)"""
    )
    assert nameless == []
    visit.page.keyboard.press("Tab")
    for key, name, value in (
        ("ArrowRight", "step", 1),
        ("End", "step", mdm.data.sizes["step"] - 1),
        ("Home", "step", 0),
        ("ArrowDown", "layer", 0),
        ("a", "layer", None),
        ("h", "head", 0),
        ("r", "rule", "top(n=1)"),
        ("c", "colour", "region"),
        ("]", "pin", {"panel": 0, "position": 0}),
        ("t", "direction", "to"),
        ("Escape", "pin", None),
        (" ", "playing", True),
        (" ", "playing", False),
    ):
        visit.page.keyboard.press(key)
        assert visit.state()[name] == value, key
    spoken = "document.querySelector('#explorer').shadowRoot.querySelector('.spoken').textContent"
    visit.page.wait_for_function(f"() => /tiny-mdm, step \\d+: .* anchors/.test({spoken})")


def test_what_was_left_out_is_said_on_the_page(open_page: Open, written: Any) -> None:
    visit = open_page(written(planted(steps=40, layers=4, heads=2, positions=60), budget=50_000))
    assert "steps are kept, evenly spaced" in visit.page.locator(".thinned").inner_text()


def test_a_notebook_without_widgets_shows_the_page_in_a_frame(open_page: Open, tmp_path: Path, mdm: fl.Trace) -> None:
    still = FilmFrame([film(mdm, budget=300_000)])
    assert "tiny-mdm" in repr(still)
    (tmp_path / "cell.html").write_text(f"<!doctype html><body>{still._repr_html_()}</body>")
    visit = open_page((tmp_path / "cell.html").as_uri())
    frame = visit.page.frame_locator("iframe")
    assert frame.locator("h2").inner_text() == mdm.question
    assert visit.errors == []


MODEL = """async ([source, films]) => {
  const values = { films, state: { step: 2 }, _esm: source }, saved = [], heard = {};
  window.model = { get: n => values[n], set: (n, v) => { values[n] = v },
    save_changes: () => saved.push({ ...values.state }), on: (n, f) => { heard[n] = f },
    off: n => { delete heard[n] }, values, saved, heard };
  const { default: widget } = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  const el = document.body.appendChild(document.createElement("div"));
  window.cleanup = widget.render({ model, el });
  return [values.state.step, el.firstChild.shadowRoot.querySelector("h2").textContent];
}"""


def test_the_widget_shares_its_state_with_python(open_page: Open, mdm: fl.Trace, tmp_path: Path) -> None:
    pytest.importorskip("anywidget", reason="THE WIDGET WAS NOT TESTED: pip install 'floatlens[notebook]'")
    view = mdm.explore(budget=300_000)
    assert view.films[0]["model"] == "tiny-mdm"
    assert view._esm == asset() or asset() in str(view._esm)
    visit = open_page("about:blank")
    assert visit.page.evaluate(MODEL, [asset(), json.loads(json.dumps(view.films))]) == [2, mdm.question]
    # Python moves the film, then the reader does
    visit.page.evaluate("model.values.state = { step: 5, layer: 1 }; model.heard['change:state']()")
    visit.page.get_by_role("slider", name="Step").fill("3")
    kept = visit.page.evaluate("model.values.state")
    assert (kept["step"], kept["layer"]) == (3, 1)
    # the script is nowhere in the page, and a link to a cell leads nowhere
    page = saved(visit, "HTML", tmp_path)
    assert open_page(page.as_uri()).state()["step"] == 3
    assert visit.page.get_by_role("button", name="Copy link").count() == 0
    visit.page.evaluate("cleanup()")
    assert visit.page.evaluate("Object.keys(model.heard)") == []


def test_a_film_can_be_saved_from_a_notebook(tmp_path: Path, mdm: fl.Trace) -> None:
    path = mdm.explore(budget=300_000).save(tmp_path / "film.html")
    text = path.read_text()
    assert text.startswith("<!doctype html>") and '"model": "tiny-mdm"' in text


VIEW = ("films", "step", "layer", "head", "rule", "colour", "pin", "direction")
MOVED: dict[str, Any] = {
    "step": 3,
    "layer": 2,
    "head": 1,
    "rule": "top(n=1)",
    "colour": "kind",
    "pin": {"panel": 1, "position": 20},
    "direction": "to",
}


def saved(visit: Visit, kind: str, path: Path) -> Path:
    """Save the view, as a file that the browser downloads."""
    with visit.page.expect_download() as download:
        assert visit.export(f"Save as {kind}").startswith("Saved floatlens-")
    path = path / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_a_link_opens_the_same_view(open_page: Open, written: Any, mdm: fl.Trace, arm: fl.Trace) -> None:
    address = written(mdm, arm)
    visit = open_page(address, **CLIPBOARD)
    before = visit.set(**MOVED, films=[1, 0])
    link = visit.copied("Copy link")
    assert link.startswith(f"{address}#") and visit.page.url == address, "the address of the page stays"
    other = open_page(link)
    after = other.state()
    assert {name: after[name] for name in VIEW} == {name: before[name] for name in VIEW}
    assert after["shown"] == before["shown"]
    other.page.evaluate(
        "location.hash = 'explorer=explorer&model=tiny-mdm&question=Where+was+Tomas+Vell+born%3F&step=7'"
    )
    other.page.wait_for_function("() => { const s = floatlens.state(); return s.step === 7 && s.pin === null }")
    assert [shown["model"] for shown in other.state()["shown"]] == ["tiny-mdm"]
    assert visit.errors == other.errors == []


def test_a_link_to_a_film_that_is_not_there_says_so(open_page: Open, written: Any, mdm: fl.Trace) -> None:
    visit = open_page(written(mdm) + "#explorer=explorer&model=%3Cb%3Eother&question=Where%3F&step=4")
    assert (
        visit.page.get_by_role("alert").inner_text() == "The link is for a film of <b>other that is not on this page."
    )
    assert visit.state()["step"] == 0
    elsewhere = open_page(written(mdm) + "#explorer=films&model=other")
    assert not elsewhere.page.get_by_role("alert").is_visible(), "it is for another explorer of the page"


def test_a_film_saved_as_html_is_the_same_film(
    open_page: Open, written: Any, mdm: fl.Trace, arm: fl.Trace, tmp_path: Path
) -> None:
    visit = open_page(written(mdm, arm))
    before = visit.set(**MOVED, films=[1, 0])
    path = saved(visit, "HTML", tmp_path)
    other = open_page(path.as_uri())
    after = other.state()
    assert after["shown"] == before["shown"] and after["names"] == ["tiny-arm", "tiny-mdm"]
    assert (after["step"], after["pin"]) == (before["step"], before["pin"])
    assert other.requests == [path.as_uri()] and other.errors == visit.errors == []
    text = path.read_text()
    assert f"script-src {script_hashes()[0]};".replace("'", "&#x27;") in text, "the policy names the script"
    assert saved(other, "HTML", tmp_path / "again").read_text() == text, "a copy of a copy is the same"


@pytest.mark.parametrize("dark", [False, True])
def test_the_view_is_saved_as_a_picture(
    open_page: Open, written: Any, mdm: fl.Trace, arm: fl.Trace, tmp_path: Path, dark: bool
) -> None:
    visit = open_page(written(mdm, arm), dark=dark, width=390, height=844)  # the picture is as wide as ever
    visit.set(step=4)
    png = saved(visit, "PNG", tmp_path).read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">I", png[16:20]) == (2560,)
    root = ET.parse(saved(visit, "SVG", tmp_path)).getroot()
    svg = "{http://www.w3.org/2000/svg}"
    words = [element.text for element in root.iter(f"{svg}text")]
    assert {mdm.question, "tiny-mdm", "tiny-arm", "Karsk"} <= {word.strip("“” ") for word in words}
    assert any("step 4 of" in word for word in words)
    assert len(list(root.iter(f"{svg}image"))) == 6, "two maps and the heads of each film"
    assert root.find(f"{svg}rect").get("fill") == ("#15161a" if dark else "#fdfcfa")
    assert visit.errors == []


def test_hostile_tokens_stay_text_in_files(open_page: Open, written: Any, tmp_path: Path) -> None:
    trace = planted(steps=4, layers=2, heads=2, positions=80, words=HOSTILE)
    for name in ("question", "output", "model"):
        trace.data.attrs[name] = HOSTILE[0] + HOSTILE[1]
    visit = open_page(written(trace))
    root = ET.parse(saved(visit, "SVG", tmp_path)).getroot()
    assert {element.tag.partition("}")[2] for element in root.iter()} <= {
        "svg", "title", "g", "rect", "path", "text", "image",
    }  # fmt: skip
    other = open_page(saved(visit, "HTML", tmp_path).as_uri())
    assert other.page.evaluate("window.hacked") is None
    assert other.page.title() == HOSTILE[0] + HOSTILE[1]
    assert visit.errors == other.errors == []


def test_the_python_that_is_copied_makes_the_same_film(open_page: Open, written: Any, mdm: fl.Trace) -> None:
    visit = open_page(written(mdm), **CLIPBOARD)
    visit.set(step=3, layer=2)
    *lines, last = visit.copied("Copy as Python").strip().splitlines()
    found: dict[str, Any] = {}
    exec("\n".join(lines), found)
    view = eval(last, found)
    assert dict(view.state) == {"step": 3, "layer": 2}
    trace = found["trace"]
    assert (trace.gold, trace.answers, trace.regions) == (mdm.gold, mdm.answers, mdm.regions)
    np.testing.assert_array_equal(trace.data["tokens"], mdm.data["tokens"])
    np.testing.assert_allclose(trace.data["attention_mean"], mdm.data["attention_mean"], atol=1e-6)


@pytest.mark.parametrize("kind", ["replay", "infill", "text", "template"])
def test_code_that_is_copied_repeats_replays_infilling_and_raw_texts(
    kind: str, open_page: Open, written: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lens = fl.load("tiny-mdm")
    passages, own = ["Tomas Vell was born in Karsk.", "It rains."], parse("{passages}\n\nQ: {question}")
    trace = {
        "replay": lambda: lens.replay(lens.prompt("Where was he born?", passages), "Karsk, in 1807", "random", seed=4),
        "infill": lambda: lens.infill("Tomas [MASK] was born [MASK] Karsk.", steps=1, seed=2, answers=["Vell in"]),
        "text": lambda: lens.trace(lens.text_prompt("It rains in"), max_new_tokens=4, sampler={"remasking": "random"}),
        "template": lambda: lens.trace(lens.prompt("Where?", passages, template=own), max_new_tokens=4),
    }[kind]()
    visit = open_page(written(trace), **CLIPBOARD)
    found: dict[str, Any] = {}
    exec("\n".join(visit.copied("Copy as Python").strip().splitlines()[:-1]), found)
    made = [found["trace"]]
    assert made[0].answers == trace.answers
    if kind == "template":
        assert "copy as Python instead" in visit.export("Copy as command")
    else:
        monkeypatch.chdir(tmp_path)
        run(*shlex.split(visit.copied("Copy as command").splitlines()[0])[1:])
        made.append(fl.Trace.open(RunFolder.open(tmp_path / "run").samples()[0][1]))
    for again in made:
        assert (again.regions, again.order) == (trace.regions, trace.order)
        np.testing.assert_array_equal(again.data["tokens"], trace.data["tokens"])
        np.testing.assert_allclose(again.data["received"], trace.data["received"], rtol=1e-3, atol=1e-6)  # float16


def test_a_film_of_unknown_origin_is_not_code(open_page: Open, written: Any) -> None:
    visit = open_page(written(planted(steps=2, layers=1, heads=1, positions=20)))
    assert "has no record of how it was made" in visit.export("Copy as command")
    assert visit.page.locator(".menu .error").is_visible()


def test_the_menu_closes_with_escape_and_with_a_click_elsewhere(open_page: Open, written: Any) -> None:
    visit = open_page(written(planted(steps=2, layers=1, heads=1, positions=20)))
    menu, button = visit.page.locator(".menu"), visit.page.get_by_role("button", name="Export")
    button.click()
    assert menu.is_visible() and button.get_attribute("aria-expanded") == "true"
    visit.page.keyboard.press("Tab")
    visit.page.keyboard.press("ArrowRight")
    assert visit.state()["step"] == 0, "arrows in the menu do not move the film"
    visit.page.keyboard.press("Escape")
    assert not menu.is_visible() and button.evaluate("e => e.getRootNode().activeElement === e")
    button.click()
    visit.page.mouse.click(20, 400)
    assert not menu.is_visible()


@pytest.mark.parametrize("width", [390, 768, 1280])
@pytest.mark.parametrize("films", [1, 2])
def test_the_menu_stays_on_the_page(open_page: Open, written: Any, width: int, films: int) -> None:
    visit = open_page(written(*[planted(steps=2, layers=1, heads=1, positions=20)] * films), width=width)
    visit.page.get_by_role("button", name="Export").click()
    box = visit.page.locator(".menu").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= width
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_frame_of_a_notebook_can_be_saved_too(open_page: Open, tmp_path: Path, mdm: fl.Trace) -> None:
    still = FilmFrame([film(mdm, budget=300_000)], {"step": 2})
    (tmp_path / "cell.html").write_text(f"<!doctype html><body>{still._repr_html_()}</body>")
    visit = open_page((tmp_path / "cell.html").as_uri(), **CLIPBOARD)
    frame = visit.page.frame_locator("iframe")
    frame.get_by_role("button", name="Export").click()
    assert frame.get_by_role("button", name="Copy link").count() == 0, "a frame has no address of its own"
    with visit.page.expect_download() as download:
        frame.get_by_role("button", name="Save as HTML").click()
    download.value.save_as(tmp_path / "film.html")
    assert open_page((tmp_path / "film.html").as_uri()).state()["step"] == 2
    frame.get_by_role("button", name="Copy as Python").click()
    frame.locator(".menu").get_by_text("Copied").wait_for()
    assert visit.page.evaluate("navigator.clipboard.readText()").startswith("import floatlens as fl")
    assert visit.errors == []
