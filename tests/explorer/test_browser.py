"""The live explorer in a real browser: asks, intervenes, survives a reload and a closed tab, and talks to nobody else."""

from __future__ import annotations

import json
import shlex
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from floatlens.data.sample import Passage
from floatlens.explorer.messages import Limits
from floatlens.explorer.page import asset
from floatlens.explorer.server import address, application, bind, names, server
from floatlens.store.folder import RunFolder
from floatlens.trace.trace import Trace
from tests.browser import CLIPBOARD, Visit
from tests.commands import run
from tests.explorer.app_client import QUESTION, gated, lens
from tests.explorer.traces import PASSAGES, tiny

MODELS = ("tiny-mdm", "tiny-arm")
SPEC = "mask-positions(region=gold)"


@dataclass
class Site:
    url: str
    explorer: Any

    @property
    def origin(self) -> str:
        return self.url.partition("/?")[0]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server as `floatlens explore` starts it, in a thread, so that the tests may look at its models."""
    runs = []
    for name in MODELS:
        run = RunFolder.create(tmp_path_factory.mktemp("runs") / name, {"command": "trace"})
        for sample in ("vell", "second"):
            question = {"question": "Which <b>mill</b>?"} if sample == "second" else {}
            Trace(tiny(name).data.assign_attrs(sample_id=sample, **question)).save(run.trace_path(sample))
        runs.append(run.path)
    bound = bind("127.0.0.1", 0)
    app = application([lens(name) for name in MODELS], runs, token="token", **names("127.0.0.1", bound))
    serving = server(app, Limits())
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [bound]})
    thread.start()
    yield Site(address("127.0.0.1", bound, token="token"), app.state.explorer)
    serving.should_exit = True
    thread.join()


def until(visit: Visit, true: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The state, once something is true of it."""
    end = time.monotonic() + 30
    while not true(state := visit.state()):
        assert time.monotonic() < end, json.dumps(state)
        visit.page.wait_for_timeout(30)
    return state


def fill(visit: Visit, question: str = QUESTION) -> None:
    """Type a question and the passages of the tests, and leave the rest as it is."""
    page = visit.page
    page.get_by_label("Question", exact=True).fill(question)
    while page.get_by_label("Remove passage 1").count():
        page.get_by_label("Remove passage 1").click()
    for number, text in enumerate(PASSAGES, start=1):
        page.get_by_role("button", name="Add passage").click()
        page.get_by_label(f"Passage {number}", exact=True).fill(text)
    page.locator("[data-passage='1']").get_by_role("button", name="gold").click()
    page.get_by_label("New tokens").fill("8")
    page.get_by_label("New tokens").press("Tab")


def write(visit: Visit) -> dict[str, Any]:
    visit.page.get_by_role("button", name="Write").click()
    return until(visit, lambda state: not state["live"]["running"] and state["live"]["status"] == "Done.")


def answer(model: str, *interventions: str, question: str = QUESTION) -> str:
    """What the model writes when nobody looks."""
    prompt = lens(model).prompt(question, PASSAGES, gold=1)
    with lens(model).intervene(*interventions):
        return lens(model).generate(prompt, max_new_tokens=8).text


def clean(visit: Visit, site: Site) -> None:
    """No complaint, and no request to anybody but the server."""
    assert visit.errors == []
    assert visit.requests and all(url.startswith(f"{site.origin}/") or url == "data:," for url in visit.requests)


@pytest.mark.parametrize("model", MODELS)
def test_a_question_is_answered(site: Site, open_page: Callable[..., Visit], model: str) -> None:
    visit = open_page(site.url)
    sockets: list[str] = []
    visit.page.on("websocket", lambda socket: sockets.append(socket.url))
    fill(visit)
    visit.page.get_by_label("Model", exact=True).select_option(model)
    state = write(visit)
    [shown] = state["shown"]
    assert shown["model"] == model and shown["written"] == answer(model)
    assert state["live"]["history"][-1]["original"] == answer(model)
    assert sockets == [f"{site.origin.replace('http', 'ws')}/live?token="]
    clean(visit, site)


def test_the_film_grows_while_the_model_writes(site: Site, open_page: Callable[..., Visit]) -> None:
    visit = open_page(site.url)
    fill(visit)
    with gated(lens("tiny-mdm").model) as gate:
        visit.page.get_by_role("button", name="Write").click()
        for passes in range(1, 4):
            gate.let(1)
            until(visit, lambda state, n=passes: f"step {n} of 8" in state["live"]["status"])
            assert gate.count == passes and visit.state()["live"]["running"]
        visit.page.get_by_role("button", name="Stop").click()
        until(visit, lambda state: not state["live"]["running"])
        gate.let(8)
        end = time.monotonic() + 60
        while site.explorer.queue and time.monotonic() < end:
            time.sleep(0.01)
        assert gate.count == 4  # the pass that had begun was the last
    clean(visit, site)


