"""Access control: requests that are allowed, and requests that are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from floatlens.explorer.guard import HEADER, Guard, hostname
from tests.explorer.app_client import HOST, TOKEN, app_of, client, connected

PATHS = ["/", "/assets/explorer.js", "/api/store", "/api/film?run=0&sample=0"]


@pytest.fixture
def page() -> TestClient:
    return client(app_of("tiny-mdm"))


@pytest.mark.parametrize("path", PATHS)
def test_every_request_needs_the_token(page: TestClient, path: str) -> None:
    sign = "&" if "?" in path else "?"
    for wrong in (path, f"{path}{sign}token=", f"{path}{sign}token={TOKEN}x", f"{path}{sign}token={TOKEN}&token=x"):
        refused = page.get(wrong)
        assert refused.status_code == 403 and "token" in refused.text and refused.text.count("\n") == 1
    assert page.get(path, headers={HEADER: TOKEN}).status_code != 403
    assert page.get(f"{path}{sign}token={TOKEN}").status_code != 403


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8123",
        "127.0.0.1.evil.example:8123",
        "localhost.evil.example",
        "evil.example:80@localhost",
        "localhost:80x",
        "[::1",
        "0.0.0.0:8123",
        "",
    ],
)
def test_a_name_that_points_here_is_not_ours(page: TestClient, host: str) -> None:
    """DNS rebinding: the browser believes to talk to evil.example, whose address has become 127.0.0.1."""
    refused = page.get(f"/?token={TOKEN}", headers={"host": host})
    assert refused.status_code == 403 and "host name" in refused.text
    with pytest.raises(WebSocketDisconnect), connected(page, host=host, origin=f"http://{host}"):
        pass


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "http://127.0.0.1:9999", "http://localhost:8123", "null", ""]
)
def test_a_page_from_elsewhere_may_not_ask(page: TestClient, origin: str) -> None:
    assert page.get(f"/api/store?token={TOKEN}", headers={"origin": origin}).status_code == 403
    with pytest.raises(WebSocketDisconnect), connected(page, origin=origin):
        pass


def test_a_socket_must_say_where_it_comes_from_and_bring_the_token(page: TestClient) -> None:
    for token in ("", "wrong"):
        with pytest.raises(WebSocketDisconnect), connected(page, token=token):
            pass
    with pytest.raises(WebSocketDisconnect), page.websocket_connect(f"/live?token={TOKEN}", headers={"host": HOST}):
        pass
    with connected(page):
        pass


def test_a_ticket_opens_one_page_once() -> None:
    page = client(app_of("tiny-mdm", ticket="once"))
    ask = {"follow_redirects": False}
    for wrong in ("/?ticket=", "/?ticket=twice", "/api/store?ticket=once", "/?ticket=once&ticket=once"):
        assert page.get(wrong, **ask).status_code == 403
    assert page.get("/?ticket=once", headers={"host": "evil.example"}, **ask).status_code == 403
    opened = page.get("/?ticket=once", headers={"sec-fetch-site": "cross-site"}, **ask)
    assert opened.status_code == 200 and 'content="0; url=/"' in opened.text and TOKEN not in opened.text
    assert page.get("/").status_code == 200, "the cookie opens the page from now on"
    page.cookies.clear()
    assert page.get("/?ticket=once", **ask).status_code == 403


def test_the_token_leaves_the_address_bar_for_a_cookie_that_scripts_and_other_sites_cannot_use() -> None:
    page = client(app_of("tiny-mdm"))
    opened = page.get(f"/?token={TOKEN}", follow_redirects=False)
    assert opened.status_code == 303 and opened.headers["location"] == "/"
    cookie = opened.headers["set-cookie"]
    assert TOKEN in cookie and all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/"))
    assert 'id="explorer"' in page.get("/").text, "the bare address shows the page"
    assert page.get("/api/store").status_code == 200
    own = {"host": HOST, "origin": f"http://{HOST}", "cookie": cookie.partition(";")[0]}
    for path in ("/live", "/live?token="):  # the page leaves the token empty
        with page.websocket_connect(path, headers=own):
            pass
    with (
        pytest.raises(WebSocketDisconnect),
        page.websocket_connect("/live", headers={**own, "origin": "http://evil.example"}),
    ):
        pass


def test_a_wrong_cookie_opens_nothing() -> None:
    page = client(app_of("tiny-mdm"))
    name = page.get(f"/?token={TOKEN}", follow_redirects=False).headers["set-cookie"].partition("=")[0]
    page.cookies.clear()
    assert page.get("/", headers={"cookie": f"{name}=wrong"}).status_code == 403


@pytest.mark.parametrize("host", ["localhost:8123", "127.0.0.1", "[::1]:8123", "LOCALHOST:1"])
def test_loopback_has_several_names_and_any_port(page: TestClient, host: str) -> None:
    """Any port: a tunnel may end at another one."""
    headers = {"host": host, "origin": f"http://{host}"}
    assert page.get(f"/api/store?token={TOKEN}", headers=headers).status_code == 200


def test_a_server_for_all_addresses_answers_to_numbers_and_still_not_to_strange_names() -> None:
    guard = Guard(lambda *_: None, token="t", hosts=["box"], any_address=True)  # type: ignore[arg-type,return-value]
    assert guard.known("192.168.0.7:80") and guard.known("[fe80::1]:80") and guard.known("box:80")
    assert not any(guard.known(host) for host in ("evil.example:80", "", "[fe80::1%; script-src *]:80"))


def test_a_name_with_signs_in_it_is_no_name() -> None:
    assert [hostname(h) for h in ("a b", "a/b", "user@localhost", "localhost:", "[x]:1")] == [
        "",
        "",
        "",
        "localhost",
        "",
    ]


@pytest.mark.parametrize("path", [*PATHS, "/nowhere", "/api/film?run=x&sample=0"])
@pytest.mark.parametrize("allowed", [True, False])
def test_every_answer_forbids_the_rest(page: TestClient, path: str, allowed: bool) -> None:
    sign = "&" if "?" in path else "?"
    headers = page.get(path + (f"{sign}token={TOKEN}" if allowed else ""), follow_redirects=False).headers
    policy = headers["content-security-policy"]
    assert (
        policy.startswith("default-src 'none'") and "frame-ancestors 'none'" in policy and "unsafe-eval" not in policy
    )
    assert "'unsafe-inline'" not in policy.partition("script-src")[2].partition(";")[0]
    assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer" and headers["x-frame-options"] == "DENY"
    assert "access-control-allow-origin" not in headers
    assert ("set-cookie" in headers) == (allowed and path == "/")


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../app.py",
        "/assets/..%2f..%2fserver%2fapp.py",
        "/assets/%2e%2e/film.py",
        "/assets//etc/passwd",
        "/assets/explorer.js/../../page.py",
        "/etc/passwd",
        "/api/film/../../etc/passwd",
        "/..%00/",
    ],
)
def test_nothing_but_the_routes_is_found(page: TestClient, path: str) -> None:
    assert page.get(f"{path}?token={TOKEN}").status_code == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_nothing_is_changed_by_a_request(page: TestClient, method: str) -> None:
    assert page.request(method, f"/api/store?token={TOKEN}").status_code == 405


def test_the_page_does_not_hold_the_token_and_its_script_comes_from_here(page: TestClient) -> None:
    shown = page.get("/", headers={HEADER: TOKEN})
    assert 'src="/assets/explorer.js"' in shown.text and TOKEN not in shown.text
    assert f"ws://{HOST}" in shown.headers["content-security-policy"]
    script = page.get(f"/assets/explorer.js?token={TOKEN}")
    built = Path(__file__).parents[2] / "src/floatlens/explorer/assets/explorer.js"
    assert script.text == built.read_text() and script.headers["content-type"].startswith("text/javascript")
