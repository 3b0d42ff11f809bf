"""A server that is unreachable, refuses or dies: every tier fails as ChatOpenAI does."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2
import openai
import pytest
from langchain_core.runnables import RunnableLambda

from langchain_weftline.model.failures import as_model
from langchain_weftline.model.transport import httpx as chat_openai_http
from tests.integrations.conftest import served, started
from tests.integrations.forks import Forked
from tests.integrations.tiers import (
    AGAIN,
    ASK,
    GIVEN,
    TEXT,
    TIERS,
    Chain,
    Way,
    chat_openai,
    chat_weftline,
    outcome,
    plainly,
    tiers,
)
from weftline.errors import (
    ConnectionFailed,
    EngineFailed,
    EngineUnavailable,
    Timeout,
    WeftlineError,
)

# A call of 10,000 tokens takes 500 s, and the server waits for it however slow the tests are.
SLOW = ("--null-mode", "fixed", "--null-step-s", "0.05", "--drain-s", "600")


@contextmanager
def away() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "http://127.0.0.1:1", {}


@contextmanager
def locked(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    (folder / "key").write_text("the-key\n")
    with served("--api-key-file", str(folder / "key")) as url:
        yield url, {"api_key": "another key"}


@contextmanager
def without_the_model() -> Iterator[tuple[str, dict[str, Any]]]:
    with served() as url:
        yield url, {"model": "nonesuch"}


@contextmanager
def full(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """A server that allows one session, which is open."""
    config = folder / "config.toml"
    config.write_text("[registry]\nmax_sessions = 1\n")
    with served("--config", str(config)) as url:
        httpx2.post(f"{url}/v1/session").raise_for_status()
        yield url, {}


@contextmanager
def draining() -> Iterator[tuple[str, dict[str, Any]]]:
    """A server that shuts down while it has one call left to finish."""
    with started(*SLOW) as (url, process):
        call = {
            "name": "long",
            "prompt": "{{output:out}}",
            "placeholders": [
                {"name": "out", "in_out": "out", "semantic_var_id": "out"}
                | {"sampling": {"max_tokens": 10_000}}
            ],
        }
        answer = httpx2.post(f"{url}/v1/submit", json={"calls": [call], "detach": True})
        answer.raise_for_status()
        process.send_signal(signal.SIGTERM)
        while httpx2.get(f"{url}/health/ready").status_code == 200:
            time.sleep(0.01)
        yield url, {}
        process.kill()


class _Foreign(BaseHTTPRequestHandler):
    """Answers every request with the server's own status, type and text."""

    def do_POST(self) -> None:
        status, kind, text = self.server.said  # type: ignore[attr-defined]
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@contextmanager
def foreign(status: int, kind: str, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Another server at this address, such as a proxy's page."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Foreign) as server:
        server.said = status, kind, text  # type: ignore[attr-defined]
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", {}
        server.shutdown()
        thread.join()


page = partial(foreign, 404, "text/html", "<h1>Not here</h1>")
gate = partial(
    foreign, 403, "application/json", '{"error": {"message": "no", "call": "me", "x": 1}}'
)
teapot = partial(foreign, 418, "application/json", '{"detail": ["short", "stout"]}')


SERVERS: dict[str, tuple[Any, type[Exception]]] = {
    "away": (away, openai.APIConnectionError),
    "401": (locked, openai.AuthenticationError),
    "404": (without_the_model, openai.NotFoundError),
    "429": (full, openai.RateLimitError),
    "503": (draining, openai.InternalServerError),
    "another's page": (page, openai.NotFoundError),
    "another's error": (gate, openai.PermissionDeniedError),
    "another's status": (teapot, openai.APIStatusError),
}


@pytest.fixture(scope="module", params=SERVERS)
def refusing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, dict[str, Any], type[Exception]]]:
    """Make servers that refuse, with the model's settings for each and the expected exception."""
    make, error = SERVERS[request.param]
    arguments = [tmp_path_factory.mktemp("server")] if make in (full, locked) else []
    with make(*arguments) as (url, options):
        yield url, options, error


def steps(llm: Any, good: Any) -> dict[str, Chain]:
    """Chains whose first or second call fails, with fallbacks and retries in several places."""
    first, second = ASK | llm | TEXT, AGAIN | llm | TEXT
    instead = RunnableLambda(lambda value: f"instead of {value}")
    caught = {"exceptions_to_handle": (openai.APIConnectionError, openai.APIStatusError)}
    retried = {"retry_if_exception_type": (openai.OpenAIError,), "stop_after_attempt": 2}
    return {
        "plain": first | second,
        "second": ASK | good | TEXT | second,
        "first falls back": first.with_fallbacks([instead], **caught) | TEXT,
        "second falls back": first | second.with_fallbacks([instead], **caught),
        "second of two falls back": (
            ASK | good | TEXT | second.with_fallbacks([instead], **caught)
        ),
        "all falls back": (first | second).with_fallbacks([instead], **caught),
        "another error is awaited": first.with_fallbacks(
            [instead], exceptions_to_handle=(openai.BadRequestError,)
        ),
        "retried": (first | second).with_retry(**retried, wait_exponential_jitter=False),
        "a fallback of a model": ASK | llm.with_fallbacks([good]) | TEXT,
        "beside": {"a": first, "b": ASK | good | TEXT} | AGAIN.partial(x="") | good | TEXT,
    }