def test_an_intervention_is_shown_beside_the_original(site: Site, open_page: Callable[..., Visit]) -> None:
    visit = open_page(site.url)
    fill(visit)
    visit.page.get_by_label("mask-positions", exact=True).check()
    visit.page.get_by_label("Settings of mask-positions").fill(SPEC)
    visit.page.get_by_label("Settings of mask-positions").press("Tab")
    state = write(visit)
    original, changed = (shown["written"] for shown in state["shown"])
    assert (original, changed) == (answer("tiny-mdm"), answer("tiny-mdm", SPEC))
    assert state["live"]["history"][-1]["changed"] == changed
    cells = visit.page.get_by_label("Answers so far").locator("tbody tr").first.locator("td").all_inner_texts()
    assert cells[2:] == [original or "–", changed or "–"]
    visit.page.get_by_label("mask-positions", exact=True).uncheck()
    state = write(visit)
    assert [shown["written"] for shown in state["shown"]] == [original]
    clean(visit, site)


def test_another_model_is_asked_beside_the_first(site: Site, open_page: Callable[..., Visit]) -> None:
    visit = open_page(site.url)
    visit.page.get_by_label("Second model").select_option("tiny-arm")
    state = write(visit)  # the example that the page starts with
    example = state["live"]["form"]
    for shown, model in zip(state["shown"], MODELS, strict=True):
        places = [place for place, passage in enumerate(example["passages"]) if passage["gold"]]
        passages = [Passage(passage["text"], passage["title"]) for passage in example["passages"]]
        prompt = lens(model).prompt(example["question"], passages, gold=places)
        wrote = lens(model).generate(prompt, max_new_tokens=int(example["tokens"])).text
        assert (shown["model"], shown["written"]) == (model, wrote)
    assert [entry["model"] for entry in state["live"]["history"]] == list(MODELS)
    assert state["step"] == 15  # at the end of the first film
    clean(visit, site)


def test_the_gold_passage_can_be_moved(site: Site, open_page: Callable[..., Visit]) -> None:
    visit = open_page(site.url)
    fill(visit)
    write(visit)
    visit.page.get_by_label("Passage 2: move").press("Alt+ArrowUp")
    state = write(visit)
    assert [entry["gold"] for entry in state["live"]["history"]] == ["2", "1"]
    moved = lens("tiny-mdm").prompt(QUESTION, [PASSAGES[1], PASSAGES[0], PASSAGES[2]], gold=0)
    assert state["shown"][0]["written"] == lens("tiny-mdm").generate(moved, max_new_tokens=8).text
    visit.page.get_by_label("Passage 1: move").drag_to(visit.page.locator("[data-passage='2']"))
    assert [entry["gold"] for entry in write(visit)["live"]["history"]] == ["2", "1", "3"]
    clean(visit, site)


def test_a_wrong_intervention_is_one_sentence_in_the_page(site: Site, open_page: Callable[..., Visit]) -> None:
    visit = open_page(site.url)
    fill(visit)
    visit.page.get_by_label("soft-cap", exact=True).check()
    visit.page.get_by_label("Settings of soft-cap").fill("soft-cap(<script>alert(1)</script>)")
    visit.page.get_by_role("button", name="Write").click()
    state = until(visit, lambda state: state["live"]["error"] != "" and not state["live"]["running"])
    assert state["live"]["error"] == "cap '<script>alert(1)</script>' is not a number"
    assert visit.page.get_by_role("alert").inner_text() == state["live"]["error"]
    assert state["live"]["history"][-1]["changed"] == "failed"
    clean(visit, site)


def test_the_page_survives_a_reload(site: Site, open_page: Callable[..., Visit]) -> None:
    visit = open_page(site.url)
    fill(visit, "What was built by Tomas Vell?")
    write(visit)
    with gated(lens("tiny-mdm").model) as gate:
        visit.page.get_by_role("button", name="Write").click()
        gate.let(2)
        until(visit, lambda state: "step 2 of 8" in state["live"]["status"])
        running = site.explorer.queue[0]
        visit.page.reload()
        assert running.wait(60)
    assert visit.page.get_by_label("Question", exact=True).input_value() == "What was built by Tomas Vell?"
    assert write(visit)["shown"][0]["written"] == answer("tiny-mdm", question="What was built by Tomas Vell?")
    clean(visit, site)


