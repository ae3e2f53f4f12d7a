"""Run the application: bind a socket, print an address, serve until stopped."""

from __future__ import annotations

import atexit
import ipaddress
import os
import socket
import sys
import tempfile
import threading
import webbrowser
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import uvicorn

from floatlens.errors import FloatLensError
from floatlens.server.guard import LOOPBACK
from floatlens.server.limits import Limits


def bind(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 takes a free one."""
    if not 0 <= port <= 65535:
        raise FloatLensError(f"--port {port} is not a port; use 0 for a free one, or a number up to 65535")
    try:
        family, kind, protocol, _, socket_address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(socket_address)
        made.listen(128)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FloatLensError(f"cannot listen on {host} port {port}: {reason}; use --port 0 for a free one") from None
    return made


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
    """Open an address in the browser if there is a screen; a text browser would take over the terminal.

    Every user of a machine can read the arguments of its processes, so the browser is given a private file (mode 0600) that
    forwards to the address. The file is removed when the program ends.
    """
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    threading.Thread(target=webbrowser.open, args=(forwarding_file(url).as_uri(),), daemon=True).start()


def forwarding_file(url: str) -> Path:
    """Write an HTML file that forwards to an address, readable by this user only."""
    number, name = tempfile.mkstemp(prefix="floatlens-", suffix=".html")
    path = Path(name)
    atexit.register(path.unlink, missing_ok=True)
    with open(number, "w", encoding="utf-8") as file:
        file.write(f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={escape(url)}">\n')
    return path
