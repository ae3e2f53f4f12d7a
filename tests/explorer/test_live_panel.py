"""The live panel in a real browser, with a socket that plays a recorded run: what it asks, and what it draws."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import floatlens as fl
from floatlens.explorer import embed
from floatlens.explorer.film import film, frame
from tests.browser import Visit
from tests.explorer.traces import tiny

LIVE = {
    "url": "ws://127.0.0.1:1/live",
    "token": "secret",
    "models": [
        {"name": "tiny-mdm", "diffusion": True, "block_length": True},
        {"name": "tiny-arm", "diffusion": False, "block_length": False},
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
def live(open_page: Callable[..., Visit], tmp_path: Path) -> Visit:
    text = f"<!doctype html><meta charset=utf-8><body>{embed([], 'explorer', live=LIVE)}</body>"
    (tmp_path / "live.html").write_text(text)
    return open_page((tmp_path / "live.html").as_uri(), width=1440, height=900, before=SOCKET)


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
    steps = [
        {
            "type": "step",
            "id": id,
            "index": index,
            "tokens": rows[index],
            "after": rows[index + 1],
            "confidence": [None] * len(rows[0]),
            **frame(trace.data["received"].values[index], trace.attention),
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
    # switched off again, the question is asked once more, alone
    live.page.get_by_label("mask-anchors", exact=True).uncheck()
    assert [m["type"] for m in asked(live, 3)][2:] == ["run"]


def test_the_gold_passage_can_be_dragged_and_moved_by_keys(live: Visit, trace: fl.Trace) -> None:
    live.page.get_by_role("button", name="Write").click()
    [run] = asked(live, 1)
    hear(live, messages(trace, run["id"]))
    grips = live.page.locator(".grip")
    grips.nth(1).drag_to(live.page.locator(".passages li").nth(3))
    moved = asked(live, 2)[1]
    assert [passage["gold"] for passage in moved["passages"]] == [False, False, False, True]
    assert moved["passages"][3]["text"] == run["passages"][1]["text"]
    hear(live, messages(trace, moved["id"]))
    live.page.get_by_role("button", name="Passage 4: move").focus()
    live.page.keyboard.press("Alt+ArrowUp")
    assert [passage["gold"] for passage in asked(live, 3)[2]["passages"]] == [False, False, True, False]
    live.page.keyboard.press("Alt+ArrowUp")  # the focus went with it; the run that was going on is stopped
    assert [m["type"] for m in asked(live, 5)[3:]] == ["stop", "run"]
    assert [passage["gold"] for passage in asked(live, 5)[4]["passages"]] == [False, True, False, False]


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


def test_an_error_is_said_and_a_lost_connection_is_made_anew(live: Visit) -> None:
    live.page.get_by_role("button", name="Write").click()
    [run] = asked(live, 1)
    hear(live, [{"type": "error", "id": run["id"], "message": "the <b>prompt</b> is too long"}])
    assert live.page.get_by_role("status").inner_text() == "the <b>prompt</b> is too long"
    live.page.get_by_role("button", name="Write").click()
    asked(live, 2)
    live.page.evaluate("sockets[0].onclose()")
    assert "lost" in live.page.get_by_role("status").inner_text()
    live.page.get_by_role("button", name="Write").click()
    asked(live, 3)
    assert live.page.evaluate("sockets.length") == 2


def test_what_was_typed_survives_a_reload(live: Visit) -> None:
    live.page.get_by_role("textbox", name="Question").fill("Where is the fox?")
    live.page.get_by_role("combobox", name="Model").select_option("tiny-arm")
    live.page.reload()
    form = live.state()["live"]["form"]
    assert (form["question"], form["model"]) == ("Where is the fox?", "tiny-arm")
    assert not live.page.get_by_role("spinbutton", name="Steps").is_visible(), (
        "an autoregressive model has no such setting"
    )
    assert json.loads(live.page.evaluate("sessionStorage.getItem('floatlens-form')"))["model"] == "tiny-arm"
