"""One page that is connected: reads what it asks, sends what its runs show, and stops them when it goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from floatlens.errors import FloatLensError
from floatlens.lens import Lens
from floatlens.report.server.limits import Limits
from floatlens.report.server.matrices import Matrices, Shelf
from floatlens.report.server.messages import Attention, Run, Stop, id_of, read
from floatlens.report.server.play import play
from floatlens.report.server.traces import Traces
from floatlens.report.server.worker import Job, Worker
from floatlens.trace import Trace

IDLE, TOO_SLOW = 4000, 4001  # why the server closed, in the range that is free for applications


class Connection:
    """A conversation over one WebSocket. A message that cannot be read is answered with one sentence."""

    def __init__(
        self,
        socket: WebSocket,
        lenses: Mapping[str, Lens],
        worker: Worker,
        shelf: Shelf,
        traces: Traces,
        limits: Limits,
    ) -> None:
        self.socket, self.lenses, self.worker, self.limits = socket, lenses, worker, limits
        self.shelf, self.traces = shelf, traces
        self.loop = asyncio.get_running_loop()
        self.unsent: asyncio.Queue[str] = asyncio.Queue()
        self.jobs: dict[int, Job] = {}
        self.shown: set[int] = set()
        self.lost = False  # it does not read
        self.gone = False  # it has closed

    async def talk(self) -> None:
        """Until the page goes, or has been silent for too long."""
        sending = asyncio.create_task(self._send_all())
        try:
            while True:
                try:
                    message = await asyncio.wait_for(self.socket.receive(), self.limits.idle_seconds)
                except TimeoutError:
                    if self.jobs:
                        continue
                    return await self.socket.close(IDLE, "idle")
                if message["type"] == "websocket.disconnect":
                    return
                text = message.get("text")
                if text is None:
                    self.say({"type": "error", "id": None, "message": "a message must be text"})
                else:
                    self._hear(text)
                if self.lost:
                    return await self.socket.close(TOO_SLOW, "the page does not read what it asked for")
        except WebSocketDisconnect:
            return
        finally:
            sending.cancel()
            self.gone = True
            for job in self.jobs.values():
                job.stop()
            self.shelf.drop((id(self), shown) for shown in self.shown)
            self.traces.drop(id(self))

    def _hear(self, text: str) -> None:
        about: dict[str, Any] = {"id": None}
        try:
            message = read(text, self.limits.message_bytes)
            about = message.model_dump() if isinstance(message, Attention) else {"id": message.id}
            match message:
                case Run():
                    self._run(message)
                case Stop():
                    if message.id in self.jobs:
                        self.jobs[message.id].stop()
                case Attention():
                    self._attention(message)
        except FloatLensError as error:
            if about["id"] is None and len(text) <= self.limits.message_bytes:
                about = {"id": id_of(text)}
            self.say({**about, "type": "error", "message": " ".join(str(error).split())})

    def _run(self, asked: Run) -> None:
        lens = self.lenses.get(asked.model)
        if lens is None:
            raise FloatLensError(
                f"model {asked.model!r} is not served here; there are {', '.join(self.lenses) or 'none'}"
            )
        if asked.id in self.jobs:
            raise FloatLensError(f"run {asked.id} is going on already; give the new one another id")
        if len(self.jobs) >= self.limits.waiting_each:
            raise FloatLensError(f"{len(self.jobs)} runs of this page wait already; try again when some are done")
        self.shown.add(asked.id)
        job = Job(
            asked.id,
            partial(play, lens, asked, partial(self._keep, asked.id), self._keep_trace),
            self._from_thread,
            partial(self._soon, self.jobs.pop, asked.id, None),
        )
        self.jobs[asked.id] = job
        try:
            ahead = self.worker.submit(job)
        except FloatLensError:
            del self.jobs[asked.id]
            raise
        self.say({"type": "queued", "id": asked.id, "ahead": ahead, "loading": "model" not in lens.__dict__})

    def _keep(self, number: int, **about: Any) -> Matrices:
        made = self.shelf.new((id(self), number), **about)
        if self.gone:  # a run whose first step was under way when the page went
            self.shelf.drop([(id(self), number)])
        return made

    def _keep_trace(self, trace: Trace) -> str | None:
        key = self.traces.add(id(self), trace)
        if self.gone:
            self.traces.drop(id(self))
        return key

    def _attention(self, asked: Attention) -> None:
        values = self.shelf.get((id(self), asked.id)).of(asked.step, asked.layer, asked.position, asked.direction)
        self.say({**asked.model_dump(), "values": values})

    # --- sending --------------------------------------------------------------------------------------------------------

    def say(self, message: dict[str, Any]) -> None:
        """Send, in the order of saying; from the event loop's own thread."""
        self._put(json.dumps(message, ensure_ascii=False, allow_nan=False))

    def _from_thread(self, message: dict[str, Any]) -> None:
        self._soon(self._put, json.dumps(message, ensure_ascii=False, allow_nan=False))

    def _soon(self, call: Any, *arguments: Any) -> None:
        try:
            self.loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the server is gone, and with it whoever would read this
            for job in list(self.jobs.values()):
                job.stop()

    def _put(self, text: str) -> None:
        if self.unsent.qsize() < self.limits.unsent:
            return self.unsent.put_nowait(text)
        self.lost = True
        for job in self.jobs.values():
            job.stop()

    async def _send_all(self) -> None:
        while True:
            try:
                await self.socket.send_text(await self.unsent.get())
            except (WebSocketDisconnect, RuntimeError):  # it went away; `talk` hears of it as well
                return
