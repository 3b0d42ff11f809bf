"""The SDK retries after a broken connection, and when a full server says when to retry."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from tests.null.asgi import Serve, Server
from weftline import AsyncClient, Client
from weftline.contract.protocol import Call, InOut, Placeholder, Segment
from weftline.errors import AlreadySet, ConnectionFailed, Overloaded
from weftline.sdk.http import pause
from weftline_engine.pretend.null import NullConfig
from weftline_server.config import ServerConfig
from weftline_server.runtime.registry import RegistryConfig

ECHO = Call(
    name="echo",
    prompt=(Segment(text="one two"), Segment(output="x")),
    placeholders=(Placeholder(name="x", in_out=InOut.OUT, semantic_var_id="x"),),
)
WANT_AGAIN = httpx2.Response(429, headers={"Retry-After": "7"})
# The server took the calls, and one of them failed. Sending them again would set them twice.
OF_A_CALL = httpx2.Response(503, headers={"Retry-After": "1"}, json={"error": {"call": "draft"}})


class LosesAnswers(httpx2.AsyncBaseTransport):
    """Passes requests to a real server and loses the response to each one `times` times."""

    def __init__(self, server: Server, times: int) -> None:
        self._inner = httpx2.ASGITransport(server.app)
        self._times = times
        self.seen: list[tuple[str, str, str | None]] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        key = request.headers.get("idempotency-key")
        self.seen.append((request.method, request.url.path, key))
        answer = await self._inner.handle_async_request(request)
        if self.seen.count(self.seen[-1]) <= self._times:
            raise httpx2.ReadError("the connection broke")
        return answer


async def test_requests_with_lost_responses_are_retried(serve: Serve) -> None:
    """Session, submit and get each lose two responses. Everything is done once."""
    server = await serve()
    transport = LosesAnswers(server, times=2)
    client = AsyncClient("http://t", transport=transport)
    session = await client.session().open()
    await session.submit([ECHO])
    assert await session.get("x") == "one two"
    assert server.service.engines.status().sessions == 1
    assert len((await session.graph())["calls"]) == 1
    keys = {
        path: {key for _, p, key in transport.seen if p == path} for _, path, _ in transport.seen
    }
    assert len(keys["/v1/session"]) == len(keys["/v1/submit"]) == 1
    assert None not in keys["/v1/session"] | keys["/v1/submit"] and keys["/v1/get"] == {None}
    await client.close()


async def test_a_stream_that_did_not_begin_is_retried(serve: Serve) -> None:
    """A whole run streams after its first response was lost."""
    server = await serve()
    client = AsyncClient("http://t", transport=LosesAnswers(server, times=1))
    assert "".join([text async for text in client.stream([ECHO], "x")]) == "one two"
    await client.close()


async def test_a_request_that_is_unsafe_to_repeat_is_not_retried(serve: Serve) -> None:
    """A value may have been set before its response was lost, so the caller gets the error."""
    server = await serve()
    transport = LosesAnswers(server, times=0)
    client = AsyncClient("http://t", transport=transport)
    session = await client.session().open()
    transport._times = 1
    with pytest.raises(ConnectionFailed):
        await session.set("v", 1)
    with pytest.raises(AlreadySet):
        await session.set("v", 2)
    await client.close()


async def test_a_request_is_tried_three_times(serve: Serve) -> None:
    """A server that stays unreachable is reported after the first attempt and two more."""
    transport = LosesAnswers(await serve(), times=9)
    client = AsyncClient("http://t", transport=transport)
    with pytest.raises(ConnectionFailed, match="ReadError"):
        await client.models()
    assert len(transport.seen) == 3
    await client.close()


async def test_a_full_server_is_retried_after_its_retry_after(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server states the pause. A session that is closed meanwhile makes room."""
    server = await serve(NullConfig(), ServerConfig(registry=RegistryConfig(max_sessions=1)))
    held = await server.session()
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            await server.http.delete(f"/v1/session/{held}")

    monkeypatch.setattr("weftline.sdk.connection.sleep", sleep)
    client = AsyncClient("http://t", transport=httpx2.ASGITransport(server.app))
    session = await client.session().open()
    assert pauses == [1.0, 1.0] and session.id != held
    with pytest.raises(Overloaded):
        await client.session().open()
    await client.close()


