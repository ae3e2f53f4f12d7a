"""The live explorer as a web application: the page, the films of run folders, and a socket on which models run; and the
server: bind a socket, print an address, serve until stopped."""

from __future__ import annotations

import atexit
import ipaddress
import json
import os
import socket
import sys
import tempfile
import threading
import webbrowser
import zipfile
from collections.abc import AsyncIterator, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from html import escape
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from floatlens.data.template import DEFAULT as DEFAULT_TEMPLATE
from floatlens.data.template import Template
from floatlens.errors import FloatLensError
from floatlens.explorer.connection import Connection
from floatlens.explorer.guard import LOOPBACK, Guard
from floatlens.explorer.kept_runs import Kept
from floatlens.explorer.messages import Limits
from floatlens.explorer.page import asset, live_data, live_page, live_policy
from floatlens.explorer.run_folders import RunFolders
from floatlens.lens import Lens
from floatlens.trace.trace import Trace

FIRST = 3  # films of the first question that a page of run folders starts with, side by side


class LiveExplorer:
    """The models and run folders on show, and the handlers of requests, which Starlette calls on threads of its own."""

    def __init__(self, lenses: Sequence[Lens], folders: RunFolders, template: Template, limits: Limits) -> None:
        self.lenses = {lens.name: lens for lens in lenses}
        self.folders, self.template, self.limits = folders, template, limits
        self.models = ThreadPoolExecutor(1, "floatlens-models")  # the thread that runs them
        self.queue: list[Event] = []  # of the runs of all pages, the first of them running; set to stop one
        self.kept = Kept(limits.kept_bytes)
        self.connected = 0

    def page(self, request: Request) -> Response:
        host, secure, runs = request.headers["host"], request.url.scheme == "https", self.folders.contents()
        films = []
        for numbers in first(runs):
            with suppress(FloatLensError):  # it stays in the list; opening it shows the error
                films.append(self.folders.film(*numbers))
        text = live_page(films, live_data(host, secure, self.lenses.values(), runs))
        return HTMLResponse(text, headers={"content-security-policy": live_policy(host)})

    def script(self, request: Request) -> Response:
        return Response(asset(), media_type="text/javascript")

    def runs(self, request: Request) -> Response:
        return JSONResponse(self.folders.contents())

    def film(self, request: Request) -> Response:
        shown = self.folders.film(*sample_of(request))
        text = json.dumps(shown, allow_nan=False)  # in ASCII: a token may be half a letter
        return Response(text, media_type="application/json")

    def trace(self, request: Request) -> Response:
        """A trace in a ZIP archive: of a live run, by its key, or of a run folder, by its numbers."""
        if (key := request.query_params.get("key")) is not None:
            live = self.kept.get(key)
        else:
            saved, live = self.folders.path(*sample_of(request)), None
            Trace.open(saved)  # refuses one that is damaged or contains links
        folder = tempfile.TemporaryDirectory()
        if live is not None:
            saved = live.save(Path(folder.name, "trace"), dtype="float32")
        archived = Path(folder.name, "trace.zip")
        with zipfile.ZipFile(archived, "w") as made:  # Zarr has compressed its chunks
            for path in saved.rglob("*"):
                made.write(path, Path("trace", path.relative_to(saved)))
        return FileResponse(archived, media_type="application/zip", background=BackgroundTask(folder.cleanup))

    async def live(self, page: WebSocket) -> None:
        if self.connected >= self.limits.connections:
            return await page.close(1013, "too many pages are connected")
        self.connected += 1
        try:
            await page.accept()
            await Connection(page, self).talk()
        finally:
            self.connected -= 1

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        for stop in list(self.queue):
            stop.set()
        await run_in_threadpool(self.models.shutdown)  # after the current step: a program that exits in one may crash


def refuse(request: Request, error: Exception) -> Response:
    """Answer a request for something that does not exist or cannot be read."""
    return JSONResponse({"error": " ".join(str(error).split())}, 404)


def application(
    lenses: Sequence[Lens] = (),
    runs: Sequence[Path] = (),
    *,
    token: str,
    hosts: Collection[str] = LOOPBACK,
    any_address: bool = False,
    ticket: str | None = None,
    template: Template = DEFAULT_TEMPLATE,
    limits: Limits | None = None,
) -> Starlette:
    """Build the application. It answers to the names in `hosts`; every request needs the token; `ticket` opens one page.

    Questions are asked with `template`.
    """
    explorer = LiveExplorer(lenses, RunFolders(runs), template, limits or Limits())
    made = Starlette(
        routes=[
            Route("/", explorer.page),
            Route("/assets/explorer.js", explorer.script),
            Route("/api/store", explorer.runs),
            Route("/api/film", explorer.film),
            Route("/api/trace", explorer.trace),
            WebSocketRoute("/live", explorer.live),
        ],
        middleware=[Middleware(Guard, token=token, hosts=hosts, any_address=any_address, ticket=ticket)],
        exception_handlers={FloatLensError: refuse},
        lifespan=explorer.lifespan,
    )
    made.state.explorer = explorer
    return made


