"""Live runs: steps are sent as they happen, one run at a time, and a run stops when its page disconnects."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from floatlens.data.template import parse
from floatlens.explorer.film import film
from floatlens.explorer.guard import HEADER
from floatlens.explorer.messages import Limits
from tests.explorer.app_client import PASSAGES, QUESTION, TOKEN, app_of, client, connected, gated, lens
from tests.explorer.traces import unpacked

MODELS = ("tiny-mdm", "tiny-dream", "tiny-arm")


@pytest.fixture(scope="module")
def app() -> Any:
    return app_of(*MODELS)


@pytest.fixture
def to(app: Any) -> TestClient:
    return client(app)


def wait_until(true: Callable[[], bool]) -> None:
    """For what another thread does; a minute is the end of patience, not a measure."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def nothing_is_left(app: Any) -> Iterator[None]:
    """After every test the worker is idle and each model is as it was loaded."""
    yield
    wait_until(lambda: not app.state.explorer.queue)
    for name in MODELS:
        if "model" in lens(name).__dict__:
            assert lens(name).model.config._attn_implementation != "floatlens"


def assert_same_film(made: dict[str, Any], expected: dict[str, Any]) -> None:
    """A live run also computes matrices, by another kernel: floats are equal to rounding, everything else exactly."""
    assert set(made) == set(expected)
    for name, value in expected.items():
        if isinstance(value, dict) and value.get("dtype") == "float16":
            np.testing.assert_allclose(unpacked(made[name]), unpacked(value), rtol=2e-3, atol=1e-6, err_msg=name)
        else:
            assert made[name] == value, name


@pytest.mark.parametrize("model", MODELS)
def test_a_run_is_its_steps_and_then_its_film(to: TestClient, model: str) -> None:
    with connected(to) as page:
        page.ask(3, model, seed=5)
        heard = page.until("done", 3)
    assert [m["type"] for m in heard[:2]] == ["queued", "start"] and {m["id"] for m in heard} == {3}
    header, steps, made = heard[1]["film"], heard[2:-1], heard[-1]["film"]
    prompt = lens(model).prompt(QUESTION, [p["text"] for p in PASSAGES], gold=1)
    trace = lens(model).trace(prompt, max_new_tokens=6, seed=5, sample_id="3", record=["received"])
    assert_same_film(made, film(trace))
    assert header["regions"] == [r for r in made["regions"] if r["name"] != "answer"] + [header["regions"][-1]]
    assert header["gold"] == made["gold"] == ["doc2"] and header["layers"] == made["layers"]
    T, N = len(made["committed_at"]), header["length"]
    assert header["kinds"][: made["prompt_length"]] == made["kinds"][: made["prompt_length"]]
    tokens, received = unpacked(made["tokens"]), unpacked(made["received"])
    spelling = dict(header["vocabulary"])
    for index, step in enumerate(steps):
        assert step["type"] == "step" and step["index"] == index
        assert len(step["tokens"]) == len(step["after"]) == len(step["confidence"]) == N
        assert step["tokens"][:T] == tokens[index].tolist()
        np.testing.assert_array_equal(unpacked(step["received"])[:, :T], received[index])
        for rule, flags in step["anchors"].items():
            mine = np.unpackbits(unpacked(flags), axis=-1, bitorder="little")[:, :T]
            whole = np.unpackbits(unpacked(made["anchors"][rule])[index], axis=-1, bitorder="little")[:, :T]
            np.testing.assert_array_equal(mine, whole)
        spelling |= step["vocabulary"]
        assert {str(i) for i in (*step["tokens"], *step["after"]) if i >= 0} <= set(spelling)
    assert len(steps) == len(made["steps"]) and steps[-1]["after"][:T] == tokens[-1].tolist()
    assert {i: spelling[i] for i in made["vocabulary"]} == made["vocabulary"]


def test_questions_are_asked_with_the_template_of_the_command(app: Any) -> None:
    template = parse("{passages}\n\nQ: {question}")
    with connected(client(app_of("tiny-mdm", template=template))) as page:
        page.ask(seed=5)
        made = page.until("done")[-1]["film"]
    prompt = lens("tiny-mdm").prompt(QUESTION, [p["text"] for p in PASSAGES], gold=1, template=template)
    trace = lens("tiny-mdm").trace(prompt, max_new_tokens=6, seed=5, sample_id="1", record=["received"])
    assert_same_film(made, film(trace))


def test_steps_arrive_while_the_run_goes_on(to: TestClient) -> None:
    with gated(lens("tiny-mdm").model) as gate, connected(to) as page:
        page.ask()
        for index in range(3):
            gate.let(1)
            assert page.until("step")[-1]["index"] == index
            assert gate.count == index + 1
        gate.let(3)
        page.until("done")
        assert gate.count == 6