def test_the_synchronous_client_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests and streams get a refusal, then a broken connection, then the response."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("weftline.sdk.connection.sleep", sleep)

    def answers(last: httpx2.Response) -> Iterator[httpx2.Response | None]:
        yield httpx2.Response(503, headers={"Retry-After": "2"})
        yield None
        yield last

    waiting = answers(httpx2.Response(200, json={"session_id": "s", "protocol": "1"}))

    def answer(request: httpx2.Request) -> httpx2.Response:
        found = next(waiting)
        if found is None:
            raise httpx2.ReadError("the connection broke")
        return found

    with Client("http://t", transport=httpx2.MockTransport(answer)) as client:
        assert client.session().id == "s"
        events = 'event: part\ndata: {"offset": 0, "text": "hi"}\n\n'
        events += 'event: value\ndata: {"value": "hi"}\n\n'
        waiting = answers(
            httpx2.Response(200, text=events, headers={"Content-Type": "text/event-stream"})
        )
        assert list(client.stream([ECHO], "x")) == ["hi"]
    assert pauses == [2.0, 0.4, 2.0, 0.4]


@pytest.mark.parametrize(
    ("attempt", "method", "path", "result", "expected"),
    [
        (0, "POST", "/v1/submit", WANT_AGAIN, 7.0),
        (1, "PUT", "/v1/session/s/variable/v", WANT_AGAIN, 7.0),
        (2, "POST", "/v1/submit", WANT_AGAIN, None),
        (0, "POST", "/v1/submit", httpx2.Response(429, headers={"Retry-After": "3600"}), None),
        (2, "POST", "/v1/submit", httpx2.Response(429), None),
        (0, "POST", "/v1/submit", OF_A_CALL, None),
        (0, "POST", "/v1/submit", httpx2.Response(500, headers={"Retry-After": "1"}), None),
        (0, "POST", "/v1/submit", httpx2.Response(200), None),
        (0, "POST", "/v1/submit", httpx2.ReadError("x"), 0.1),
        (1, "POST", "/v1/get", httpx2.RemoteProtocolError("x"), 0.4),
        (0, "GET", "/v1/models", httpx2.ReadError("x"), 0.1),
        (0, "DELETE", "/v1/session/s", httpx2.ReadError("x"), None),
        (0, "DELETE", "/v1/session/s", httpx2.ConnectError("x"), 0.1),
        (2, "GET", "/v1/models", httpx2.ConnectError("x"), None),
    ],
)
def test_when_to_ask_again(
    attempt: int,
    method: str,
    path: str,
    result: httpx2.Response | httpx2.TransportError,
    expected: float | None,
) -> None:
    """There are two more attempts: a refusal waits as it says, a broken connection is retried where
    that is safe.
    """
    assert pause(attempt, method, path, result) == expected


@pytest.mark.parametrize("headers", [{}, {"Retry-After": "soon"}])
@pytest.mark.parametrize(
    ("attempt", "longest"), [(0, 0.5), (1, 1.0), (2, 2.0), (4, 8.0), (9, 8.0), (5000, 8.0)]
)
def test_a_refusal_that_names_no_time(
    headers: dict[str, str], attempt: int, longest: float
) -> None:
    """Pauses grow as in the openai client, with jitter, so that clients do not return at once."""
    for status in (429, 503):
        refused = httpx2.Response(status, headers=headers)
        waits = {pause(attempt, "POST", "/v1/submit", refused, 9999) for _ in range(20)}
        assert len(waits) > 1
        assert all(w is not None and 0.75 * longest <= w <= longest for w in waits)
