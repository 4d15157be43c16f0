"""Clients that leave, reads that are cut off, signals, and starts that must fail: what happens to the process and to others."""

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.e2e.serving import KVALET, Server, read, serving, system, user, words

pytestmark = pytest.mark.e2e
WAIT = 60
CANCELLED = '{end="cancelled"}'


def until(holds: Callable[[], bool]) -> None:
    """Waits for something that must become true."""
    deadline = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    with serving() as running:
        yield running


def busy(server: Server) -> bool:
    return any(slot["is_processing"] for slot in server.http.get("/slots").json())


def test_a_client_that_leaves_a_stream_stops_its_generation(own: Server) -> None:
    before = own.metric("kvalet_requests_total", CANCELLED)
    ask = {"messages": [user("Tell me everything.")], "max_tokens": 30_000, "stream": True, "ignore_eos": True}
    with own.http.stream("POST", "/v1/chat/completions", json=ask) as answer:
        next(answer.iter_lines())
    until(lambda: own.metric("kvalet_requests_total", CANCELLED) == before + 1)  # the engine may not even have begun
    until(lambda: not busy(own))


def test_a_client_that_leaves_a_whole_answer_stops_its_generation(own: Server) -> None:
    before = own.metric("kvalet_requests_total", CANCELLED)
    ask = {"messages": [user("Tell me everything.")], "max_tokens": 30_000, "ignore_eos": True}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{own.url}/v1/chat/completions", json=ask, timeout=1)
    until(lambda: own.metric("kvalet_requests_total", CANCELLED) == before + 1)  # the engine may not even have begun
    until(lambda: not busy(own))


def test_a_reading_cut_off_on_its_way_resumes_where_it_was(own: Server) -> None:
    messages = [system(words(9000, 50)), user("And?")]
    total = own.count(own.prompt(messages))
    ask = {"messages": messages, "max_tokens": 4, "stream": True}
    with own.http.stream("POST", "/v1/chat/completions", json=ask):
        until(lambda: any(slot["n_prompt_read"] > 0.6 * total for slot in own.http.get("/slots").json()))
    until(lambda: not busy(own))
    body = own.chat(messages)
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] >= 0.55 * total


def test_a_stream_opens_before_its_long_prompt_is_read(own: Server) -> None:
    ask = {"messages": [system(words(9000, 51)), user("And?")], "max_tokens": 1, "stream": True}
    with own.http.stream("POST", "/v1/chat/completions", json=ask) as answer:
        lines = answer.iter_lines()  # kept: httpx closes the connection when the iterator goes
        assert '"role":"assistant"' in next(lines)
        until(lambda: busy(own))  # the line may come before the engine has taken the request; reading takes a second and more


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_sigterm_ends_a_long_stream_with_an_error_event_and_the_process_with_code_0(path: str) -> None:
    with serving("--drain", "0.1") as server:
        ask = {"model": "default", "messages": [user(words(25_000, 52))], "max_tokens": 5_000, "stream": True}  # seconds to read
        with server.http.stream("POST", path, json=ask) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.process.terminate()
            last = [line for line in lines if line.startswith("data:")][-1]  # to the stream's own end: nothing is broken off
        error = json.loads(last.removeprefix("data:"))["error"]
        assert error["type"] == "unavailable_error" and "the server is closing" in error["message"]
        assert server.process.wait(20) == 0
        assert "Traceback" not in server.log


def test_a_short_answer_is_finished_after_sigterm() -> None:
    with serving() as server:
        ask = {"messages": [user("Tell me something.")], "max_tokens": 100, "stream": True, "ignore_eos": True}
        with server.http.stream("POST", "/v1/chat/completions", json=ask) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.process.terminate()
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert server.process.wait(20) == 0


def test_sigint_is_as_good_as_sigterm() -> None:
    with serving() as server:
        server.chat([user("hello")])
        assert server.stop(signal.SIGINT) == 0


def refused(*options: str) -> tuple[int, str]:
    """Exit code and stderr of a start that must fail."""
    done = subprocess.run([KVALET, "serve", *options], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


def test_a_port_in_use_is_one_clear_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, text = refused("--port", str(taken.getsockname()[1]))
    assert (code, text.count("\n")) == (2, 1)
    assert "choose another with --port" in text


@pytest.mark.parametrize(("model", "says"), [("/nowhere/x.gguf", "does not exist"), ("synthetic:huge", "huge")])
def test_a_model_that_is_not_there_is_one_clear_line(model: str, says: str) -> None:
    code, text = refused(model, "--port", "0")
    assert (code, text.count("\n")) == (1, 1), text
    assert says in text


def test_after_all_this_the_server_still_answers(own: Server) -> None:
    assert own.http.get("/health").json()["status"] == "ok"
    assert read(own.chat([user("still there?")])) > 0
