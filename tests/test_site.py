"""The documentation site, opened from the disk in a browser: search, dark mode and copy buttons work without a server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
CONFIG = """
site_name: Small
docs_dir: {docs}
site_dir: {site}
use_directory_urls: false
theme: {{name: material, font: false, features: [content.code.copy], palette: [
  {{scheme: default, toggle: {{icon: material/weather-night, name: Dark}}}},
  {{scheme: slate, toggle: {{icon: material/weather-sunny, name: Light}}}}]}}
extra: {{polyfills: [javascripts/iframe-worker.js]}}
plugins: [search, offline]
markdown_extensions: [pymdownx.highlight, pymdownx.superfences]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of two pages with the theme, the plug-ins and the script of the real one."""
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    docs = folder / "docs"
    (docs / "javascripts").mkdir(parents=True)
    script = "javascripts/iframe-worker.js"
    (docs / script).write_text((ROOT / "docs" / script).read_text())
    (docs / "index.md").write_text("# Home\n\nNothing here.\n\n```python\nfl.load()\n```\n")
    (docs / "sinks.md").write_text("# Sinks\n\nA position that swallows attention, called quicksand.\n")
    (folder / "mkdocs.yml").write_text(CONFIG.format(docs=docs, site=folder / "made"))
    words = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--quiet",
        "--strict",
        "--config-file",
        str(folder / "mkdocs.yml"),
    ]
    subprocess.run(words, check=True, timeout=300, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    return folder / "made"


def test_search_works_from_the_disk(site: Path, open_page: Callable[..., Any]) -> None:
    visit = open_page((site / "index.html").as_uri())
    visit.page.keyboard.press("/")
    visit.page.locator(".md-search__input").press_sequentially("quicksand")
    found = visit.page.locator(".md-search-result__item a").first
    found.wait_for(timeout=30_000)
    assert "sinks.html" in found.get_attribute("href")
    assert all(url.startswith(("file:", "data:", "about:", "blob:")) for url in visit.requests)


def test_code_can_be_copied_and_the_page_can_be_dark(site: Path, open_page: Callable[..., Any]) -> None:
    page = open_page((site / "index.html").as_uri()).page
    assert page.locator("button[data-clipboard-target], .md-code__button, .md-clipboard").count()
    assert page.locator("body").get_attribute("data-md-color-scheme") == "default"
    page.locator("label.md-header__button[title=Dark]").click()
    assert page.locator("body").get_attribute("data-md-color-scheme") == "slate"


def test_the_real_site_has_the_same_parts() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    for part in (
        "- search\n",
        "- offline",
        "polyfills: [javascripts/iframe-worker.js]",
        "content.code.copy",
        "scheme: slate",
    ):
        assert part in text, part
