"""floatlens explore, as a user runs it: the address it prints, how it ends, how it refuses."""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import floatlens
from floatlens.cli import explore
from floatlens.explorer import server as serve
from floatlens.explorer.guard import HEADER, LOOPBACK
from floatlens.explorer.run_folders import runs_in
from floatlens.models.bundled import ADAPTERS
from floatlens.options import Load
from tests.commands import run
from tests.explorer.traces import tiny

ADDRESS = re.compile(r"http://(\S+?):(\d+)/\?token=([\w-]{40,})")
ENVIRONMENT = {"PYTHONPATH": str(Path(floatlens.__file__).parents[1]), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def first_film(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An empty cache, and films of a tiny model instead of those of SmolLM2; returns which models made one."""
    made: list[str] = []

    def make(lens: Any, watch: Any) -> list[floatlens.Trace]:
        made.append(lens.name)
        return [floatlens.Trace(tiny("tiny-mdm").data.assign_attrs(sample_id=name)) for name in ("without", "with")]

    monkeypatch.setenv("FLOATLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("floatlens.studies.texts.make_switch", make)
    return made


def fill_cache() -> list[Path]:
    return explore.add_switch([SimpleNamespace(name="tiny-mdm"), SimpleNamespace(name="smollm2-mdm")], [])


@contextmanager
def exploring(*words: object, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The program, started in a folder; and the address that it printed."""
    program = subprocess.Popen(
        [sys.executable, "-m", "floatlens", "explore", "--no-browser", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | ENVIRONMENT,
        start_new_session=True,
        cwd=folder,
    )
    try:
        assert program.stdout is not None
        shown = ""
        while not (found := ADDRESS.search(shown)):
            line = program.stdout.readline()
            assert line, program.communicate()[1]
            shown += line
        yield program, found[0]
    finally:
        if program.poll() is None:
            program.kill()
        program.communicate()


def test_it_prints_one_address_that_works_and_ends_quietly(first_film: list[str], tmp_path: Path) -> None:
    fill_cache()
    with exploring(folder=tmp_path) as (program, address):
        bare, _, token = address.partition("?token=")
        with urllib.request.urlopen(urllib.request.Request(bare, headers={HEADER: token}), timeout=60) as answer:
            page = answer.read().decode()
        assert all(f'"name": "{name}"' in page for name in ("tiny-mdm", "tiny-dream", "tiny-arm"))
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(address.partition("?")[0], timeout=60)
        assert refused.value.code == 403
        program.send_signal(signal.SIGINT)
        rest, errors = program.communicate(timeout=60)
    assert program.returncode == 0 and errors == ""
    assert rest.split("\n")[-2:] == ["The explorer has ended.", ""] and "token" not in rest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere",), "unknown model 'nowhere'; use a folder"),
        (("--device", "cuda:99"), "--device cuda:99 cannot be used on this machine"),
        (("--port", 99999), "--port 99999 is not a port"),
        (("--host", "192.0.2.1"), "cannot listen on 192.0.2.1"),
        (("--host", "no such name"), "cannot listen on no such name"),
    ],
)
def test_what_a_user_can_mend_is_one_sentence(words: tuple, said: str) -> None:
    done = run("explore", "--no-browser", *words, code=2)
    assert said in done.stderr and done.stderr.count("\n") == 1 and done.stdout == ""


def test_a_port_that_is_taken_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run("explore", "--no-browser", "--port", taken.getsockname()[1], code=2)
    assert "--port 0" in done.stderr and done.stderr.count("\n") == 1


def test_without_its_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith(("starlette", "floatlens.explorer"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette", None)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    assert "pip install 'floatlens[explore]'" in run("explore", "--no-browser", code=2).stderr


@pytest.mark.parametrize("installed", [True, False])
def test_smollm2_and_its_twins_are_offered_where_they_are_installed(
    monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("floatlens.models.bundled.find_spec", lambda name: object() if installed else None)
    monkeypatch.setattr("floatlens.lens.Lens.find", lambda name, loading: asked.append(name))
    monkeypatch.setattr("floatlens.lens.limit_threads", lambda lens: lens)
    explore.open_lenses_and_runs([], Load())
    assert asked == [*explore.MODELS, *(["smollm2", *ADAPTERS] if installed else [])]


def test_the_first_film_is_made_once_and_comes_before_other_runs(
    first_film: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [path] = fill_cache()
    assert first_film == ["smollm2-mdm"] and "once; it is kept in" in capsys.readouterr().err
    assert path.is_relative_to(tmp_path / "cache") and runs_in(path) == [path]
    mine, lenses = tmp_path / "mine", [SimpleNamespace(name="smollm2-mdm")]
    assert explore.add_switch(lenses, [mine]) == [path, mine]
    assert first_film == ["smollm2-mdm"] and capsys.readouterr().err == ""
    assert explore.add_switch(lenses, [tmp_path / "switch", mine])[0] == tmp_path / "switch", "a demo has its own"
    assert explore.add_switch([SimpleNamespace(name="tiny-mdm")], [mine]) == [mine], "no weights of SmolLM2"


def test_a_first_film_that_cannot_be_kept_is_a_note(first_film: list[str], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with redirect_stderr(io.StringIO()) as said:
        assert fill_cache() == []
    assert "the first film cannot be made" in said.getvalue()


def test_others_are_let_in_only_when_told_and_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served = []
    monkeypatch.setattr(serve, "run", lambda app, bound, limits: served.append(bound.getsockname()[0]))
    done = run("explore", "tiny-mdm", "--no-browser")
    assert done.stderr == "" and ADDRESS.search(done.stdout)[1] == "127.0.0.1"  # type: ignore[index]
    done = run("explore", "tiny-mdm", "--no-browser", "--host", "0.0.0.0")
    assert "warning: --host 0.0.0.0 allows everyone to connect" in done.stderr and done.stderr.count("\n") == 1
    assert ADDRESS.search(done.stdout)[1] == socket.gethostname()  # type: ignore[index]
    assert served == ["127.0.0.1", "0.0.0.0"]


def test_the_browser_is_started_with_a_private_file_and_not_with_the_ticket(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(serve.webbrowser, "open", opened.append)
    monkeypatch.setattr(
        serve.threading, "Thread", lambda target, args, daemon: SimpleNamespace(start=lambda: target(*args))
    )
    serve.open_browser("http://127.0.0.1:1/?ticket=secret&a=b")
    path = Path(urllib.request.url2pathname(opened[0].removeprefix("file://")))
    assert "secret" not in opened[0] and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert 'url=http://127.0.0.1:1/?ticket=secret&amp;a=b"' in path.read_text()


def test_names_of_a_loopback_server_are_loopback_names() -> None:
    with serve.bind("localhost", 0) as bound:
        assert serve.is_loopback(bound)
        assert serve.names("localhost", bound) == {"hosts": {*LOOPBACK}, "any_address": False}
