"""From an application to an address: binds a socket, runs until it is told to end."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
import threading
import webbrowser
from typing import Any
from urllib.parse import urlencode

import uvicorn

from floatlens.errors import FloatLensError
from floatlens.server.guard import LOOPBACK
from floatlens.server.limits import Limits


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes one that is free."""
    if not 0 <= port <= 65535:
        raise FloatLensError(f"--port {port} is not a port; use 0 for a free one, or a number up to 65535")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place)
        made.listen(128)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FloatLensError(f"cannot listen on {host} port {port}: {reason}; use --port 0 for a free one") from None
    return made


def is_loopback(bound: socket.socket) -> bool:
    return ipaddress.ip_address(bound.getsockname()[0]).is_loopback


def names(host: str, bound: socket.socket) -> dict[str, Any]:
    """The names that a Host header may have: of loopback alone, or of what was asked for as well."""
    if is_loopback(bound):
        return {"hosts": {*LOOPBACK, host}, "any_address": False}
    everywhere = ipaddress.ip_address(bound.getsockname()[0]).is_unspecified
    return {"hosts": {*LOOPBACK, host, bound.getsockname()[0], socket.gethostname()}, "any_address": everywhere}


def address(host: str, bound: socket.socket, **fields: str) -> str:
    """What to open in a browser."""
    name, port = bound.getsockname()[:2]
    shown = socket.gethostname() if ipaddress.ip_address(name).is_unspecified else host
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/?{urlencode(fields)}"


def server(app: Any, limits: Limits) -> uvicorn.Server:
    """The server of an application: quiet, and with an end to the size of messages."""
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
    """Serve until Ctrl-C; open pages are told, runs end after their step."""
    server(app, limits).run(sockets=[bound])


def open_browser(url: str) -> None:
    """Open the address, where there is a screen; a browser of the terminal would take the terminal away."""
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
