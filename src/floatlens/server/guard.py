"""Who may ask: a browser that was given the token, looking at a page that this server sent.

A page from elsewhere can make a browser send requests to this machine, and a name can be made to point here (DNS
rebinding). So the Host must be a name of ours, the Origin, where there is one, must be that same host, and every request
must bring the token that was printed when the server started.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Collection
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "::1")
HEADER = "x-floatlens-token"
HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
NOTHING = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


WITHOUT_TOKEN = "the token is missing or wrong; use the address that floatlens explore printed"


class Guard:
    """ASGI middleware: nothing behind it sees a request that may not be made.

    `hosts` are the names that a Host header may have. `any_address` allows every numeric address as well, for a server
    that listens on all of them: a number cannot be rebound. `ticket` opens the page once, in place of the token: a browser
    is started with its address among its arguments, which every user of the machine may read.
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        refusal = self.refusal(scope)
        if scope["type"] == "websocket":
            if refusal:
                await receive()
                return await send({"type": "websocket.close", "code": 1008, "reason": refusal})
            return await self.app(scope, receive, send)
        if refusal is WITHOUT_TOKEN and self.redeems(scope):
            response: Response = RedirectResponse(f"/?token={self.token}", 303, HEADERS)
            return await response(scope, receive, send)
        if refusal:
            response = PlainTextResponse(
                refusal + "\n", 403, {**HEADERS, "content-security-policy": NOTHING, "connection": "close"}
            )
            return await response(scope, receive, send)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name for name, _ in message["headers"]}
                more = {**HEADERS, "content-security-policy": NOTHING}
                message["headers"] = [
                    *message["headers"],
                    *((k.encode(), v.encode()) for k, v in more.items() if k.encode() not in there),
                ]
            await send(message)

        await self.app(scope, receive, guarded)

    def refusal(self, scope: Scope) -> str | None:
        """Why a request is refused, or None."""
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not self.known(hosts[0]):
            return "this server does not answer to that host name; use the address that it printed"
        if len(origins) > 1 or (scope["type"] == "websocket" and not origins):
            return "the request does not say which page it comes from"
        if origins and origins[0].lower() not in (f"http://{hosts[0].lower()}", f"https://{hosts[0].lower()}"):
            return "the request comes from another page"
        return None if self.has_token(scope, headers) else WITHOUT_TOKEN

    def known(self, host: str) -> bool:
        name = hostname(host)
        return name in self.hosts or (self.any_address and numeric(name))

    def has_token(self, scope: Scope, headers: Headers) -> bool:
        given = [*asked(scope).get("token", ()), *headers.getlist(HEADER)]
        return len(given) == 1 and same(given[0], self.token)

    def redeems(self, scope: Scope) -> bool:
        """Does it bring the ticket? Then nobody can again."""
        given = asked(scope).get("ticket", ())
        if self.ticket is None or scope["path"] != "/" or len(given) != 1 or not same(given[0], self.ticket):
            return False
        self.ticket = None
        return True


def asked(scope: Scope) -> dict[str, list[str]]:
    """The fields of an address; none if there are more than anything of ours has."""
    try:
        return parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=20)
    except ValueError:
        return {}


def same(given: str, wanted: str) -> bool:
    """Equal? In a time that does not tell how much of it is."""
    return secrets.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def hostname(host: str) -> str:
    """The name in a Host header, without its port.

    >>> hostname("LocalHost:8000"), hostname("[::1]:8000"), hostname("evil.example:80@localhost")
    ('localhost', '::1', '')
    """
    name, colon, port = host.strip().lower().rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host.strip().lower(), ""
    if port and not (port.isascii() and port.isdecimal()):
        return ""
    if name.startswith("[") and name.endswith("]"):
        return name[1:-1] if numeric(name[1:-1]) else ""
    return name if all(c.isalnum() or c in "-." for c in name) else ""


def numeric(name: str) -> bool:
    """Is it an address rather than a name?

    >>> numeric("192.168.0.7"), numeric("::1"), numeric("example.org")
    (True, True, False)
    """
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return "%" not in name  # a zone may be any text
