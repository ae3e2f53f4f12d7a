"""One connected page: reads its requests, sends the steps of its runs, and stops them when it disconnects.

Observing and intervening change a model's config while a pass is computed, so two runs of one model must never overlap;
and two runs at once on one machine would both be slow. So one thread runs the models, for all pages in the order of arrival.
A run is stopped between two steps.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Hashable
from contextlib import closing
from threading import Event
from typing import TYPE_CHECKING, Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from floatlens.errors import FloatLensError
from floatlens.explorer.live_run import play
from floatlens.explorer.messages import check, read
from floatlens.lens import Lens

if TYPE_CHECKING:
    from floatlens.explorer.server import LiveExplorer

IDLE, TOO_SLOW = 4000, 4001  # close codes, in the range reserved for applications


class Connection:
    """A WebSocket connection. A message that cannot be parsed is answered with an error message."""

    def __init__(self, socket: WebSocket, explorer: LiveExplorer) -> None:
        self.socket, self.explorer, self.limits = socket, explorer, explorer.limits
        self.loop = asyncio.get_running_loop()
        self.unsent: asyncio.Queue[str] = asyncio.Queue()
        self.stops: dict[int, Event] = {}  # of queued or active runs; set to stop one before its next step
        self.lost = False  # the page does not read its messages
        self.gone = False  # the page has disconnected

    async def talk(self) -> None:
        """Serve until the page disconnects or has been idle for too long."""
        sending = asyncio.create_task(self._send_all())
        try:
            while not self.lost:
                try:
                    message = await asyncio.wait_for(self.socket.receive(), self.limits.idle_seconds)
                except TimeoutError:
                    if self.stops:
                        continue
                    return await self.socket.close(IDLE, "idle")
                if message["type"] == "websocket.disconnect":
                    return
                text = message.get("text")
                if text is None:
                    self._say({"type": "error", "id": None, "message": "a message must be text"})
                else:
                    self._hear(text)
            await self.socket.close(TOO_SLOW, "the page does not read its messages")
        except WebSocketDisconnect:
            return
        finally:
            sending.cancel()
            self.gone = True
            self._stop_all()
            self.explorer.kept.drop(id(self))

    def _hear(self, text: str) -> None:
        about: dict[str, Any] = {"id": None}
        try:
            given = read(text, self.limits.message_bytes)
            about["id"] = given["id"] if type(given.get("id")) is int else None  # so that the page can match an error
            message = check(given)
            about = message if message["type"] == "attention" else about
            match message["type"]:
                case "run":
                    self._queue(message)
                case "stop":
                    if message["id"] in self.stops:
                        self.stops[message["id"]].set()
                case "attention":
                    kept = self.explorer.kept.get((id(self), message["id"]))
                    asked = {name: message[name] for name in ("step", "layer", "position", "direction")}
                    self._say({**message, "values": kept.of(**asked)})
        except FloatLensError as error:
            self._say({**about, "type": "error", "message": " ".join(str(error).split())})

    def _queue(self, asked: dict[str, Any]) -> None:
        lenses, queue, number = self.explorer.lenses, self.explorer.queue, asked["id"]
        if asked["model"] not in lenses:
            served = ", ".join(lenses) or "none"
            raise FloatLensError(f"model {asked['model']!r} is not served here; available: {served}")
        if number in self.stops:
            raise FloatLensError(f"run {number} is already running; use another id for the new one")
        waiting = sum(not stop.is_set() for stop in queue[1:])  # the first is running
        for count, most, whose in (
            (len(self.stops), self.limits.waiting_each, "runs of this page"),
            (waiting, self.limits.waiting, "runs"),
        ):
            if count >= most:
                raise FloatLensError(f"{count} {whose} are already queued; try again when some have finished")
        lens, ahead = lenses[asked["model"]], waiting + bool(queue)
        stop = self.stops[number] = Event()
        queue.append(stop)
        self._say({"type": "queued", "id": number, "ahead": ahead, "loading": "model" not in lens.__dict__})
        self.explorer.models.submit(self._run, lens, asked, stop)

    def _run(self, lens: Lens, asked: dict[str, Any], stop: Event) -> None:
        """Run a request, on the thread of the models; an error becomes a message to the page, and the thread continues."""
        stopped, room = {"type": "stopped", "id": asked["id"]}, self.limits.kept_bytes // 4
        problem = ""
        try:
            with closing(play(lens, asked, self.explorer.template, self._keep, room)) as messages:  # type: ignore[type-var]
                for message in [stopped] if stop.is_set() else messages:
                    if stop.is_set():
                        self._say(stopped)
                        break
                    self._say(message)
        except FloatLensError as error:
            problem = " ".join(str(error).split())
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            name = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            problem = f"the run failed: {name} (a bug: see the terminal)"
        finally:
            if problem:
                self._say({"type": "error", "id": asked["id"], "message": problem})
            self.explorer.queue.remove(stop)
            self._soon(self.stops.pop, asked["id"], None)

    def _keep(self, key: Hashable, value: Any, size: int) -> bool:
        there = self.explorer.kept.add(id(self), (id(self), key) if isinstance(key, int) else key, value, size)
        if self.gone:  # the page disconnected during this step
            self.explorer.kept.drop(id(self))
        return there

    def _stop_all(self) -> None:
        for stop in list(self.stops.values()):
            stop.set()

    def _say(self, message: dict[str, Any]) -> None:
        """Queue a message, from any thread."""
        self._soon(self._put, json.dumps(message, ensure_ascii=False, allow_nan=False))

    def _soon(self, call: Any, *arguments: Any) -> None:
        try:
            self.loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the server has shut down
            self._stop_all()

    def _put(self, text: str) -> None:
        if self.unsent.qsize() < self.limits.unsent:
            return self.unsent.put_nowait(text)
        self.lost = True
        self._stop_all()

    async def _send_all(self) -> None:
        while True:
            try:
                await self.socket.send_text(await self.unsent.get())
            except (WebSocketDisconnect, RuntimeError):  # disconnected; `talk` notices as well
                return
