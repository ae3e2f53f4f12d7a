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
import secrets
from collections.abc import Collection
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
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
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        refusal = self.refusal(scope)
        if scope["type"] == "websocket":
            if refusal:
                await receive()
                return await send({"type": "websocket.close", "code": 1008, "reason": refusal})
            return await self.app(scope, receive, send)
        by_ticket = refusal is WITHOUT_TOKEN and self.redeems(scope)
        if by_ticket or (not refusal and scope["path"] == "/" and "token" in query_fields(scope)):
            return await self.sign_in(scope)(scope, receive, send)
        if refusal:
            response: Response = PlainTextResponse(
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

    def sign_in(self, scope: Scope) -> Response:
        """Set the cookie and send the browser to the bare address.

        An address that was typed or pasted is redirected, which keeps its fragment. A navigation that began outside this
        site, as from the file that the browser was started with, would not carry a SameSite=Strict cookie through a
        redirect: it gets a page that refreshes itself.
        """
        headers = {**HEADERS, "content-security-policy": NOTHING}
        response: Response = RedirectResponse("/", 303, headers)
        if Headers(scope=scope).get("sec-fetch-site") == "cross-site":
            response = HTMLResponse(SIGN_IN, headers=headers)
        response.set_cookie(self.cookie, self.token, httponly=True, samesite="strict", path="/")
        return response

    def refusal(self, scope: Scope) -> str | None:
        """Return the reason why a request is refused, or None if it is allowed."""
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
        given = [*query_fields(scope).get("token", ()), *headers.getlist(HEADER)]
        if not given:
            cookies = cookie_parser("; ".join(headers.getlist("cookie")))
            given = [cookies[self.cookie]] if self.cookie in cookies else []
        return len(given) == 1 and same(given[0], self.token)

    def redeems(self, scope: Scope) -> bool:
        """Whether the request carries the ticket, which is then used up."""
        given = query_fields(scope).get("ticket", ())
        if self.ticket is None or scope["path"] != "/" or len(given) != 1 or not same(given[0], self.ticket):
            return False
        self.ticket = None
        return True


def query_fields(scope: Scope) -> dict[str, list[str]]:
    """Return the query fields of a request; none if there are more than any valid request has."""
    try:
        return parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=20)
    except ValueError:
        return {}


def same(given: str, wanted: str) -> bool:
    """Compare two secrets in constant time."""
    return secrets.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def hostname(host: str) -> str:
    """Return the name in a Host header, without its port.

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
    """Whether a host is a numeric address rather than a name.

    >>> numeric("192.168.0.7"), numeric("::1"), numeric("example.org")
    (True, True, False)
    """
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return "%" not in name  # a zone may be any text
