"""Access control: decides which requests the server answers.

A page from elsewhere can make a browser send requests to this machine, and a name can be made to point here (DNS
rebinding). So the Host header must be one of our names, the Origin header, if present, must be the same host, and every
request must carry the token that was printed when the server started.

A browser that opens the printed address gets the token as a cookie (HttpOnly, SameSite=Strict) and is sent on to the bare
address, so that the token stays neither in the address bar nor in the history.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import secrets
from collections.abc import Collection
from contextlib import suppress

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

LOOPBACK = ("localhost", "127.0.0.1", "::1")
HEADER = "x-floatlens-token"
HEADERS = {  # of every answer, unless it has its own
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9.-]*))(?::[0-9]*)?")  # a number in brackets or a name, and a port
WITHOUT_TOKEN = "the token is missing or wrong; use the address that floatlens explore printed"
SIGN_IN = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=/"><title>FloatLens</title></head>
<body><a href="/">Continue to FloatLens</a></body></html>
"""


class Guard:
    """ASGI middleware that stops every request that is not allowed.

    Parameters
    ----------
    hosts
        The names that a Host header may have.
    any_address
        Also allow every numeric address, for a server that listens on all of them: a number cannot be rebound.
    ticket
        Opens the page once, instead of the token.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str,
        hosts: Collection[str] = LOOPBACK,
        any_address: bool = False,
        ticket: str | None = None,
    ) -> None:
        self.app, self.token, self.any_address, self.ticket = app, token, any_address, ticket
        self.hosts = {host.lower() for host in hosts}
        # Cookies ignore ports, so each server uses a different name to keep two servers from overwriting each other's.
        self.cookie = f"floatlens-{hashlib.sha256(token.encode()).hexdigest()[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer: ASGIApp = self.app
        if scope["type"] in ("http", "websocket"):
            request = HTTPConnection(scope)
            refusal = self.refusal(request)
            if scope["type"] == "websocket":
                answer = WebSocketClose(1008, refusal) if refusal else self.app
            elif self.opens_page(request, refusal):
                answer = self.sign_in(request)
            elif refusal:
                answer = PlainTextResponse(refusal + "\n", 403, {"connection": "close"})
        await answer(scope, receive, guarded)

    def opens_page(self, request: HTTPConnection, refusal: str | None) -> bool:
        """Whether the request is for the page with the token in its address, or with the ticket, which is then used up."""
        if request.scope["path"] != "/":
            return False
        if not refusal:
            return bool(request.query_params.get("token"))
        given = request.query_params.getlist("ticket")
        if refusal != WITHOUT_TOKEN or self.ticket is None or len(given) != 1 or not same(given[0], self.ticket):
            return False
        self.ticket = None
        return True

    def sign_in(self, request: HTTPConnection) -> Response:
        """Set the cookie and send the browser to the bare address, by a redirect, which keeps the address's fragment."""
        # After a navigation from another site, or from the file that the browser was started with, a redirect would not
        # carry a SameSite=Strict cookie; a page that refreshes itself does.
        elsewhere = request.headers.get("sec-fetch-site") == "cross-site"
        response: Response = HTMLResponse(SIGN_IN) if elsewhere else RedirectResponse("/", 303)
        response.set_cookie(self.cookie, self.token, httponly=True, samesite="strict", path="/")
        return response

    def refusal(self, request: HTTPConnection) -> str | None:
        """Return the reason why a request is refused, or None if it is allowed."""
        hosts, origins = request.headers.getlist("host"), request.headers.getlist("origin")
        if len(hosts) != 1 or not self.known(hosts[0]):
            return "this server does not answer to that host name; use the address that it printed"
        if len(origins) > 1 or (request.scope["type"] == "websocket" and not origins):
            return "the request does not say which page it comes from"
        if origins and origins[0].lower() not in (f"http://{hosts[0].lower()}", f"https://{hosts[0].lower()}"):
            return "the request comes from another page"
        given = [*filter(None, request.query_params.getlist("token")), *request.headers.getlist(HEADER)]
        if not given and self.cookie in request.cookies:
            given = [request.cookies[self.cookie]]
        return None if len(given) == 1 and same(given[0], self.token) else WITHOUT_TOKEN

    def known(self, host: str) -> bool:
        name = hostname(host)
        with suppress(ValueError):
            return name in self.hosts or (self.any_address and bool(ipaddress.ip_address(name)))
        return False


def same(given: str, wanted: str) -> bool:
    """Compare two secrets in constant time."""
    return secrets.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def hostname(host: str) -> str:
    """Return the name in a Host header, without its port; empty if it is none.

    >>> hostname("LocalHost:8000"), hostname("[::1]:8000"), hostname("evil.example:80@localhost")
    ('localhost', '::1', '')
    """
    match = HOST.fullmatch(host.strip().lower())
    return (match[1] or match[2]) if match else ""