@pytest.mark.parametrize("tier", TIERS)
def test_refused_as_chat_openai_is(
    tier: str, refusing: tuple[str, dict[str, Any], type[Exception]], echo_url: str
) -> None:
    """Type, message and failing step are equal. Fallbacks and retries around the step show which it
    is.
    """
    url, options, error = refusing
    ours, way = TIERS[tier]
    expected = steps(chat_openai(url, **options), chat_openai(echo_url))
    chains = steps(chat_weftline(url, **options, **ours), chat_weftline(echo_url, **ours))
    assert issubclass(outcome(lambda: expected["plain"].invoke(GIVEN))[0], error)
    for name, plain in expected.items():
        chain = way(chains[name])
        wanted = outcome(lambda plain=plain: plain.invoke(GIVEN))
        assert outcome(lambda chain=chain: chain.invoke(GIVEN)) == wanted, name
        assert outcome(lambda chain=chain: asyncio.run(chain.ainvoke(GIVEN))) == wanted, name
        streamed = outcome(lambda plain=plain: "".join(plain.stream(GIVEN)))
        assert outcome(lambda chain=chain: "".join(chain.stream(GIVEN))) == streamed, name


def lost(error: httpx2.TransportError) -> ConnectionFailed:
    """The exception of our client for a connection that breaks during a response."""
    failed = ConnectionFailed("no server answers")
    failed.began, failed.__cause__ = True, error
    return failed


def dies_between_two_calls(make: Callable[..., Any], way: Way, options: dict[str, Any]) -> Any:
    with started() as (url, process):

        def kill(text: str) -> str:
            _kill(process)
            return text

        llm = make(url, **options)
        last = (AGAIN | llm | TEXT).with_fallbacks(
            [RunnableLambda(lambda text: f"instead of {text}")],
            exceptions_to_handle=(openai.APIConnectionError,),
        )
        return outcome(lambda: way(ASK | llm | TEXT | kill | last).invoke(GIVEN))


@tiers
def test_it_dies_between_two_calls(tier: str) -> None:
    """The first call gets its response. The second cannot connect, so it alone uses its
    fallback.
    """
    ours, way = TIERS[tier]
    plain = plainly(dies_between_two_calls)
    assert plain == ("value", "instead of user: Tell of soup.\nassistant: ")
    assert dies_between_two_calls(chat_weftline, way, ours) == plain


def dies_amid_a_stream(
    make: Callable[..., Any], way: Way, options: dict[str, Any], asynchronous: bool
) -> Any:
    with started(*SLOW) as (url, process):
        chain = way(ASK | make(url, max_tokens=1000, **options) | TEXT)
        came = []

        async def follow() -> None:
            async for text in chain.astream(GIVEN):
                came.append(text)
                if text:
                    _kill(process)

        def read() -> None:
            for text in chain.stream(GIVEN):
                came.append(text)
                if text:
                    _kill(process)

        ended = outcome(lambda: asyncio.run(follow()) if asynchronous else read())
        return bool("".join(came)), *ended


@tiers
@pytest.mark.parametrize("asynchronous", [False, True])
def test_it_dies_amid_a_stream(tier: str, asynchronous: bool) -> None:
    """The text so far stays. The exception is that of the connection."""
    ours, way = TIERS[tier]
    plain = plainly(dies_amid_a_stream, asynchronous)
    assert plain[:2] != (True, "value")
    assert dies_amid_a_stream(chat_weftline, way, ours, asynchronous) == plain


def dies_while_a_call_runs(make: Callable[..., Any], way: Way, options: dict[str, Any]) -> Any:
    with started(*SLOW) as (url, process):
        llm = make(url, max_tokens=1000, **options)
        chain = way(ASK | llm | TEXT | AGAIN | llm | TEXT)
        found: list[tuple[Any, ...]] = []
        thread = Thread(target=lambda: found.append(outcome(lambda: chain.invoke(GIVEN))))
        thread.start()
        while "weftline_sessions_open 1" not in httpx2.get(f"{url}/metrics").text:
            time.sleep(0.01)
        _kill(process)
        thread.join()
        return found[0]


@tiers
def test_it_dies_while_a_call_runs(tier: str) -> None:
    """An invoke waits for its response in the first of two calls."""
    ours, way = TIERS[tier]
    plain = plainly(dies_while_a_call_runs)
    assert issubclass(plain[0], openai.APIConnectionError)
    assert dies_while_a_call_runs(chat_weftline, way, ours) == plain


def _kill(process: Forked) -> None:
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    ("failure", "body"),
    [
        (EngineFailed("it gave up", call="c"), True),
        (EngineUnavailable("it starts", call="c"), True),
        (lost(httpx2.RemoteProtocolError("peer closed connection")), False),
        (lost(httpx2.ReadError("")), False),
        (Timeout("too late"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_stream_that_began_fails_as_chat_openais_does(failure: WeftlineError, body: bool) -> None:
    """The status was already a success, so the exception is not one of an HTTP status."""
    http = chat_openai_http  # the client's own class, which is not always one of httpx2

    def answer(request: Any) -> Any:
        def parts() -> Iterator[bytes]:
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
            delta = {"index": 0, "delta": {"content": "some"}, "finish_reason": None}
            yield b"data: " + json.dumps({**chunk, "choices": [delta]}).encode() + b"\n\n"
            if body:
                yield b"data: " + json.dumps(failure.to_body()).encode() + b"\n\n"
                return
            kind = type(failure.__cause__).__name__ if failure.__cause__ else "ReadTimeout"
            text = str(failure.__cause__ or failure)
            raise getattr(http, kind)(text, request=request)

        return http.Response(200, content=parts(), request=request)

    with http.Client(transport=http.MockTransport(answer)) as client:
        llm = chat_openai("http://there:1", http_client=client)
        expected = outcome(lambda: list(llm.stream("hi")))
    error = as_model(failure, streamed=True)
    assert (type(error), str(error)) == expected[:2]
