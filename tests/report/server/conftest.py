"""The fixtures of the real browser."""

from tests.browser import browser, open_page  # noqa: F401
