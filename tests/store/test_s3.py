"""Runs at s3://, with the real client (s3fs) and a real server on this machine (moto's): `sh tests/store/s3.sh`.

Nothing is started when this file is imported.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from floatlens.cli import main
from floatlens.errors import FloatLensError
from floatlens.store.diff import compare, results_differ
from floatlens.store.folder import Result, RunFolder
from floatlens.store.lock import read_holder
from floatlens.store.storage import Storage
from tests.store.conftest import QUESTIONS, TRACED, Undisturbed, Words
from tests.store.faulty_proxy import FaultyProxy
from tests.store.fork_server import ROOT, ForkServer

MISSING = [name for name in ("s3fs", "moto", "flask") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"THE OBJECT STORE IS NOT TESTED: no {', '.join(MISSING)}; run sh tests/store/s3.sh"
)
ASKED: dict[str, Any] = {"asked": {}}
SAMPLES = 2000


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultyProxy]:
    """A proxy in front of an S3 server; the environment leads clients of this process and of its children to it."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    made = FaultyProxy(server.get_host_and_port()[1])
    settings = {
        "AWS_ENDPOINT_URL": made.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with pytest.MonkeyPatch.context() as environment:
        for name, value in settings.items():
            environment.setenv(name, value)
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir("runs")
        yield made
        s3fs.S3FileSystem.clear_instance_cache()
    made.close()
    server.stop()


@pytest.fixture
def location(proxy: FaultyProxy) -> Iterator[str]:
    """A place for a run; whatever was wrong with the proxy is over afterwards."""
    yield f"s3://runs/{uuid.uuid4().hex}/run"
    proxy.fault = lambda method, path: None


def child(code: str) -> subprocess.Popen[str]:
    """A process of its own that runs some lines with RunFolder."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    code = f"import time\nfrom floatlens.store.folder import RunFolder\n{code}"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


# --- create and resume ------------------------------------------------------------------------------------------------


def test_a_run_in_a_bucket_has_the_results_of_one_on_disk(
    words: Words, undisturbed: Undisturbed, location: str
) -> None:
    line = [str(word) for word in (*words["trace"], "--out", location)]
    assert main.run(line) == 0
    run = RunFolder.open(location)
    found = compare(RunFolder.open(undisturbed["trace"]), run)
    assert not found["settings"] and not results_differ(found) and found["same"] == TRACED
    assert not run.storage.exists("lock") and len(run.samples()) == TRACED
    assert main.run(line) == 2 and main.run([*line, "--resume"]) == 0
    run.close()


def test_an_evaluation_that_is_killed_resumes_to_the_same_results(
    proxy: FaultyProxy, words: Words, undisturbed: Undisturbed, location: str, tmp_path: Path
) -> None:
    fork_server, storage = ForkServer(), Storage(location)  # a process that knows the server's address
    pid = fork_server.start((*words["eval"], "--out", location), tmp_path / "err")
    deadline = time.monotonic() + 300
    while len(storage.names("results")) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    assert fork_server.wait(pid) == -signal.SIGKILL, (tmp_path / "err").read_text()
    before = len(storage.names("results"))
    assert 0 < before < 2 * QUESTIONS and storage.exists("lock")
    code = fork_server.run(*words["eval"], "--out", location, "--resume", errors=tmp_path / "err")
    fork_server.close()
    assert code == 0, (tmp_path / "err").read_text()
    found = compare(RunFolder.open(undisturbed["eval"]), RunFolder.open(location))
    assert not found["settings"] and not results_differ(found) and found["same"] == 2 * QUESTIONS
    assert not storage.exists("lock") and storage.exists("answers.parquet")


@pytest.mark.timeout(1800)  # a minute of work, on a machine that may be busy
def test_a_study_that_is_killed_resumes_to_the_same_claims(
    proxy: FaultyProxy, words: Words, undisturbed: Undisturbed, location: str, tmp_path: Path
) -> None:
    fork_server, storage = ForkServer(), Storage(location)
    pid = fork_server.start((*words["study"], "--out", location), tmp_path / "err")
    deadline = time.monotonic() + 300
    while sum("/results/" in name for name in storage.names("models")) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    assert fork_server.wait(pid) == -signal.SIGKILL, (tmp_path / "err").read_text()
    assert not storage.exists("claims.json")
    code = fork_server.run(*words["study"], "--out", location, "--resume", errors=tmp_path / "err")
    fork_server.close()
    assert code == 0, (tmp_path / "err").read_text()
    assert storage.read("claims.json") == (undisturbed["study"] / "claims.json").read_bytes()
    assert storage.exists("report.html") and not storage.exists("lock")


def test_a_bucket_that_does_not_exist_is_not_created(proxy: FaultyProxy) -> None:
    with pytest.raises(FloatLensError, match="the bucket of s3://nowhere/run does not exist"):
        RunFolder.create("s3://nowhere/run", ASKED)


# --- two writers ------------------------------------------------------------------------------------------------------


def test_a_second_writer_is_refused_until_the_first_is_dead(location: str) -> None:
    holder = child(f"RunFolder.create({location!r}, {ASKED!r}); print('held', flush=True); time.sleep(300)")
    assert line_of(holder) == "held"
    with pytest.raises(FloatLensError, match=f"is in use by process {holder.pid} on "):
        RunFolder.create(location, ASKED, resume=True)
    holder.kill()
    holder.wait()
    with RunFolder.create(location, ASKED, resume=True) as run:
        run.put(("a",), {})
    assert not Storage(location).exists("lock")


def test_the_server_lets_one_of_many_create_a_file(location: str) -> None:
    together = threading.Barrier(8)

    def create(number: int) -> bool:
        storage = Storage(location)
        together.wait()
        try:
            storage.write("lock", str(number).encode(), new=True)
            return True
        except FileExistsError:
            return False

    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(create, range(8)))
    assert sum(created) == 1
    assert Storage(location).read("lock") == str(created.index(True)).encode()


def test_a_run_that_was_replaced_while_it_was_stopped_writes_nothing_more(location: str) -> None:
    code = f"""
run = RunFolder.create({location!r}, {ASKED!r})
print("held", flush=True)
while not run.storage.exists("go"):
    time.sleep(0.05)
try:
    run.put(("late",), {{}})
except Exception as error:
    print(error, flush=True)
"""
    first = child(code)
    assert line_of(first) == "held"
    os.kill(first.pid, signal.SIGSTOP)
    storage = Storage(location)
    storage.write("lock", b'{"pid": 1, "machine": "elsewhere", "nonce": "of another run"}')
    storage.write("go", b"")
    os.kill(first.pid, signal.SIGCONT)
    assert "no longer held by this run but by process 1 on another machine" in line_of(first)
    first.wait()
    assert RunFolder.open(location).results() == [] and read_holder(storage)["nonce"] == "of another run"


# --- requests that fail or are slow -----------------------------------------------------------------------------------


def test_requests_that_fail_now_and_then_cost_nothing(proxy: FaultyProxy, location: str) -> None:
    count = 0

    def every_third(method: str, path: str) -> str | None:
        nonlocal count
        count += 1
        return "refuse" if count % 3 == 0 else None

    proxy.fault = every_third
    with RunFolder.create(location, ASKED) as run:
        for number in range(10):
            run.put((str(number),), {"square": number**2})
        run.finish()
    assert {int(r.key[0]): r.value["square"] for r in RunFolder.open(location).results()} == {
        n: n**2 for n in range(10)
    }
    assert count > 30


def test_an_answer_that_is_lost_does_not_lock_a_run_out_of_its_own_folder(proxy: FaultyProxy, location: str) -> None:
    lost: list[str] = []

    def lose_first(method: str, path: str) -> str | None:
        if method == "PUT" and path.endswith("/lock") and not lost:
            lost.append(path)
            return "lose"
        return None

    proxy.fault = lose_first
    RunFolder.create(location, ASKED).close()
    assert lost and not Storage(location).exists("lock")


def test_a_server_that_goes_on_failing_ends_the_run_with_a_sentence_and_it_resumes(
    proxy: FaultyProxy, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 2)
    with RunFolder.create(location, ASKED) as run:
        run.put(("a",), {})
        proxy.fault = lambda method, path: "refuse" if "/results/" in path else None
        with pytest.raises(FloatLensError, match="returned an error .*--resume"):
            run.put(("b",), {})
        proxy.fault = lambda method, path: None
    with RunFolder.create(location, ASKED, resume=True) as run:
        run.put(("b",), {})
        assert [result.key for result in run.results()] == [("a",), ("b",)]


def test_a_slow_request_is_waited_for_and_one_that_hangs_is_sent_again(
    proxy: FaultyProxy, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    monkeypatch.setattr(s3fs.S3FileSystem, "read_timeout", 2)
    s3fs.S3FileSystem.clear_instance_cache()
    waits = iter([0.5, 6.0])

    def wait(method: str, path: str) -> float | None:
        return next(waits, None) if method == "PUT" and "/results/" in path else None

    with RunFolder.create(location, ASKED) as run:
        proxy.fault = wait
        run.put(("slow",), {})
        run.put(("hangs",), {})
        assert next(waits, None) is None
        assert [result.key for result in run.results()] == [("hangs",), ("slow",)]
    s3fs.S3FileSystem.clear_instance_cache()


# --- many -------------------------------------------------------------------------------------------------------------


def test_two_thousand_samples_are_listed_in_a_few_requests(proxy: FaultyProxy, location: str) -> None:
    results = [Result((f"question {number}",), {"answer": str(number)}) for number in range(SAMPLES)]
    with RunFolder.create(location, ASKED) as run:
        run.storage.files.pipe({f"{run.storage.root}/{result.file}": result.to_bytes() for result in results})
        proxy.requests.clear()
        assert len(run.storage.names("results")) == SAMPLES
        assert sum(proxy.requests.values()) <= 5  # a page has a thousand keys
        found = run.results()
        assert len(found) == SAMPLES and {result.value["answer"] for result in found} == set(map(str, range(SAMPLES)))