def first(runs: Sequence[dict[str, Any]]) -> list[tuple[int, int]]:
    """The (run, sample) to start with: a text without and with its sink, or the first sample in all runs, MDMs first.

    >>> arm, mdm = ({"sample": 0, "id": "b", "diffusion": diffusion} for diffusion in (False, True))
    >>> first([{"run": 0, "samples": [arm]}, {"run": 1, "samples": [mdm]}])
    [(1, 0), (0, 0)]
    """
    opening = {sample["id"]: (run["run"], sample["sample"]) for run in runs[:1] for sample in run["samples"]}
    if opening.keys() == {"without", "with"}:
        return [opening["without"], opening["with"]]
    wanted = next((sample["id"] for run in runs for sample in run["samples"]), None)
    found = [(not s["diffusion"], r["run"], s["sample"]) for r in runs for s in r["samples"] if s["id"] == wanted]
    return [(run, sample) for _, run, sample in sorted(found)[:FIRST]]


def sample_of(request: Request) -> list[int]:
    """The numbers of a run and a sample in a request; an error for anything but decimal digits."""
    given = [request.query_params.get(name, "") for name in ("run", "sample")]
    if not all(text.isascii() and text.isdecimal() and len(text) < 8 for text in given):
        raise FloatLensError("run and sample must be integers, counted from 0; /api/store lists them")
    return [int(text) for text in given]


def bind(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 takes a free one."""
    if not 0 <= port <= 65535:
        raise FloatLensError(f"--port {port} is not a port; use 0 for a free one, or a number up to 65535")
    try:
        family, _, _, _, socket_address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(socket_address[:2], family=family, backlog=128)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FloatLensError(f"cannot listen on {host} port {port}: {reason}; use --port 0 for a free one") from None


def is_loopback(bound: socket.socket) -> bool:
    return ipaddress.ip_address(bound.getsockname()[0]).is_loopback


def names(host: str, bound: socket.socket) -> dict[str, Any]:
    """Return the names that a Host header may have: those of loopback, and `host` where it is another address."""
    if is_loopback(bound):
        return {"hosts": {*LOOPBACK, host}, "any_address": False}
    everywhere = ipaddress.ip_address(bound.getsockname()[0]).is_unspecified
    return {"hosts": {*LOOPBACK, host, bound.getsockname()[0], socket.gethostname()}, "any_address": everywhere}


def address(host: str, bound: socket.socket, **fields: str) -> str:
    """Return the address to open in a browser."""
    name, port = bound.getsockname()[:2]
    shown = socket.gethostname() if ipaddress.ip_address(name).is_unspecified else host
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/?{urlencode(fields)}"


def server(app: Any, limits: Limits) -> uvicorn.Server:
    """Configure the server: no access log, and a limit to the size of messages."""
    config = uvicorn.Config(
        app,
        access_log=False,  # it would write the token
        log_level="error",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        ws="websockets-sansio",
        ws_max_size=4 * limits.message_bytes,
        ws_per_message_deflate=False,
    )
    return uvicorn.Server(config)


def run(app: Any, bound: socket.socket, limits: Limits) -> None:
    """Serve until Ctrl-C; open pages are disconnected, and running models stop after their step."""
    server(app, limits).run(sockets=[bound])


def open_browser(url: str) -> None:
    """Open an address in the browser if there is a screen; a text browser would take over the terminal."""
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    threading.Thread(target=webbrowser.open, args=(forwarding_file(url).as_uri(),), daemon=True).start()


def forwarding_file(url: str) -> Path:
    """Write an HTML file that forwards to an address, for this user only, and is removed when the program ends.

    Every user of a machine can read the arguments of its processes, so the browser is not given the address itself.
    """
    number, name = tempfile.mkstemp(prefix="floatlens-", suffix=".html")
    path = Path(name)
    atexit.register(path.unlink, missing_ok=True)
    with open(number, "w", encoding="utf-8") as file:
        file.write(f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={escape(url)}">\n')
    return path
