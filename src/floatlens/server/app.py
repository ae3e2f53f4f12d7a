"""The live explorer as a web application: the page, the films of run folders, and a socket on which models run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

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
from floatlens.explorer.page import asset
from floatlens.lens import Lens
from floatlens.server.connection import Connection
from floatlens.server.guard import LOOPBACK, Guard
from floatlens.server.limits import Limits
from floatlens.server.matrix_cache import MatrixCache
from floatlens.server.model_thread import ModelThread
from floatlens.server.page import live_data, page, policy
from floatlens.server.run_folders import RunFolders
from floatlens.server.trace_cache import TraceCache, archive, archive_of

FIRST = 3  # films of the first question that a page of run folders starts with, side by side


class LiveExplorer:
    """The models and run folders on show, and the handlers of requests."""

    def __init__(self, lenses: Sequence[Lens], folders: RunFolders, template: Template, limits: Limits) -> None:
        self.lenses = {lens.name: lens for lens in lenses}
        self.folders, self.template, self.limits = folders, template, limits
        self.worker = ModelThread(limits.waiting)
        self.shelf = MatrixCache(limits.attention_bytes)
        self.traces = TraceCache(limits.trace_bytes)
        self.connected = 0

    @cached_property
    def reading(self) -> asyncio.Lock:
        """A lock, so that films are made one at a time: each needs memory."""
        return asyncio.Lock()

    async def page(self, request: Request) -> Response:
        host, secure = request.headers["host"], request.url.scheme == "https"
        runs = await run_in_threadpool(self.folders.contents)
        live = await run_in_threadpool(live_data, host, secure, self.lenses.values(), runs)
        films = []
        for numbers in first(runs):
            with suppress(FloatLensError):  # it stays in the list; opening it shows the error
                films.append(await self._film(*numbers))
        text = await run_in_threadpool(page, films, live)
        return HTMLResponse(text, headers={"content-security-policy": policy(host)})

    async def script(self, request: Request) -> Response:
        return Response(asset(), media_type="text/javascript")

    async def runs(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self.folders.contents))

    async def film(self, request: Request) -> Response:
        try:
            numbers = [whole(request.query_params.get(name), name) for name in ("run", "sample")]
            found = await self._film(*numbers)
        except FloatLensError as error:
            return JSONResponse({"error": " ".join(str(error).split())}, 404)
        return Response(await run_in_threadpool(json.dumps, found, allow_nan=False), media_type="application/json")

    async def trace(self, request: Request) -> Response:
        """A trace in a ZIP archive: of a live run, by its key, or of a run folder, by its numbers."""
        key = request.query_params.get("key")
        try:
            if key is not None:
                archived = await run_in_threadpool(archive_of, self.traces.get(key))
            else:
                numbers = [whole(request.query_params.get(name), name) for name in ("run", "sample")]
                archived = await run_in_threadpool(lambda: archive(self.folders.path(*numbers)))
        except FloatLensError as error:
            return JSONResponse({"error": " ".join(str(error).split())}, 404)
        return FileResponse(archived, media_type="application/zip", background=BackgroundTask(archived.unlink))

    async def _film(self, run: int, sample: int) -> dict[str, Any]:
        async with self.reading:
            return await run_in_threadpool(self.folders.film, run, sample)

    async def live(self, socket: WebSocket) -> None:
        if self.connected >= self.limits.connections:
            return await socket.close(1013, "too many pages are connected")
        self.connected += 1
        try:
            await socket.accept()
            await Connection(
                socket, self.lenses, self.worker, self.shelf, self.traces, self.limits, self.template
            ).talk()
        finally:
            self.connected -= 1

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(self.worker.close)


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
        lifespan=explorer.lifespan,
    )
    made.state.explorer = explorer
    return made


def first(runs: Sequence[dict[str, Any]]) -> list[tuple[int, int]]:
    """Return (run, sample) of the films to start with: the first sample in all runs that have it, MDMs first.

    The cursor of films side by side counts the steps of the first, and a diffusion model has more of them.

    >>> arm, mdm = ({"sample": 0, "id": "b", "diffusion": diffusion} for diffusion in (False, True))
    >>> first([{"run": 0, "samples": [arm]}, {"run": 1, "samples": [mdm]}])
    [(1, 0), (0, 0)]
    """
    wanted = next((sample["id"] for run in runs for sample in run["samples"]), None)
    found = [(not s["diffusion"], r["run"], s["sample"]) for r in runs for s in r["samples"] if s["id"] == wanted]
    return [(run, sample) for _, run, sample in sorted(found)[:FIRST]]


def whole(text: str | None, name: str) -> int:
    """Parse a number in a query field; raise an error for anything but decimal digits."""
    if text is None or not (text.isascii() and text.isdecimal() and len(text) < 8):
        raise FloatLensError(f"{name} must be an integer, counted from 0; /api/store lists them")
    return int(text)
