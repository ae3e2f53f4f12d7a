"""Messages of a page: an invalid one gives an error in one sentence, and the connection stays open."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatlens.errors import FloatLensError
from floatlens.explorer import messages as limits
from floatlens.explorer.messages import Limits, check, read
from floatlens.explorer.server import bind, names, server
from tests.explorer.app_client import QUESTION, TOKEN, app_of, client, connected

GOOD = {"type": "run", "id": 1, "model": "tiny-mdm", "question": QUESTION}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"question": "  "}, "the question is empty"),
        ({"question": "x" * (limits.QUESTION + 1)}, "question has 4,001 characters; expected 0 to 4,000"),
        ({"question": 3}, "question"),
        ({"passages": [{"text": "x"}] * (limits.PASSAGES + 1)}, "passages has 65 items; expected 0 to 64"),
        ({"passages": [{"text": "x" * (limits.PASSAGE + 1)}]}, "passages.0.text has 8,001 characters"),
        ({"passages": [{"text": "x" * limits.PASSAGE}] * 9}, "72,026 characters together"),
        ({"passages": [{"text": "x", "path": "/etc/passwd"}]}, "passages.0.path is unknown"),
        ({"max_new_tokens": limits.NEW_TOKENS + 1}, "max_new_tokens is 513; expected 1 to 512"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": "6"}, "max_new_tokens"),
        ({"max_new_tokens": 1e9}, "max_new_tokens"),
        ({"steps": -1}, "steps"),
        ({"seed": -1}, "seed"),
        ({"id": -1}, "id"),
        ({"id": 2**60}, "id"),
        ({"id": 10**1000}, "id is 10000000000000000000; expected"),
        ({"x" * 999: 1}, "is unknown"),
        ({"id": "1"}, "id"),
        ({"id": True}, "id is not a whole number"),
        ({"question": "\ud800"}, "question is not text"),
        ({"passages": ["x"]}, "passages.0 is not an object"),
        ({"interventions": "x"}, "interventions is not a list"),
        ({"interventions": ["x" * 301]}, "interventions.0 has 301 characters; expected 1 to 300"),
        ({"interventions": ["mask-anchors"] * 9}, "interventions has 9 items"),
        ({"type": "dance"}, "its type is not one of run, stop, attention"),
        ({"type": None}, "type"),
        ({"device": "cuda"}, "device"),
    ],
)
def test_what_is_out_of_bounds_is_one_sentence(change: dict[str, Any], said: str) -> None:
    with pytest.raises(FloatLensError) as refused:
        check(read(json.dumps(GOOD | change), 10**6))
    assert said in str(refused.value) and "\n" not in str(refused.value) and len(str(refused.value)) < 200


def test_what_is_left_out_has_the_usual_value() -> None:
    message = check(read(json.dumps(GOOD), 1000))
    assert message == GOOD | {
        "passages": (), "interventions": (), "max_new_tokens": 32, "steps": None, "block_length": None, "seed": 0,
    }  # fmt: skip


@given(st.text() | st.recursive(st.none() | st.integers() | st.text() | st.floats(), st.lists).map(json.dumps))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    with pytest.raises(FloatLensError):
        check(read(text, 10**6))


BAD = [
    "",
    "not json",
    "[]",
    "null",
    "{}",
    '{"type": "run"}',
    '{"type": "run", "id": 7, "model": "tiny-mdm", "question": ""}',
    '{"type": "run", "id": 7, "model": "../../etc", "question": "Who?"}',
    '{"type": "attention", "id": 7, "step": 0, "layer": 0, "position": 0, "direction": "up"}',
    '{"type": "attention", "id": 99, "step": 0, "layer": 0, "position": 0, "direction": "to"}',
    '{"type": "run", "id": 7, "model": "tiny-mdm", "question": "\\ud800"}' + " " * 3000,
    "[" * 1500 + "]" * 1500,
]


def test_bad_messages_do_not_end_the_conversation() -> None:
    app = app_of("tiny-mdm", limits=Limits(message_bytes=4096))
    with client(app) as to, connected(to) as page:
        for text in BAD[:-2]:
            page.socket.send_text(text)
            heard = page.hear()
            assert heard["type"] == "error" and "\n" not in heard["message"], text
            assert heard["id"] == (json.loads(text)["id"] if '"id"' in text else None)
        page.socket.send_text(BAD[-1])
        assert page.hear()["type"] == "error"
        page.socket.send_text("x" * 5000)
        assert "too long" in page.hear()["message"]
        page.socket.send_bytes(b"\x00\xff")
        assert "must be text" in page.hear()["message"]
        page.say(type="stop", id=12)  # nothing to stop: nothing to say
        page.ask()
        assert page.until("done")[-1]["film"]["question"] == QUESTION


def test_frames_that_are_too_large_or_malformed_end_their_connection_and_no_other() -> None:
    sync = pytest.importorskip("websockets.sync.client")
    from websockets.exceptions import ConnectionClosed

    few, bound = Limits(message_bytes=4096), bind("127.0.0.1", 0)
    made = server(app_of("tiny-mdm", limits=few, **names("127.0.0.1", bound)), few)
    thread = threading.Thread(target=made.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    place = f"127.0.0.1:{bound.getsockname()[1]}"

    def connect() -> Any:
        return sync.connect(
            f"ws://{place}/live?token={TOKEN}", origin=f"http://{place}", open_timeout=60, compression=None
        )

    try:
        with connect() as other:
            for code, send in (
                (1009, lambda socket: socket.send("x" * (4 * 4096 + 1))),
                (1002, lambda socket: socket.socket.sendall(b"\xff" * 64)),  # reserved bits, and no mask
                (1007, lambda socket: socket.send(b"\xff\xfe", text=True)),  # text that is not UTF-8
            ):
                with connect() as hostile:
                    send(hostile)
                    with pytest.raises(ConnectionClosed) as closed:
                        hostile.recv(timeout=60)
                    assert closed.value.rcvd is not None and closed.value.rcvd.code == code
            other.send("nonsense")
            assert json.loads(other.recv(timeout=60))["type"] == "error"
    finally:
        made.should_exit = True
        thread.join(60)
