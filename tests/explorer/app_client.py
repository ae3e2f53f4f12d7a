"""Shared by the tests of the server: an application with the bundled models, and a client for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from starlette.testclient import TestClient

from floatlens.explorer.server import application
from floatlens.lens import Lens
from floatlens.models.checkpoint import find

TOKEN = "a-token-of-the-tests"
HOST = "127.0.0.1:8123"
QUESTION = "Where was Tomas Vell born?"
PASSAGES = [
    {"title": "", "text": "The mill of Arden was built in 1807 by Tomas Vell.", "gold": False},
    {"title": "", "text": "Tomas Vell was born in Karsk.", "gold": True},
]


@cache
def lens(name: str) -> Lens:
    return Lens(find(name))


def client(app: Any, host: str = HOST) -> TestClient:
    return TestClient(app, base_url=f"http://{host}")


def app_of(*models: str, **options: Any) -> Any:
    return application([lens(name) for name in models], token=TOKEN, **options)


class Page:
    """The page's side of a socket."""

    def __init__(self, socket: Any) -> None:
        self.socket = socket

    def say(self, **message: Any) -> None:
        self.socket.send_text(json.dumps(message))

    def ask(self, id: int = 1, model: str = "tiny-mdm", **more: Any) -> None:
        asked = {"question": QUESTION, "passages": PASSAGES, "max_new_tokens": 6} | more
        self.say(type="run", id=id, model=model, **asked)

    def hear(self) -> dict[str, Any]:
        return json.loads(self.socket.receive_text())

    def until(self, kind: str, id: int = 1) -> list[dict[str, Any]]:
        """All messages up to the first of a kind about a run."""
        heard = [self.hear()]
        while (heard[-1]["type"], heard[-1]["id"]) != (kind, id):
            assert heard[-1]["type"] != "error", heard[-1]
            heard.append(self.hear())
        return heard


@contextmanager
def connected(to: TestClient, token: str = TOKEN, **headers: str) -> Iterator[Page]:
    asked = {"host": HOST, "origin": f"http://{HOST}"} | headers
    with to.websocket_connect(f"/live?token={token}", headers=asked) as socket:
        yield Page(socket)


class Gate:
    """Lets a model's forward passes through one by one, and counts them."""

    def __init__(self, model: Any) -> None:
        self.permits, self.count = threading.Semaphore(0), 0
        self.handle = model.register_forward_pre_hook(self._wait)

    def _wait(self, *_: Any) -> None:
        assert self.permits.acquire(timeout=60)
        self.count += 1

    def let(self, passes: int) -> None:
        self.permits.release(passes)


@contextmanager
def gated(model: Any) -> Iterator[Gate]:
    gate = Gate(model)
    try:
        yield gate
    finally:
        gate.handle.remove()
        gate.let(10_000)  # whatever still waits may go
