"""Broken streams of the SDK continue where they were, a bounded number of times."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.null.asgi import Serve, Server
from weftline import AsyncClient, Client
from weftline.contract.protocol import Call, InOut, Placeholder, Segment, SubmitBody
from weftline.errors import ConnectionFailed
from weftline.sdk.resume import StreamedRequest
from weftline.watching import Event, Failed, Part, Submitted, Value

TEXT = "one two three"


def echo(name: str) -> Call:
    out = Placeholder(name=name, in_out=InOut.OUT, semantic_var_id=name)
    return Call(name=name, prompt=(Segment(text=TEXT), Segment(output=name)), placeholders=(out,))


class Cut(httpx2.AsyncByteStream):
    """Some events of a response, followed by a broken or a silent connection."""

    def __init__(self, events: list[bytes], quietly: bool) -> None:
        self._events = events
        self._quietly = quietly

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for event in self._events:
            yield event
        if not self._quietly:
            raise httpx2.ReadError("the connection broke")


class CutsStreams(httpx2.AsyncBaseTransport):
    """Passes requests to a real server, and passes on a given number of events of each stream, in
    turn.
    """

    def __init__(self, server: Server, cuts: list[int], quietly: bool = False) -> None:
        self._inner = httpx2.ASGITransport(server.app)
        self._cuts = cuts
        self._quietly = quietly
        self.asked: list[str] = []  # Last-Event-ID of each stream

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = await self._inner.handle_async_request(request)
        if not answer.headers.get("content-type", "").startswith("text/event-stream"):
            return answer
        self.asked.append(request.headers.get("last-event-id", ""))
        body = await answer.aread()
        if not self._cuts:
            return httpx2.Response(answer.status_code, headers=answer.headers, content=body)
        events = re.split(rb"(?<=\n\n)", body.replace(b"\r", b""))
        stream = Cut(events[: self._cuts.pop(0)], self._quietly)
        return httpx2.Response(answer.status_code, headers=answer.headers, stream=stream)


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The client does not pause between attempts in these tests."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("weftline.sdk.connection.sleep", sleep)
    return waited


@pytest.mark.parametrize("quietly", [False, True], ids=["broken", "ended early"])
async def test_a_variable_goes_on_after_its_last_id(
    serve: Serve, quietly: bool, pauses: list[float]
) -> None:
    """The stream is cut before its first event, and after its text: nothing is lost or doubled. An
    end without `value` is a cut too, because a proxy that gives up ends a stream like a whole one.
    """
    transport = CutsStreams(await serve(), [0, 1], quietly)
    async with AsyncClient("http://t", transport=transport) as client:
        session = await client.session().open()
        await session.submit([echo("x")])
        await session.get("x")
        assert [text async for text in session.stream("x")] == [TEXT]
    assert transport.asked == ["", "", str(len(TEXT))]
    assert pauses == [0.1, 0.1], "a part that came begins the count anew"


async def test_a_run_goes_on_with_its_key(serve: Serve) -> None:
    """Two calls in one request are watched. The stream is cut after each event, and each event
    comes once.
    """
    server = await serve()
    submit = SubmitBody(calls=(echo("x"), echo("y")), watch=("x", "y"), parts=True, close=True)
    async with AsyncClient("http://t", transport=CutsStreams(server, [])) as client:
        whole = [said async for said in client.watch(submit)]
    transport = CutsStreams(server, [1, 2, 3, 4])
    async with AsyncClient("http://t", transport=transport) as client:
        said = [event async for event in client.watch(submit)]
    assert len(whole) == 5 and list(map(plain, said)) == list(map(plain, whole))
    assert len(transport.asked) == 5


def plain(event: Event) -> Any:
    """Return an event's content without ids that differ from run to run."""
    match event:
        case Submitted() | Failed():
            return type(event)
        case Part(variable, text):
            return variable, text
        case Value(variable, value, facts):
            return variable, value, {**facts, "call_id": ""}
    return event


async def test_a_stream_that_brings_nothing_new_is_given_up(
    serve: Serve, pauses: list[float]
) -> None:
    """After three attempts the error says that some text had arrived."""
    transport = CutsStreams(await serve(), [2] * 9)
    async with AsyncClient("http://t", transport=transport) as client:
        texts = client.stream([echo("x")], "x")
        assert await anext(texts) == TEXT
        with pytest.raises(ConnectionFailed, match="ReadError") as failed:
            await anext(texts)
    assert failed.value.began and len(transport.asked) == 3
    assert pauses == [0.1, 0.4]


async def test_without_retries_a_cut_is_an_error(serve: Serve) -> None:
    """A framework that retries by itself says so."""
    transport = CutsStreams(await serve(), [1])
    submit = SubmitBody(calls=(echo("x"),), watch=("x",), close=True)
    async with AsyncClient("http://t", transport=transport) as client:
        events = client.watch(submit, max_retries=0)
        assert isinstance(await anext(events), Submitted)
        with pytest.raises(ConnectionFailed):
            await anext(events)
    assert len(transport.asked) == 1


async def test_two_halves_of_different_runs_are_not_joined(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has forgotten the run, as after a restart, and starts again: its text does not
    continue the old one.
    """
    server = await serve()
    transport = CutsStreams(server, [2])
    async with AsyncClient("http://t", transport=transport) as client:
        texts = client.stream([echo("x")], "x")
        assert await anext(texts) == TEXT
        monkeypatch.setattr(StreamedRequest, "headers", {"Idempotency-Key": "another"})
        with pytest.raises(ConnectionFailed, match="RemoteProtocolError"):
            await anext(texts)
    assert len(transport.asked) == 2


async def test_openai_streams_are_not_resumed(serve: Serve) -> None:
    """Their events have no ids. A cut is an error, even if the connection ends normally."""
    transport = CutsStreams(await serve(), [2], quietly=True)
    body = {"messages": [{"role": "user", "content": "hi"}]}
    async with AsyncClient("http://t", transport=transport) as client:
        chunks = client.openai_stream("chat/completions", body)
        assert len([await anext(chunks), await anext(chunks)]) == 2
        with pytest.raises(ConnectionFailed) as failed:
            await anext(chunks)
    assert failed.value.began and len(transport.asked) == 1


def test_the_synchronous_client_goes_on_too() -> None:
    """It resumes with the id of the last event that it saw."""
    asked: list[str | None] = []
    answers = [
        'id: 3\nevent: part\ndata: {"offset": 0, "text": "one"}\n\n',
        'id: 7\nevent: part\ndata: {"offset": 3, "text": " two"}\n\n',
        'id: 7\nevent: value\ndata: {"value": "one two"}\n\n',
    ]

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/v1/session":
            return httpx2.Response(200, json={"session_id": "s", "protocol": "1"})
        asked.append(request.headers.get("last-event-id"))
        headers = {"Content-Type": "text/event-stream"}
        return httpx2.Response(200, text=answers[len(asked) - 1], headers=headers)

    with Client("http://t", transport=httpx2.MockTransport(answer)) as client:
        assert list(client.session().stream("x")) == ["one", " two"]
    assert asked == [None, "3", "7"]
