"""The live panel in a real browser, with a socket that plays a recorded run: its requests and its drawing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import floatlens as fl
from floatlens.explorer.film import film, received_and_anchors
from floatlens.explorer.page import embed
from tests.browser import Visit
from tests.explorer.traces import tiny

LIVE = {
    "url": "ws://127.0.0.1:1/live",
    "token": "secret",
    "models": [
        {"name": "tiny-mdm", "diffusion": True, "block_length": True, "world": True},
        {"name": "tiny-arm", "diffusion": False, "block_length": False, "world": False},
    ],
    "interventions": [
        {"name": "mask-anchors", "about": "The anchors receive no attention.", "settings": []},
        {"name": "soft-cap", "about": "Scores are bent.", "settings": []},
    ],
    "limits": {"max_new_tokens": 64, "steps": 64},
}
SOCKET = """
window.sockets = []; window.sent = [];
window.WebSocket = class {
  constructor(url) { this.url = url; this.readyState = 0; sockets.push(this);
    setTimeout(() => { this.readyState = 1; this.onopen() }) }
  send(text) { sent.push(JSON.parse(text)) }
  close() { this.readyState = 3 }
};
window.hear = message => sockets.at(-1).onmessage({ data: JSON.stringify(message) });
"""


@pytest.fixture
def open_live(open_page: Callable[..., Visit], tmp_path: Path) -> Callable[..., Visit]:
    """Open the live panel in a window of some size."""
    text = f"<!doctype html><meta charset=utf-8><body>{embed([], 'explorer', live=LIVE)}</body>"
    (tmp_path / "live.html").write_text(text)

    def opened(width: int, height: int, fragment: str = "") -> Visit:
        return open_page((tmp_path / "live.html").as_uri() + fragment, width=width, height=height, before=SOCKET)

    return opened


@pytest.fixture
def live(open_live: Callable[..., Visit]) -> Visit:
    return open_live(1440, 900)


@pytest.fixture(scope="module")
def trace() -> fl.Trace:
    return tiny("tiny-mdm")


def messages(trace: fl.Trace, id: int, interventions: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """What the server sends of a run, made from its trace."""
    whole = film(trace) | {"interventions": list(interventions)}
    arrays = {name for name, value in whole.items() if isinstance(value, dict) and "dtype" in value}
    header = {name: value for name, value in whole.items() if name not in {*arrays, "anchors", "anchors_all"}}
    header |= {"length": trace.data.sizes["position"], "received_heads": None, "attention": None, "output": ""}
    rows = [*trace.data["tokens"].values.tolist(), trace.final_tokens.tolist()]
    profile_SLT = trace.head_mean("received").values
    steps = [
        {
            "type": "step",
            "id": id,
            "index": index,
            "tokens": rows[index],
            "after": rows[index + 1],
            "confidence": [None] * len(rows[0]),
            **received_and_anchors(profile_SLT[index], profile_SLT[index].mean(0), trace.attention_kind),
        }
        for index in range(trace.data.sizes["step"])
    ]
    return [
        {"type": "queued", "id": id},
        {"type": "start", "id": id, "film": header},
        *steps,
        {"type": "done", "id": id, "film": whole},
    ]


def asked(live: Visit, count: int) -> list[dict[str, Any]]:
    """What the page has sent, once it is so many messages."""
    live.page.wait_for_function("n => sent.length >= n", arg=count)
    return live.page.evaluate("sent")


def hear(live: Visit, messages: list[dict[str, Any]]) -> None:
    live.page.evaluate("messages => messages.forEach(hear)", messages)


def test_a_question_is_asked_and_its_answer_is_drawn_while_it_is_written(live: Visit, trace: fl.Trace) -> None:
    live.page.get_by_role("textbox", name="Question").fill("Who?")
    live.page.get_by_role("spinbutton", name="Steps").fill("7")
    live.page.get_by_role("button", name="Write").click()
    [run] = asked(live, 1)
    assert live.page.evaluate("sockets[0].url") == "ws://127.0.0.1:1/live?token=secret"
    assert (run["type"], run["model"], run["question"], run["steps"]) == ("run", "tiny-mdm", "Who?", 7)
    assert [passage["gold"] for passage in run["passages"]] == [False, True, False, False]
    assert (run["max_new_tokens"], run["block_length"], run["seed"], run["interventions"]) == (16, None, 0, [])
    said = messages(trace, run["id"])
    hear(live, said[:4])
    state = live.state()
    assert (state["step"], state["live"]["running"]) == (1, True), "it follows what is written"
    hear(live, said[4:])
    state = live.state()
    assert state["live"]["status"] == "Done."
    assert state["shown"][0]["written"] == trace.answer
    assert live.errors == []


def test_a_model_of_the_small_world_says_so_when_it_is_asked_about_another(live: Visit) -> None:
    note = live.page.get_by_role("note")
    question = live.page.get_by_role("textbox", name="Question")
    known = question.input_value()
    question.fill("What is the capital of France?")
    assert note.text_content() == "tiny-mdm knows only the small world of the examples, not the real one."
    assert note.is_visible()
    live.page.get_by_role("combobox", name="Model", exact=True).select_option("tiny-arm")
    assert not note.is_visible()
    live.page.get_by_role("combobox", name="Second model").select_option("tiny-mdm")
    assert note.is_visible()
    question.fill(known)
    assert not note.is_visible()


def test_an_intervention_is_shown_beside_the_original(live: Visit, trace: fl.Trace) -> None:
    live.page.get_by_label("mask-anchors", exact=True).check()
    live.page.get_by_role("button", name="Write").click()
    first, second = asked(live, 2)
    assert (first["interventions"], second["interventions"]) == ([], ["mask-anchors(rule=top(1))"])
    changed = messages(trace, second["id"], ("mask-anchors(rule=top(n=1))",))
    changed[-1]["film"] = changed[-1]["film"] | {"output": "something else"}
    hear(live, messages(trace, first["id"]))
    hear(live, changed)
    assert len(live.state()["shown"]) == 2
    shown = live.page.locator(".answer").all_inner_texts()
    assert trace.answer in shown[0] and "something else" in shown[1] and "mask-anchors" in shown[1]
    assert live.state()["live"]["history"] == [
        {
            "model": "tiny-mdm",
            "gold": "2",
            "original": trace.answer,
            "changed": "something else",
            "specs": ["mask-anchors(rule=top(1))"],
        }
    ]


def test_only_write_starts_a_run(live: Visit, trace: fl.Trace) -> None:
    write = live.page.get_by_role("button", name="Write")
    write.click()
    [run] = asked(live, 1)
    hear(live, messages(trace, run["id"]))
    live.page.get_by_label("mask-anchors", exact=True).check()
    live.page.get_by_label("Settings of mask-anchors").fill("mask-anchors(rule=top(2))")
    live.page.get_by_label("Settings of mask-anchors").press("Tab")
    hint = live.page.locator(".live").get_by_role("status")
    assert "Press Write" in hint.inner_text(), "what is shown is not what the form says"
    write.dblclick()
    original, changed = asked(live, 3)[1:]
    hear(live, messages(trace, original["id"]))
    hear(live, messages(trace, changed["id"], ("mask-anchors(rule=top(n=2))",)))
    live.page.get_by_label("mask-anchors", exact=True).uncheck()
    write.click()
    assert [(m["type"], m["interventions"]) for m in asked(live, 4)] == [
        ("run", []),
        ("run", []),
        ("run", ["mask-anchors(rule=top(2))"]),
        ("run", []),
    ]
    answers = [entry["original"] for entry in live.state()["live"]["history"]]
    assert answers == [trace.answer, trace.answer, "…"], "no run was stopped"


def test_the_gold_passage_can_be_dragged_and_moved_by_keys(live: Visit, trace: fl.Trace) -> None:
    texts = [passage["text"] for passage in live.state()["live"]["form"]["passages"]]
    live.page.locator(".grip").nth(1).drag_to(live.page.locator(".passages li").nth(3))
    live.page.get_by_role("button", name="Passage 4: move").focus()
    live.page.keyboard.press("Alt+ArrowUp")
    live.page.keyboard.press("Alt+ArrowUp")  # the focus went with it
    live.page.keyboard.press("Alt+ArrowDown")
    live.page.get_by_role("button", name="Write").click()
    [run] = asked(live, 1)
    assert [passage["gold"] for passage in run["passages"]] == [False, False, True, False]
    assert [passage["text"] for passage in run["passages"]] == [texts[0], texts[2], texts[1], texts[3]]


BLANK = """panel => Object.fromEntries(["text", "layers", "steps", "heads"].map(name => {
  const canvas = floatlens.panels[panel][name].base;
  const pixels = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  return [name, new Set(pixels).size < 3];
}))"""


@pytest.mark.parametrize("width", [390, 768])
def test_no_view_is_blank_when_a_second_film_comes(open_live: Any, trace: fl.Trace, width: int) -> None:
    live = open_live(width, 844)
    live.page.get_by_label("mask-anchors", exact=True).check()
    live.page.get_by_role("button", name="Write").click()
    first, second = asked(live, 2)
    hear(live, messages(trace, first["id"]))
    alone = live.state()
    hear(live, messages(trace, second["id"], ("mask-anchors(rule=top(n=1))",)))
    assert (len(alone["shown"]), len(live.state()["shown"])) == (1, 2)
    for panel in (0, 1):
        assert live.page.evaluate(BLANK, panel) == {"text": False, "layers": False, "steps": False, "heads": False}
        sizes = live.page.evaluate(
            "panel => [...floatlens.panels[panel].steps.element.children].map(c => [c.width, c.height])", panel
        )
        assert sizes[0] == sizes[1], "the cursor is drawn over all of the map"


TOP = "document.querySelector('#explorer').shadowRoot.querySelector('h2').getBoundingClientRect().top"


def test_on_a_phone_write_brings_the_film_into_view(open_live: Any, trace: fl.Trace) -> None:
    phone = open_live(390, 844)
    phone.page.get_by_role("button", name="Write").click()
    [run] = asked(phone, 1)
    said = messages(trace, run["id"])
    hear(phone, said[:3])
    phone.page.wait_for_function(f"() => {TOP} >= 0 && {TOP} < 100")
    progress = phone.page.locator(".notice")
    assert progress.inner_text().startswith("Writing: step 1 of")
    box = progress.bounding_box()
    assert 0 <= box["y"] < 844, "how far it is can be seen without scrolling back"
    progress.get_by_role("button", name="Stop").click()
    assert asked(phone, 2)[1] == {"type": "stop", "id": run["id"]}
    assert not phone.state()["live"]["running"]


def test_beside_the_form_nothing_is_scrolled(live: Visit, trace: fl.Trace) -> None:
    live.page.get_by_role("button", name="Write").click()
    [run] = asked(live, 1)
    hear(live, messages(trace, run["id"]))
    assert live.page.evaluate("scrollY") == 0 and not live.page.locator(".notice").is_visible()


def test_a_long_question_does_not_stretch_the_form(live: Visit) -> None:
    question = live.page.get_by_role("textbox", name="Question")
    form = live.page.locator(".live")
    before = form.bounding_box()
    question.fill("Why " + "x" * 2000 + " and why not? " * 200)
    after = form.bounding_box()
    assert after["width"] == before["width"]
    assert question.bounding_box()["height"] < 300 and after["height"] < before["height"] + 300
    assert question.evaluate("e => e.scrollHeight > e.clientHeight"), "the rest is there to scroll to"


def test_the_attention_of_a_token_is_asked_of_the_server(live: Visit, trace: fl.Trace) -> None:
    live.page.get_by_role("button", name="Write").click()
    [run] = asked(live, 1)
    hear(live, messages(trace, run["id"]))
    live.set(step=2, layer=1, pin={"panel": 0, "position": 9}, direction="from")
    question = asked(live, 2)[1]
    assert question == {"type": "attention", "id": run["id"], "step": 2, "layer": 1, "position": 9, "direction": "from"}
    values = [1 / 128] * trace.data.sizes["position"]
    hear(live, [question | {"values": values}])
    assert live.state()["shown"][0]["attention"] == values


def test_an_error_is_an_alert_and_a_lost_connection_is_made_anew(live: Visit) -> None:
    alert = live.page.get_by_role("alert")
    live.page.get_by_role("button", name="Write").click()
    [run] = asked(live, 1)
    assert not alert.is_visible()
    hear(live, [{"type": "error", "id": run["id"], "message": "the <b>prompt</b> is too long"}])
    assert alert.inner_text() == "the <b>prompt</b> is too long"
    assert live.page.locator(".live").get_by_role("status").inner_text() == ""
    live.page.get_by_role("button", name="Write").click()
    asked(live, 2)
    assert not alert.is_visible(), "a new run starts without the old error"
    live.page.evaluate("sockets[0].onclose()")
    assert "lost" in alert.inner_text()
    live.page.get_by_role("button", name="Write").click()
    asked(live, 3)
    assert live.page.evaluate("sockets.length") == 2


def test_an_error_of_one_run_is_still_seen_when_the_other_is_done(live: Visit, trace: fl.Trace) -> None:
    live.page.get_by_label("soft-cap", exact=True).check()
    live.page.get_by_role("button", name="Write").click()
    first, second = asked(live, 2)
    hear(live, [{"type": "error", "id": second["id"], "message": "cap is missing; write cap=5"}])
    hear(live, messages(trace, first["id"]))
    alert, status = live.page.get_by_role("alert"), live.page.locator(".live").get_by_role("status")
    assert (alert.inner_text(), status.inner_text()) == ("cap is missing; write cap=5", "Done.")
    colour = "e => getComputedStyle(e).color"
    assert alert.evaluate(colour) != status.evaluate(colour)
    [entry] = live.state()["live"]["history"]
    assert (entry["original"], entry["changed"]) == (trace.answer, "failed")


def test_what_was_typed_survives_a_reload(live: Visit) -> None:
    live.page.get_by_role("textbox", name="Question").fill("Where is the fox?")
    live.page.get_by_role("combobox", name="Model", exact=True).select_option("tiny-arm")
    live.page.reload()
    form = live.state()["live"]["form"]
    assert (form["question"], form["model"]) == ("Where is the fox?", "tiny-arm")
    assert not live.page.get_by_role("spinbutton", name="Steps").is_visible(), (
        "an autoregressive model has no such setting"
    )
    assert json.loads(live.page.evaluate("sessionStorage.getItem('floatlens-form')"))["model"] == "tiny-arm"