def test_the_server_answers_other_requests_while_a_run_is_under_way(to: TestClient) -> None:
    with gated(lens("tiny-mdm").model) as gate, connected(to) as page, connected(to) as other:
        page.ask()
        gate.let(1)
        page.until("step")
        for path in ("/", "/assets/explorer.js", "/api/store"):  # while the model waits inside its second pass
            assert to.get(path, headers={HEADER: TOKEN}).status_code == 200
        for each in (page, other):
            each.socket.send_text("nonsense")
            assert each.hear()["type"] == "error"
        assert gate.count == 1
        gate.let(5)
        page.until("done")


def test_stop_ends_a_run_before_its_next_step(to: TestClient) -> None:
    with gated(lens("tiny-mdm").model) as gate, connected(to) as page:
        page.ask(max_new_tokens=64)
        gate.let(2)
        page.until("step"), page.until("step")
        page.say(type="stop", id=1)
        page.ask(2, "tiny-arm")  # answered after the stop was heard, for messages are heard in order
        page.until("queued", 2)
        gate.let(60)
        page.until("stopped")
        page.until("done", 2)
        assert gate.count == 3  # the pass that had begun was the last


def test_a_page_that_goes_takes_its_runs_with_it(app: Any, to: TestClient) -> None:
    queue = app.state.explorer.queue
    with gated(lens("tiny-mdm").model) as gate:
        with connected(to) as page:
            page.ask(1, max_new_tokens=64)
            page.ask(2, max_new_tokens=64)
            gate.let(2)
            page.until("step"), page.until("step")
            stop = queue[0]
        wait_until(stop.is_set)
        gate.let(1_000)
        wait_until(lambda: not queue)
        assert gate.count == 3
    assert not app.state.explorer.kept.values


def test_several_pages_have_their_own_runs_in_turn(to: TestClient) -> None:
    with gated(lens("tiny-mdm").model) as gate, connected(to) as one, connected(to) as two, connected(to) as three:
        one.ask(1)
        assert one.hear()["ahead"] == 0
        two.ask(1, question="What was built by Tomas Vell?")
        assert two.hear()["ahead"] == 1
        three.ask(1, "tiny-arm")
        assert three.hear()["ahead"] == 2
        gate.let(6)
        first = one.until("done")
        assert gate.count == 6  # nobody else has begun
        gate.let(6)
        second, third = two.until("done"), three.until("done")
    assert first[-1]["film"]["question"] != second[-1]["film"]["question"]
    assert third[-1]["film"]["model"] == "tiny-arm"


def test_one_page_leaves_and_the_others_stay(to: TestClient) -> None:
    with gated(lens("tiny-mdm").model) as gate, connected(to) as stays:
        with connected(to) as goes:
            goes.ask(1, max_new_tokens=64)
            gate.let(1)
            goes.until("step")
            stays.ask(7)
        gate.let(7)
        stays.until("done", 7)
        assert gate.count == 8


def test_the_queue_has_an_end() -> None:
    to = client(app_of("tiny-mdm", limits=Limits(waiting=2, waiting_each=3)))
    with gated(lens("tiny-mdm").model) as gate, connected(to) as page, connected(to) as other:
        page.ask(1)
        gate.let(1)
        page.until("step")
        page.ask(2), page.ask(3)
        assert [page.hear()["type"], page.hear()["type"]] == ["queued", "queued"]
        page.ask(4)
        assert "3 runs of this page" in page.hear()["message"]
        page.ask(2)
        assert "run 2 is already running" in page.hear()["message"]
        other.ask(1)
        assert "2 runs are already queued" in other.hear()["message"]
        page.say(type="stop", id=2)
        gate.let(100)
        page.until("done", 1), page.until("stopped", 2), page.until("done", 3)
        other.ask(1)
        other.until("done", 1)


def test_too_many_pages_are_refused() -> None:
    from starlette.websockets import WebSocketDisconnect

    with client(app_of("tiny-mdm", limits=Limits(connections=1))) as to:
        with connected(to), pytest.raises(WebSocketDisconnect), connected(to):
            pass
        with connected(to):
            pass


def test_an_idle_page_is_let_go_and_a_busy_one_is_not() -> None:
    with client(app_of("tiny-mdm", limits=Limits(idle_seconds=0.05))) as to:
        with connected(to) as page:
            assert page.socket.receive()["code"] == 4000
        with gated(lens("tiny-mdm").model) as gate, connected(to) as page:
            page.ask(1)
            time.sleep(0.3)  # several times as long as an idle page has
            gate.let(6)
            page.until("done")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"model": "GSAI-ML/LLaDA-8B-Instruct"}, "is not served here; available: tiny-mdm, tiny-dream, tiny-arm"),
        ({"block_length": 5}, "block_length 5 does not divide max_new_tokens 6"),
        ({"max_new_tokens": 512}, "exceed the model's context of 512"),
        ({"interventions": ["dance(1)"]}, "dance"),
        ({"interventions": ["mask-anchors(layers=99)"]}, "99"),
    ],
)
def test_what_cannot_be_run_is_one_sentence_and_the_next_run_works(to: TestClient, asked: dict, said: str) -> None:
    with connected(to) as page:
        page.ask(1, **({"model": "tiny-mdm"} | asked))
        while (heard := page.hear())["type"] == "queued":
            pass
        assert heard["type"] == "error" and said in heard["message"] and "\n" not in heard["message"]
        page.ask(2)
        page.until("done", 2)


