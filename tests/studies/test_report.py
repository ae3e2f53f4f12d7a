"""The report: one file that shows what the runs hold, runs nothing that came with the data, and asks nobody."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib.figure import Figure

from floatlens.cli.main import run as command_line
from floatlens.errors import FloatLensError
from floatlens.explorer.film import film
from floatlens.findings import style
from floatlens.findings.finding import headline
from floatlens.store.folder import RunFolder
from floatlens.studies.analyse import Section
from floatlens.studies.page import csv_of, inlined, matrix, policy, render
from floatlens.studies.report import make
from tests.browser import Visit, browser, open_page  # noqa: F401
from tests.explorer.traces import planted

HOSTILE = '<script>window.hacked = 1</script>"><img src=x onerror="window.hacked=2">\'{{7*7}}'


def claim(
    verdict: str = "holds", value: float | None = 0.2, models: tuple[str, ...] = ("mdm", "arm")
) -> dict[str, Any]:
    low, high = (None, None) if value is None else (value - 0.1, value + 0.1)
    return {
        "finding": "drift", "claim": "Anchors move", "statistic": "turnover", "value": value, "interval": [low, high],
        "verdict": verdict, "rule": "sigma(k=3)", "n": 8, "models": list(models), "reason": HOSTILE, "details": {},
    }  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with a figure, tables, claims, notes and a film, hostile text wherever text goes."""
    folder = tmp_path_factory.mktemp("report")
    with style.sheet(), mpl.rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(7, 2))
        axes = figure.subplots(1, 2)
        axes[0].imshow([[0.1, 0.9], [0.4, 0.2]], cmap="magma_r")
        axes[0].set_title(HOSTILE)
        axes[1].bar([1, 2], [3, 4], hatch="//", color=style.COLOURS[0], label=HOSTILE)
        axes[1].legend()
        style.save(
            figure, pd.DataFrame({"token": [HOSTILE, "=1+1"], "value": [1.0, 2.0]}), folder / "figures" / "drift"
        )
    wide = [f"column {i}" for i in range(14)]
    section = Section(
        "drift",
        "Drift",
        "§3.1",
        "Do the anchors move?",
        seen=[f"In {HOSTILE} they do."],
        figures=[{"stem": "drift", "title": f"A map of {HOSTILE}", "reading": "Dark is much."}],
        tables=[{"title": "Numbers", "columns": ["model", *wide], "rows": [[HOSTILE, *["0.123"] * 14]]}],
        claims=[claim(), claim("inconclusive", None, ("dream", "arm"))],
        settings={"anchor rule": "sigma(k=3)"},
    )
    failed = Section("flow", "Region flow", problem=HOSTILE)
    about = {
        "title": f"Where attention floats in {HOSTILE}",
        "line": HOSTILE,
        "models": [{"name": HOSTILE, "kind": "MDM", "family": "llada", "n_layers": "2"}],
        "manifests": [("run", HOSTILE)],
        "failed": {"tiny-mdm, stress": HOSTILE},
        "errors": [{"sample": HOSTILE, "reason": HOSTILE}],
        **dict.fromkeys(("settings", "notes", "tracked", "errors_left_out", "version"), ()),
    }
    words = [f"Ġ{HOSTILE}", "Ġ<b>bold</b>", "Ġ&amp;", "Ġword"]
    films = [film(planted(steps=4, layers=2, heads=2, positions=30, words=words, kind=k)) for k in ("mdm", "arm")]
    out = folder / "report.html"
    out.write_text(render(about, [section, failed], folder / "figures", films), encoding="utf-8")
    return out


