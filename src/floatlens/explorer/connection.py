"""One connected page: reads its requests, sends the steps of its runs, and stops them when it disconnects."""

from __future__ import annotations

import asyncio
import json
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from floatlens.errors import FloatLensError
from floatlens.explorer.kept_runs import RunMatrices
from floatlens.explorer.live_run import LiveJob, play
from floatlens.explorer.messages import AttentionRequest, RunRequest, StopRequest, id_of, read
from floatlens.trace.trace import Trace

if TYPE_CHECKING:
    from floatlens.explorer.server import LiveExplorer

IDLE, TOO_SLOW = 4000, 4001  # close codes, in the range reserved for applications


class Connection:
    """A WebSocket connection. A message that cannot be parsed is answered with an error message."""

    def __init__(self, socket: WebSocket, explorer: LiveExplorer) -> None:
        self.socket, self.explorer, self.limits = socket, explorer, explorer.limits
        self.loop = asyncio.get_running_loop()
        self.unsent: asyncio.Queue[str] = asyncio.Queue()
        self.jobs: dict[int, LiveJob] = {}
        self.lost = False  # the page does not read its messages
        self.gone = False  # the page has disconnected

    async def talk(self) -> None:
        """Serve until the page disconnects or has been idle for too long."""
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
                    return await self.socket.close(TOO_SLOW, "the page does not read its messages")
        except WebSocketDisconnect:
            return
        finally:
            sending.cancel()
            self.gone = True
            for job in self.jobs.values():
                job.stop()
            self.explorer.matrices.drop(id(self))
            self.explorer.traces.drop(id(self))

    def _hear(self, text: str) -> None:
        about: dict[str, Any] = {"id": None}
        try:
            message = read(text, self.limits.message_bytes)
            about = message.model_dump() if isinstance(message, AttentionRequest) else {"id": message.id}
            match message:
                case RunRequest():
                    self._run(message)
                case StopRequest():
                    if message.id in self.jobs:
                        self.jobs[message.id].stop()
                case AttentionRequest():
                    self._attention(message)
        except FloatLensError as error:
            if about["id"] is None and len(text) <= self.limits.message_bytes:
                about = {"id": id_of(text)}
            self.say({**about, "type": "error", "message": " ".join(str(error).split())})

    def _run(self, asked: RunRequest) -> None:
        lenses = self.explorer.lenses
        lens = lenses.get(asked.model)
        if lens is None:
            raise FloatLensError(f"model {asked.model!r} is not served here; available: {', '.join(lenses) or 'none'}")
        if asked.id in self.jobs:
            raise FloatLensError(f"run {asked.id} is already running; use another id for the new one")
        if len(self.jobs) >= self.limits.waiting_each:
            raise FloatLensError(
                f"{len(self.jobs)} runs of this page are already queued; try again when some have finished"
            )
        job = LiveJob(
            asked.id,
            partial(play, lens, asked, self.explorer.template, partial(self._keep, asked.id), self._keep_trace),
            self._from_thread,
            partial(self._soon, self.jobs.pop, asked.id, None),
        )
        self.jobs[asked.id] = job
        try:
            ahead = self.explorer.worker.submit(job)
        except FloatLensError:
            del self.jobs[asked.id]
            raise
        self.say({"type": "queued", "id": asked.id, "ahead": ahead, "loading": "model" not in lens.__dict__})

    def _keep(self, number: int, **about: Any) -> RunMatrices:
        matrices = self.explorer.matrices
        made = RunMatrices(room=matrices.limit // 2, **about)
        matrices.add(id(self), (id(self), number), made)
        if self.gone:  # the page disconnected during the first step
            matrices.drop(id(self))
        return made

    def _keep_trace(self, trace: Trace) -> str | None:
        key = secrets.token_urlsafe(12)
        kept = self.explorer.traces.add(id(self), key, trace)
        if self.gone:
            self.explorer.traces.drop(id(self))
        return key if kept else None

    def _attention(self, asked: AttentionRequest) -> None:
        values = self.explorer.matrices.get((id(self), asked.id)).of(
            asked.step, asked.layer, asked.position, asked.direction
        )
        self.say({**asked.model_dump(), "values": values})

    # --- sending --------------------------------------------------------------------------------------------------------

    def say(self, message: dict[str, Any]) -> None:
        """Queue a message; call it from the event loop's thread only."""
        self._put(json.dumps(message, ensure_ascii=False, allow_nan=False))

    def _from_thread(self, message: dict[str, Any]) -> None:
        self._soon(self._put, json.dumps(message, ensure_ascii=False, allow_nan=False))

    def _soon(self, call: Any, *arguments: Any) -> None:
        try:
            self.loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the server has shut down
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
            except (WebSocketDisconnect, RuntimeError):  # disconnected; `talk` notices as well
                return