def test_a_closed_tab_ends_its_run_and_no_other(site: Site, open_page: Callable[..., Visit]) -> None:
    closed, stays = open_page(site.url), open_page(site.url)
    fill(closed)
    fill(stays)
    with gated(lens("tiny-mdm").model) as gate:
        closed.page.get_by_role("button", name="Write").click()
        gate.let(2)
        until(closed, lambda state: "step 2 of 8" in state["live"]["status"])
        running = site.explorer.queue[0]
        closed.page.close()
        assert running.wait(60)
        stays.page.get_by_role("button", name="Write").click()
        gate.let(1 + 8)
        state = until(stays, lambda state: state["live"]["status"] == "Done.")
        assert gate.count == 2 + 1 + 8  # the pass that had begun, and the other page's own
    assert state["shown"][0]["written"] == answer("tiny-mdm")
    clean(stays, site)


def test_the_attention_of_a_token_comes_on_demand(site: Site, open_page: Callable[..., Visit]) -> None:
    visit = open_page(site.url)
    fill(visit)
    write(visit)
    visit.set(step=3, layer=2, pin={"panel": 0, "position": 20}, direction="from")
    state = until(visit, lambda state: state["shown"][0]["attention"] is not None)
    prompt = lens("tiny-mdm").prompt(QUESTION, PASSAGES, gold=1)
    trace = lens("tiny-mdm").trace(prompt, max_new_tokens=8, matrices=["attention_mean"], record=["received"])
    wanted = trace.data["attention_mean"].values[3, 2, 20]
    assert state["shown"][0]["attention"] == pytest.approx(wanted.tolist(), abs=2e-3)
    clean(visit, site)


def test_recorded_runs_are_shown_side_by_side(site: Site, open_page: Callable[..., Visit], tmp_path: Path) -> None:
    visit = open_page(site.url)
    assert [shown["model"] for shown in visit.state()["shown"]] == list(MODELS)
    chooser = visit.page.get_by_label("Recorded question")
    assert chooser.locator("option").all_inner_texts()[1:] in (["Which <b>mill</b>?"], [tiny("tiny-mdm").question])
    chooser.select_option(index=1)
    until(visit, lambda state: state["live"]["status"] == "" and len(state["shown"]) == 2)
    clean(visit, site)


VIEW = ("films", "step", "layer", "head", "rule", "colour", "pin", "direction")


