"""A proxy in front of a server that refuses, delays or loses what a test tells it to."""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Fault = Callable[[str, str], str | float | None]  # of method and path: "refuse", "lose", seconds to wait, or None


class FaultyProxy:
    """Forwards requests to `port` of this machine; `fault` decides what happens to each, `requests` counts them."""

    def __init__(self, port: int) -> None:
        self.fault: Fault = lambda method, path: None
        self.requests: Counter[str] = Counter()
        self.writing = threading.Lock()  # moto checks a condition and writes in two steps; S3 does it in one
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self) -> None:
                length = self.headers.get("Content-Length")
                body = self.rfile.read(int(length)) if length else self.read_chunks()
                proxy.requests[self.command] += 1
                what = proxy.fault(self.command, self.path)
                if isinstance(what, float):
                    time.sleep(what)
                if what == "refuse":
                    self.answer(503, [], b"")
                    return
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                headers = {name: value for name, value in self.headers.items() if name.lower() not in DROPPED}
                with proxy.writing if "If-None-Match" in headers else nullcontext():
                    connection.request(self.command, self.path, body, headers)
                    found = connection.getresponse()
                    content = found.read()
                if what == "lose":
                    self.answer(500, [], b"")
                else:
                    self.answer(found.status, found.getheaders(), content)
                connection.close()

            def read_chunks(self) -> bytes:
                if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                    return b""
                content = b""
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    content += self.rfile.read(size)
                    self.rfile.readline()
                while self.rfile.readline().strip():
                    pass
                return content

            def answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
                try:
                    self.send_response(status)
                    for name, value in headers:
                        if name.lower() not in {"transfer-encoding", "connection", "date", "server"}:
                            self.send_header(name, value)
                    if not any(name.lower() == "content-length" for name, _ in headers):
                        self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:  # the client has given up
                    self.close_connection = True

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


DROPPED = {"transfer-encoding", "connection", "expect", "content-length"}
