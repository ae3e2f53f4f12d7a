"""A real browser for the tests: Chromium from the distribution, driven by Playwright.

The fixtures `browser` and `open_page` are there for every test. `make chromium` installs what they need where that is
possible; elsewhere the tests that need them are skipped, with the reason.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]

CLIPBOARD = {"permissions": ["clipboard-read", "clipboard-write"]}  # options of a page that may copy


def chromium() -> str | None:
    """Path of Chromium: FLOATLENS_CHROMIUM, or the first that is installed."""
    named = os.environ.get("FLOATLENS_CHROMIUM")
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return named or next((path for path in found if path), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A running browser, for as long as the test module."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip("BROWSER TESTS DID NOT RUN: playwright is not installed; pip install 'floatlens[dev]'")
    path = chromium()
    if path is None:
        pytest.skip("BROWSER TESTS DID NOT RUN: there is no Chromium; `make chromium` installs it where it can")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=ARGUMENTS, timeout=60_000)
        yield running
        running.close()


@dataclass
class Visit:
    """A page, what it complained of, and whom it asked for something."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def state(self) -> dict[str, Any]:
        """What the explorer says that it shows."""
        return self.page.evaluate("window.floatlens.state()")

    def set(self, **partial: Any) -> dict[str, Any]:
        """Change what the explorer shows, wait until it is drawn, and say what is shown then."""
        self.page.evaluate(
            """partial => { window.floatlens.set(partial);
                return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))) }""",
            partial,
        )
        return self.state()

    def export(self, name: str) -> str:
        """Choose an entry of the explorer's menu, and return what the menu then says."""
        if not self.page.get_by_role("button", name=name).is_visible():
            self.page.get_by_role("button", name="Export").click()
        self.page.get_by_role("button", name=name, exact=True).click()
        message = self.page.locator(".menu").get_by_role("status")
        self.page.wait_for_function("e => !['', '…'].includes(e.textContent)", arg=message.element_handle())
        return message.inner_text()

    def copied(self, name: str) -> str:
        """Return what an entry of the menu copies; the page must have been opened with `**CLIPBOARD`."""
        assert self.export(name).startswith("Copied")
        return self.page.evaluate("navigator.clipboard.readText()")


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Visit]]:
    """Open an address in a fresh profile: `open_page(url, width=…, height=…, dark=…, before=SCRIPT) -> Visit`."""
    contexts = []

    def visit(
        url: str, *, width: int = 1280, height: int = 800, dark: bool = False, before: str = "", **options: Any
    ) -> Visit:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", **options
        )
        contexts.append(context)
        if before:
            context.add_init_script(before)
        made = Visit(context.new_page())
        made.page.on("console", lambda m: made.errors.append(m.text) if m.type in ("error", "warning") else None)
        made.page.on("pageerror", lambda error: made.errors.append(str(error)))
        made.page.on("request", lambda request: made.requests.append(request.url))
        made.page.goto(url)
        return made

    yield visit
    for context in contexts:
        context.close()