class Tags(HTMLParser):
    """Every element of a page with its attributes, and the text of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_nothing_in_the_page_comes_from_elsewhere_or_runs_by_itself(report: Path) -> None:
    tags = Tags(report.read_text()).found
    for tag, attributes in tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href", "xlink:href", "data", "action", "poster"):
            address = attributes.get(name)
            if address is not None:
                assert address.startswith(("#", "data:image/png;base64,", "data:application/gzip;base64,")), address[
                    :80
                ]
    scripts = [attributes for tag, attributes in tags if tag == "script"]
    assert [s.get("type") for s in scripts] == ["application/json", "module", None]
    assert not {tag for tag, _ in tags} & {"iframe", "object", "embed", "link", "base", "form"}
    assert sum(tag == "img" for tag, _ in tags) == 0


def test_the_policy_allows_the_pages_own_scripts_and_no_other(report: Path) -> None:
    text = report.read_text()
    allowed = html.unescape(re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1])  # type: ignore[index]
    assert allowed.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in allowed and "http" not in allowed and "*" not in allowed
    assert "'unsafe-inline'" not in allowed.split("style-src")[0]
    scripts = re.findall(r'<script(?: type="module")?>(.*?)</script>', text, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in allowed
    assert "sha256" in policy("x", False) and policy("x", False) != policy("y", False)


def test_hostile_text_is_shown_as_it_is_written(report: Path) -> None:
    text = report.read_text()
    assert text.count("window.hacked") > 10
    assert "<script>window.hacked" not in text and "<img src=x" not in text
    assert "{{7*7}}" in text and "49" not in re.findall(r"<h1[^>]*>(.*?)</h1>", text)[0]


def test_every_figure_says_what_it_shows(report: Path) -> None:
    text = report.read_text()
    labelled = re.findall(r'<svg role="img" aria-labelledby="(\S+) (\S+)"', text)
    assert labelled
    for title, description in labelled:
        assert f'<title id="{title}">' in text and f'<desc id="{description}">' in text


def test_ids_are_unique_and_addresses_lead_somewhere(report: Path) -> None:
    tags = Tags(report.read_text()).found
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in tags:
        address = attributes.get("href") or ""
        if address.startswith("#"):
            assert address[1:] in ids, address
    for name in re.findall(r"url\(#([^)]+)\)", report.read_text()):
        assert name in ids


def test_the_data_of_a_figure_is_in_the_page(report: Path) -> None:
    address = re.search(r'href="data:application/gzip;base64,([^"]+)" download="drift.csv.gz"', report.read_text())
    assert address is not None
    lines = gzip.decompress(base64.b64decode(address[1])).decode().splitlines()
    assert lines[0] == "token,value" and lines[-1] == "'=1+1,2"
    assert "window.hacked" in lines[1]


def test_a_table_too_large_for_the_page_is_named_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floatlens.studies.page.ROOM", 100)
    pd.DataFrame({"x": range(10_000)}).to_parquet(tmp_path / "big.parquet")
    found = csv_of(tmp_path / "big.parquet")
    assert not found["address"] and "big.parquet" in found["missing"]


@pytest.mark.parametrize(
    "inside",
    [
        "<script>1</script>",
        '<a href="https://example.org"><path d="M0 0"/></a>',
        '<foreignObject><body xmlns="http://www.w3.org/1999/xhtml"><img src="x"/></body></foreignObject>',
        '<image href="https://example.org/x.png"/>',
        '<image href="data:image/svg+xml;base64,AAAA"/>',
        '<g style="fill: url(https://example.org/x)" onload="1"/>',
        '<use href="other.svg#x"/>',
        "<style>@import 'https://example.org'</style>",
        '<animate attributeName="href" values="javascript:1"/>',
        '<rect fill="\\75rl(https://example.org)"/>',
    ],
)
def test_a_drawing_keeps_only_what_draws(inside: str) -> None:
    made = inlined(f'<svg xmlns="http://www.w3.org/2000/svg">{inside}</svg>', "f", "t", "d")
    assert not re.search("script|example|onload|onerror|foreign|import|other.svg|svg.xml|style=|animate|75rl", made)


def test_entities_in_a_drawing_are_refused() -> None:
    bomb = '<!DOCTYPE svg [<!ENTITY a "aaaa">]><svg xmlns="http://www.w3.org/2000/svg"><text>&a;</text></svg>'
    with pytest.raises(FloatLensError, match="entities"):
        inlined(bomb, "f", "t", "d")


def test_figures_follow_the_colours_of_the_page() -> None:
    inside = '<path style="fill: #0072B2; stroke: #222222"/><path fill="#123456"/>'
    made = inlined(f'<svg xmlns="http://www.w3.org/2000/svg">{inside}</svg>', "f", "t", "d")
    assert 'style="fill: var(--c1); stroke: var(--ink)"' in made and "#123456" in made


def test_the_matrix_has_a_row_per_claim_by_question_and_a_column_per_model() -> None:
    claims = [claim(), claim(models=("dream", "arm")), claim("fails", models=("mdm", "b"))]
    one = Section("knowledge", "Knowledge", claims=[{**claim(models=("arm",)), "claim": "It reads"}])
    found = matrix([Section("drift", "Drift", claims=claims), one])
    assert found["columns"] == ["mdm", "dream", "arm"] and list(found["groups"]) == [
        "Does it float?",
        "Does it read better?",
    ]
    (row,) = found["groups"]["Does it float?"]
    assert [[cell["symbol"] for cell in cells] for cells in row["cells"]] == [["●", "✕"], ["●"], []]
    assert row["cells"][0][1]["hover"].startswith("mdm against b: fails; 0.2 [0.1 to 0.3], turnover; effect")


def test_a_figure_states_the_finding_or_what_is_open() -> None:
    some = [claim("inconclusive"), claim("holds"), claim("fails", models=("dream", "arm"))]
    assert headline(some) == "Anchors move: 1 of 3 pairs of models"
    assert headline([claim("holds"), claim("not testable here")]) == "Anchors move"
    assert headline([claim("fails")]) == "Not so: Anchors move"
    assert headline([{**claim("fails"), "id": "drift.moves"}]) == "Anchors move no more in mdm than in arm"
    pairs = [{**claim("fails", models=models), "id": "drift.moves"} for models in (("mdm", "arm"), ("dream", "arm"))]
    assert headline(pairs) == "Anchors move no more in the MDM than in arm"
    assert headline([claim("inconclusive")]) == "Undecided whether anchors move"
    assert headline([claim("not testable here")]) == "Not testable here: whether anchors move"
    assert headline([claim("holds")], shown=["another.claim"]) == ""


def test_a_report_of_a_trace_run_shows_what_it_can_and_says_what_it_cannot(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", {"command": "trace", "asked": {}})
    words = [f"Ġ{HOSTILE}", "Ġword", "Ġ."]
    for number in range(2):
        trace = planted(steps=3, layers=2, heads=2, positions=24, words=words, seed=number)
        trace.data.attrs |= {"sample_id": f"q{number}", "n_layers": 2}
        trace.save(run.trace_path(f"q{number}"))
    if hasattr(run, "close"):
        run.close()
    assert command_line(["report", str(tmp_path / "run"), "--out", str(tmp_path / "r.html")]) == 0
    text = (tmp_path / "r.html").read_text()
    assert '<section id="tokens"' in text and '<section id="knowledge"' not in text
    assert "flow needs flow, which the trace of" in text
    assert "<script>window.hacked" not in text


def test_runs_with_nothing_to_show_are_refused(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", {"command": "trace", "asked": {}})
    with pytest.raises(FloatLensError, match="has nothing to show"):
        make([tmp_path / "run"], tmp_path / "r.html")
    assert command_line(["report", str(tmp_path / "none"), "--out", str(tmp_path / "r.html")]) == 2


# --- in a real browser ------------------------------------------------------------------------------------------------

Open = Callable[..., Visit]


def test_it_opens_from_disk_without_an_error_or_a_request(report: Path, open_page: Open) -> None:  # noqa: F811
    visit = open_page(report.as_uri())
    visit.page.wait_for_selector("#films *")
    assert visit.errors == []
    assert [url for url in visit.requests if not url.startswith(("data:", "blob:"))] == [report.as_uri()]
    assert visit.page.evaluate("window.hacked") is None
    assert HOSTILE in visit.page.inner_text("h1")


def test_links_lead_to_their_sections_by_keyboard(report: Path, open_page: Open) -> None:  # noqa: F811
    page = open_page(report.as_uri(), reduced_motion="reduce").page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.focus("nav a[href='#drift']")
    page.keyboard.press("Enter")
    page.wait_for_url("**/report.html#drift")
    assert abs(page.evaluate("document.querySelector('#drift').getBoundingClientRect().top")) < 60


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_need_not_scroll_sideways(report: Path, open_page: Open, dark: bool) -> None:  # noqa: F811
    page = open_page(report.as_uri(), width=390, height=844, dark=dark).page
    page.wait_for_selector("#films *")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("dark", [False, True])
def test_page_and_figures_are_light_or_dark_together(report: Path, open_page: Open, dark: bool) -> None:  # noqa: F811
    page = open_page(report.as_uri(), dark=dark).page
    colours = page.evaluate(
        """() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,
                  getComputedStyle(document.querySelector('.drawing')).backgroundColor,
                  getComputedStyle(document.querySelector('.drawing svg text')).fill]"""
    )
    page_behind, page_text, figure_behind, figure_text = (
        sum(map(int, re.findall(r"[0-9]+", colour)[:3])) / 765 for colour in colours
    )
    assert (page_behind < 0.2 and figure_behind < 0.2) if dark else (page_behind > 0.9 and figure_behind > 0.9)
    assert abs(page_behind - page_text) > 0.5 and abs(figure_behind - figure_text) > 0.5


def test_no_table_is_clipped_on_a_phone(report: Path, open_page: Open) -> None:  # noqa: F811
    page = open_page(report.as_uri(), width=390, height=844).page
    widths = page.eval_on_selector_all(
        "table.matrix, table.verdicts", "tables => tables.map(t => t.getBoundingClientRect().right)"
    )
    assert widths and max(widths) <= 390


def test_the_data_is_saved_as_plain_csv(report: Path, open_page: Open) -> None:  # noqa: F811
    page = open_page(report.as_uri()).page
    with page.expect_download() as waiting:
        page.click("a[data-csv='drift.csv']")
    saved = waiting.value
    assert saved.suggested_filename == "drift.csv"
    assert Path(saved.path()).read_text().startswith("token,value\n")


def test_it_prints(report: Path, open_page: Open, tmp_path: Path) -> None:  # noqa: F811
    visit = open_page(report.as_uri(), dark=True)
    visit.page.emulate_media(media="print")
    assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert visit.page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    made = visit.page.pdf(path=str(tmp_path / "r.pdf"), format="A4")
    assert made.startswith(b"%PDF") and len(made) > 20_000
    assert visit.errors == []