def test_a_failing_model_does_not_take_the_server_down(to: TestClient, capsys: pytest.CaptureFixture[str]) -> None:
    def breaks(*_: Any) -> None:
        raise ValueError("out of\nluck")

    handle = lens("tiny-mdm").model.register_forward_pre_hook(breaks)
    with connected(to) as page:
        page.ask(1)
        page.until("start")
        heard = page.hear()
        handle.remove()
        assert heard["type"] == "error" and "ValueError: out of luck" in heard["message"]
        page.ask(2)
        page.until("done", 2)
    assert "Traceback" in capsys.readouterr().err


def test_an_intervention_is_run_beside_the_original(to: TestClient) -> None:
    from floatlens.interventions.intervention import parse_intervention

    spec = str(parse_intervention("mask-positions(region=gold)"))
    with connected(to) as page:
        page.ask(1)
        page.ask(2, interventions=[spec])
        one, two = page.until("done", 1), page.until("done", 2)
        page.ask(3)
        three = page.until("done", 3)
    films = [heard[-1]["film"] for heard in (one, two, three)]
    start = next(m for m in two if m["type"] == "start")
    assert start["film"]["interventions"] == films[1]["interventions"] == [spec] and films[0]["interventions"] == []
    assert films[0]["received"] != films[1]["received"]
    assert films[0]["received"] == films[2]["received"]  # nothing of the intervention stays


@pytest.mark.parametrize("model", MODELS)
def test_the_attention_of_one_token_is_the_models(to: TestClient, model: str) -> None:
    with connected(to) as page:
        page.ask(1, model)
        made = page.until("done", 1)
        N = next(m for m in made if m["type"] == "start")["film"]["length"]
        prompt = lens(model).prompt(QUESTION, [p["text"] for p in PASSAGES], gold=1)
        trace = lens(model).trace(prompt, max_new_tokens=6, matrices=["attention_mean"], record=["received"])
        steps = trace.data.sizes["step"]
        for step, layer, position in ((0, 0, 3), (steps - 1, 2, 20), (steps - 1, None, 0)):
            ids = trace.data["tokens"].values[step]
            T = int((ids >= 0).sum())
            # of a cached model a step holds its own rows: the matrix is what the steps so far have put together
            matrix_SLTT = trace.data["attention_mean"].values[: step + 1]
            matrix_LTT = matrix_SLTT[-1] if trace.kind == "mdm" else np.nanmax(np.nan_to_num(matrix_SLTT), 0)
            matrix_TT = (matrix_LTT.mean(0) if layer is None else matrix_LTT[layer])[:T, :T]
            for direction, wanted_T in (("from", matrix_TT[position]), ("to", matrix_TT[:, position])):
                page.say(type="attention", id=1, step=step, layer=layer, position=position, direction=direction)
                heard = page.hear()
                assert heard["type"] == "attention" and heard["direction"] == direction and heard["step"] == step
                assert len(heard["values"]) == N and heard["values"][T:] == [None] * (N - T)
                np.testing.assert_allclose(heard["values"][:T], wanted_T, atol=1e-3)
        for wrong in ({"step": 99}, {"layer": 77}, {"position": 9_999}, {"id": 5}):
            page.say(
                **({"type": "attention", "id": 1, "step": 0, "layer": 0, "position": 0, "direction": "to"} | wrong)
            )
            heard = page.hear()
            assert heard["type"] == "error" and heard["position"] == wrong.get("position", 0)


def test_a_page_that_does_not_read_is_let_go() -> None:
    import asyncio

    from floatlens.data.template import DEFAULT
    from floatlens.explorer.connection import TOO_SLOW, Connection
    from floatlens.explorer.run_folders import RunFolders
    from floatlens.explorer.server import LiveExplorer

    class Deaf:
        """Asks nonsense without end, and never takes an answer."""

        closed: int | None = None

        async def receive(self) -> dict[str, str]:
            await asyncio.sleep(0)
            return {"type": "websocket.receive", "text": "nonsense"}

        async def send_text(self, text: str) -> None:
            await asyncio.Event().wait()

        async def close(self, code: int, reason: str) -> None:
            self.closed = code

    async def talk(socket: Any) -> Connection:
        connection = Connection(socket, LiveExplorer([], RunFolders([]), DEFAULT, Limits(unsent=10)))
        await asyncio.wait_for(connection.talk(), 60)
        return connection

    deaf = Deaf()
    connection = asyncio.run(talk(deaf))
    assert deaf.closed == TOO_SLOW and connection.unsent.qsize() == 10