@pytest.fixture(scope="module")
def intervened(site: Site, browser: Any) -> Iterator[Visit]:
    """A page on which a question was asked with an intervention and without, at some step, layer, head and token."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, **CLIPBOARD)
    visit = Visit(context.new_page())
    visit.page.goto(site.url)
    fill(visit)
    visit.page.get_by_label("Seed").fill("3")
    visit.page.get_by_label("mask-positions", exact=True).check()
    visit.page.get_by_label("Settings of mask-positions").fill(SPEC)
    visit.page.get_by_label("Settings of mask-positions").press("Tab")
    write(visit)
    visit.set(step=4, layer=1, head=2, pin={"panel": 1, "position": 21}, rule="top(n=1)", colour="region")
    yield visit
    context.close()


def signed_in(link: str, site: Site) -> str:
    """The link as a browser needs it that has no cookie of the server yet."""
    return link.replace(f"{site.origin}/#", f"{site.url}#")


def test_a_link_asks_again_and_opens_the_same_view(
    site: Site, intervened: Visit, open_page: Callable[..., Visit]
) -> None:
    before = intervened.state()
    link = intervened.copied("Copy link")
    assert link.startswith(f"{site.origin}/#"), "the token stays in the cookie"
    visit = open_page(signed_in(link, site))
    after = until(visit, lambda state: state["pin"] is not None)
    assert {name: after[name] for name in VIEW} == {name: before[name] for name in VIEW}
    assert after["shown"] == before["shown"]
    assert after["live"]["form"] == before["live"]["form"] | {"steps": "8", "block": "8"}
    clean(visit, site)


def test_a_link_opens_a_recorded_question(site: Site, open_page: Callable[..., Visit]) -> None:
    visit = open_page(site.url, **CLIPBOARD)
    visit.page.get_by_label("Recorded question").select_option("second")
    until(visit, lambda state: state["live"]["status"] == "")
    before = visit.set(films=[1], step=0, layer=2, pin={"panel": 0, "position": 9})
    other = open_page(signed_in(visit.copied("Copy link"), site))
    after = until(other, lambda state: state["pin"] is not None)
    assert {name: after[name] for name in VIEW} == {name: before[name] for name in VIEW}
    assert other.page.get_by_role("heading", level=2).inner_text() == "Which <b>mill</b>?"
    assert other.page.get_by_label("Recorded question").input_value() == "second"
    assert after["live"]["history"] == [], "nothing was run"
    clean(other, site)


def test_a_link_to_a_model_that_is_not_served_says_so(site: Site, open_page: Callable[..., Visit]) -> None:
    visit = open_page(f"{site.url}#explorer=explorer&model=other&question=Who%3F&max-new-tokens=4&step=1")
    alert = visit.page.locator(".main").get_by_role("alert")
    assert alert.inner_text() == "The link is for the model other, which is not served here."
    assert not visit.state()["live"]["running"]


def test_the_code_that_is_copied_makes_the_same_films(intervened: Visit, tmp_path: Path, monkeypatch: Any) -> None:
    prompt = lens("tiny-mdm").prompt(QUESTION, PASSAGES, gold=1)
    traces = [lens("tiny-mdm").trace(prompt, max_new_tokens=8)]
    with lens("tiny-mdm").intervene(SPEC):
        traces.append(lens("tiny-mdm").trace(prompt, max_new_tokens=8))
    found: dict[str, Any] = {}
    exec(intervened.copied("Copy as Python").replace("first.explore", "view = first.explore"), found)
    assert dict(found["view"].state)["pin"] == {"panel": 1, "position": 21}
    *commands, explore = intervened.copied("Copy as command").strip().splitlines()
    assert explore == "floatlens explore runs"
    monkeypatch.chdir(tmp_path)
    for command in commands:
        run(*shlex.split(command)[1:])
    for number, (name, trace) in enumerate(zip(("first", "second"), traces, strict=True), start=1):
        [(_, path)] = RunFolder.open(tmp_path / "runs" / str(number)).samples()
        for made in (found[name], Trace.open(path)):
            assert made.data.attrs["seed"] == 3 and made.gold == trace.gold and made.answer == trace.answer
            assert made.data.attrs["interventions"] == trace.data.attrs["interventions"]
            np.testing.assert_array_equal(made.data["tokens"], trace.data["tokens"])
            np.testing.assert_allclose(made.data["received"], trace.data["received"], rtol=1e-3, atol=1e-6)  # float16


def test_a_film_that_was_just_written_is_saved_without_the_token(
    intervened: Visit, open_page: Callable[..., Visit], tmp_path: Path
) -> None:
    before = intervened.state()
    with intervened.page.expect_download() as download:
        intervened.export("Save as HTML")
    download.value.save_as(tmp_path / "film.html")
    visit = open_page((tmp_path / "film.html").as_uri())
    assert visit.state()["shown"] == before["shown"] and visit.requests == [(tmp_path / "film.html").as_uri()]
    text = (tmp_path / "film.html").read_text()
    assert asset() in text and "token=token" not in text and visit.errors == []


def test_the_traces_of_films_are_saved(intervened: Visit, tmp_path: Path) -> None:
    found: list[Any] = []
    intervened.page.on("download", lambda download: found.append(download))
    assert intervened.export("Save trace (Zarr)").count("Saved floatlens-tiny-mdm") == 2
    end = time.monotonic() + 30
    while len(found) < 2 and time.monotonic() < end:
        intervened.page.wait_for_timeout(30)
    traces = []
    for number, download in enumerate(found):
        with zipfile.ZipFile(download.path()) as archive:
            archive.extractall(tmp_path / str(number))
        traces.append(Trace.open(tmp_path / str(number) / "trace"))
    assert [json.loads(trace.data.attrs["interventions"]) for trace in traces] == [[], [SPEC]]
    assert [trace.answer for trace in traces] == [answer("tiny-mdm"), answer("tiny-mdm", SPEC)]


def test_the_page_can_ask_nobody_else(site: Site, open_page: Callable[..., Visit]) -> None:
    visit = open_page(site.url)
    blocked = visit.page.evaluate(
        """() => new Promise(done => {
            const found = [];
            document.addEventListener("securitypolicyviolation", event => {
                found.push(event.effectiveDirective);
                if (found.length === 4) done(found.sort());
            });
            const add = (name, set) => document.body.append(Object.assign(document.createElement(name), set));
            add("img", { src: "http://192.0.2.1/x.png" });
            add("script", { textContent: "window.ran = true" });
            add("iframe", { src: "http://192.0.2.1/" });
            fetch("http://192.0.2.1/").catch(() => null);
        })"""
    )
    assert blocked == ["connect-src", "frame-src", "img-src", "script-src-elem"]
    assert visit.page.evaluate("window.ran") is None
