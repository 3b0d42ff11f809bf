"""Idempotency keys: a repeated request runs once, memory is bounded, tenants are separate."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx2
import pytest

from tests.null.asgi import Serve, Server, call
from weftline.errors import KeyReused, Overloaded
from weftline_engine.pretend.null import LatencyProfile, NullConfig
from weftline_server.config import ServerConfig
from weftline_server.http.kept_responses import Responses, ResponsesConfig
from weftline_server.runtime.registry import RegistryConfig

ECHO = call("echo", "one two{{output:x}}", x="x")


def keyed(key: str, **more: str) -> dict[str, str]:
    return {"Idempotency-Key": key, **more}


async def submit(server: Server, key: str, body: dict[str, Any]) -> httpx2.Response:
    return await server.http.post("/v1/submit", json=body, headers=keyed(key))


async def test_fifty_at_once_make_one_session(serve: Serve) -> None:
    """All get the id of the only session. A header marks the replayed responses."""
    server = await serve()
    answers = await asyncio.gather(
        *(server.http.post("/v1/session", headers=keyed("k")) for _ in range(50))
    )
    assert {a.status_code for a in answers} == {200}
    assert len({a.json()["session_id"] for a in answers}) == 1
    assert server.service.engines.status().sessions == 1
    assert sum("idempotency-replayed" in a.headers for a in answers) == 49
    assert (await server.session()) != answers[0].json()["session_id"], "no key, no replay"


async def test_fifty_at_once_make_one_submit(serve: Serve) -> None:
    """Fifty submits with one key add one call. All get its id and its value while it runs."""
    server = await serve(NullConfig(latency=LatencyProfile(step_s=0.01)))
    session = await server.session()
    body = {"session_id": session, "calls": [ECHO], "get": ["x"]}
    answers = await asyncio.gather(*(submit(server, "k", body) for _ in range(50)))
    assert {a.status_code for a in answers} == {200}
    assert len({a.text for a in answers}) == 1
    assert answers[0].json()["values"] == {"x": "one two"}
    assert len((await server.graph(session))["calls"]) == 1
    late = await submit(server, "k", body)
    assert late.text == answers[0].text and late.headers["idempotency-replayed"] == "true"


async def test_another_body_is_refused(serve: Serve) -> None:
    """A key stands for one request. Another body or another route under it is an error."""
    server = await serve()
    session = await server.session()
    body = {"session_id": session, "calls": [ECHO]}
    assert (await submit(server, "k", body)).status_code == 200
    other = await submit(server, "k", {**body, "detach": True})
    assert (other.status_code, other.json()["error"]["type"]) == (409, "KeyReused")
    route = await server.http.post("/v1/session", headers=keyed("k"))
    assert route.status_code == 409
    assert len((await server.graph(session))["calls"]) == 1


async def test_a_refusal_is_repeated_too(serve: Serve) -> None:
    """The error of a bad body is kept, and the repetition gets the kept error."""
    server = await serve()
    body = {"calls": [call("bad", "no output")]}
    first, second = await submit(server, "k", body), await submit(server, "k", body)
    assert first.status_code == second.status_code == 400
    assert first.json() == second.json()
    assert "idempotency-replayed" in second.headers


async def test_a_request_to_a_full_server_may_be_repeated(serve: Serve) -> None:
    """A 429 is not kept: with the same key the request succeeds once there is room."""
    server = await serve(NullConfig(), ServerConfig(registry=RegistryConfig(max_sessions=1)))
    session = await server.session()
    full = await server.http.post("/v1/session", headers=keyed("k"))
    assert full.status_code == 429
    await server.http.delete(f"/v1/session/{session}")
    again = await server.http.post("/v1/session", headers=keyed("k"))
    assert again.status_code == 200 and "idempotency-replayed" not in again.headers


async def test_tenants_have_keys_of_their_own(serve: Serve) -> None:
    """A tenant's key has no effect on another tenant. A wrong API key stays 401."""
    server = await serve(NullConfig(), ServerConfig(keys={"ka": "a", "kb": "b"}))

    async def opened(api_key: str) -> httpx2.Response:
        headers = keyed("same", Authorization=f"Bearer {api_key}")
        return await server.http.post("/v1/session", headers=headers)

    a, b = await opened("ka"), await opened("kb")
    assert a.json()["session_id"] != b.json()["session_id"]
    assert (await opened("ka")).json() == a.json()
    assert (await opened("wrong")).status_code == 401


@pytest.mark.parametrize("key", ["", "x" * 256, "é"])
async def test_an_invalid_key(serve: Serve, key: str) -> None:
    """A header that cannot be a key is refused, and nothing is done."""
    server = await serve()
    headers = [(b"Idempotency-Key", key.encode("latin-1"))]
    answer = await server.http.post("/v1/session", headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Idempotency-Key")
    assert server.service.engines.status().sessions == 0


async def test_a_body_that_is_too_large(serve: Serve) -> None:
    """It is refused as without a key, each time it is sent."""
    server = await serve(NullConfig(), ServerConfig(max_body=100))
    for _ in range(2):
        answer = await submit(server, "k", {"calls": [call("big", "x" * 200)]})
        assert (answer.status_code, answer.json()["error"]["type"]) == (413, "BodyTooLarge")


async def test_a_stream_is_repeated_whole(serve: Serve) -> None:
    """The repetition gets the same events, and the calls do not run twice."""
    server = await serve()
    body = {"calls": [ECHO], "stream": "x", "close": True}
    first, second = await submit(server, "k", body), await submit(server, "k", body)
    assert first.headers["content-type"] == second.headers["content-type"]
    assert 'event: value\ndata: {"value": "one two"}' in first.text
    assert second.text == first.text


async def test_a_returning_client_follows_the_stream(serve: Serve) -> None:
    """A client is cut off in the middle. The run goes on, and the second connection gets the whole
    stream, the rest of it as it is generated.
    """
    server = await serve(NullConfig(latency=LatencyProfile(step_s=0.03)))
    words = "one two three four five six"
    calls = [call("echo", words + "{{output:x}}", x="x")]
    body = {"calls": calls, "stream": "x", "graph": True, "close": True}
    first = Caller(server, "k", body)
    await first.parts(2)
    first.gone.set()
    second = Caller(server, "k", body)
    await second.parts(3)
    assert b"event: value" not in second.body, "it is given what there is, not all in the end"
    await asyncio.gather(first.task, second.task)
    assert second.body.startswith(first.body) and second.body.count(b"event: submitted") == 1
    texts = re.findall(r'"text": "([^"]*)"', second.body.decode())
    assert "".join(texts) == words and b"event: graph" in second.body
    assert server.service.engines.status().sessions == 0, "it was closed once, at its end"


async def test_a_followed_stream_that_becomes_too_large_breaks_off(serve: Serve) -> None:
    """Kept responses are bounded. The second client gets a beginning without `value`,
    later a 409.
    """
    config = ServerConfig(responses=ResponsesConfig(max_response=500))
    server = await serve(NullConfig(latency=LatencyProfile(step_s=0.03)), config)
    calls = [call("echo", "one two three four five six seven eight{{output:x}}", x="x")]
    body = {"calls": calls, "stream": "x", "close": True}
    first = Caller(server, "k", body)
    await first.parts(1)
    second = Caller(server, "k", body)
    await asyncio.gather(first.task, second.task)
    assert b"event: value" in first.body
    assert b"event: part" in second.body and b"event: value" not in second.body
    assert len(second.body) <= 500
    assert (await submit(server, "k", body)).status_code == 409


async def test_an_answer_that_is_too_large_to_keep(serve: Serve) -> None:
    """The first client gets it. A repetition is an error, and nothing runs again."""
    config = ServerConfig(responses=ResponsesConfig(max_response=100))
    server = await serve(NullConfig(), config)
    session = await server.session()
    body = {"session_id": session, "calls": [call("c", "w" * 200 + "{{output:x}}", x="x")]}
    first = await submit(server, "k", {**body, "get": ["x"]})
    assert first.json()["values"] == {"x": "w" * 200}
    second = await submit(server, "k", {**body, "get": ["x"]})
    assert (second.status_code, second.json()["error"]["type"]) == (409, "KeyReused")
    assert "too large to be kept" in second.json()["error"]["message"]


class Caller:
    """One request at the level of ASGI. Its client can disconnect."""

    def __init__(self, server: Server, key: str, body: dict[str, Any]) -> None:
        self.gone = asyncio.Event()
        self.waits = asyncio.Event()  # the server has read the request, and watches the client
        self.body = b""
        self._sent = False
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/submit",
            "raw_path": b"/v1/submit",
            "query_string": b"",
            "headers": [(b"idempotency-key", key.encode())],
            "state": {},
        }
        # the header as httpx2 writes it
        self._request = json.dumps(body, separators=(",", ":")).encode()
        self.task = asyncio.create_task(server.app(scope, self._receive, self._send))

    async def parts(self, count: int) -> None:
        """Return when `count` parts of text have arrived."""
        while self.body.count(b"event: part") < count:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.001)

    async def _receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._request, "more_body": False}
        self.waits.set()
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if not self.gone.is_set():
            self.body += message.get("body", b"")


SLOW = NullConfig(latency=LatencyProfile(step_s=0.05))


async def begun(server: Server) -> None:
    """Return when a session has a call."""
    while not any(one.tasks for one in server.service.registry):  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.001)


async def test_the_first_client_leaves_and_the_second_gets_the_answer(serve: Serve) -> None:
    """The work goes on for the client that still waits."""
    server = await serve(SLOW, ServerConfig(responses=ResponsesConfig(reconnect_s=0)))
    body = {"calls": [ECHO], "get": ["x"], "close": True}
    first = Caller(server, "k", body)
    await begun(server)
    second = Caller(server, "k", body)
    await second.waits.wait()
    first.gone.set()
    await asyncio.gather(first.task, second.task)
    assert json.loads(second.body)["values"] == {"x": "one two"}
    assert server.service.engines.status().sessions == 0


async def test_a_client_that_comes_back_gets_the_answer(serve: Serve) -> None:
    """The connection broke. The client repeats the request within `reconnect_s`."""
    server = await serve(SLOW, ServerConfig(responses=ResponsesConfig(reconnect_s=5)))
    session = await server.session()
    body = {"session_id": session, "calls": [ECHO], "get": ["x"]}
    first = Caller(server, "k", body)
    await begun(server)
    first.gone.set()
    await asyncio.sleep(0.01)
    answer = await submit(server, "k", body)
    assert answer.json()["values"] == {"x": "one two"}
    assert len((await server.graph(session))["calls"]) == 1
    await first.task


async def test_without_waiting_clients_the_work_is_cancelled(serve: Serve) -> None:
    """All clients have disconnected: the call is cancelled, and the key is free for another
    attempt.
    """
    server = await serve(
        NullConfig(latency=LatencyProfile(step_s=60)),
        ServerConfig(responses=ResponsesConfig(reconnect_s=0.01)),
    )
    session = await server.session()
    body = {"session_id": session, "calls": [ECHO], "get": ["x"]}
    callers = [Caller(server, "k", body) for _ in range(3)]
    await begun(server)
    await asyncio.gather(*(caller.waits.wait() for caller in callers))
    for caller in callers:
        caller.gone.set()
    await asyncio.gather(*(caller.task for caller in callers))
    assert (await server.graph(session))["calls"][0]["state"] == "cancelled"
    again = await submit(server, "k", {"session_id": session, "calls": [ECHO]})
    assert again.json()["error"]["type"] == "AlreadySet", "it was done, not replayed"


def answered(answers: Responses, key: str, size: int, now: float = 0, status: int = 200) -> None:
    """Begin and end a request with an answer of `size` bytes."""
    answer = answers.begin(key, b"d", now).response
    answer.begin(status, ())
    answer.add(b"x" * size, last=True)
    answers.end(key)


def test_answers_expire() -> None:
    """A response is forgotten after `expiry_s`. A request that still runs is not forgotten."""
    answers = Responses(ResponsesConfig(expiry_s=10))
    answered(answers, "done", 1)
    running = answers.begin("running", b"d", now=0)
    assert answers.find("done", b"d", now=10) is not None
    assert answers.find("done", b"d", now=11) is None
    assert answers.find("running", b"d", now=11) is running


def test_keys_and_bytes_are_bounded() -> None:
    """The oldest responses are dropped first. A running request is never dropped, so none runs
    twice.
    """
    answers = Responses(ResponsesConfig(max_keys=3, max_bytes=10))
    for number in range(3):
        answered(answers, str(number), 4, now=number)
    assert answers.find("0", b"d", now=3) is None, "12 bytes are more than 10"
    for number in (3, 4, 5):
        answers.begin(str(number), b"d", now=number)
    assert len(answers) == 3 and answers.find("2", b"d", now=5) is None
    with pytest.raises(Overloaded):
        answers.begin("6", b"d", now=6)
    with pytest.raises(KeyReused):
        answers.find("5", b"other", now=6)


@pytest.mark.parametrize(
    ("status", "kept"),
    [(200, True), (400, True), (409, True), (408, False), (429, False), (500, False), (503, False)],
)
def test_only_repeatable_responses_are_kept(status: int, kept: bool) -> None:
    """Responses of a full or broken server are not kept, because the next attempt may succeed."""
    answers = Responses(ResponsesConfig())
    answered(answers, "k", 1, status=status)
    assert (answers.find("k", b"d", now=0) is not None) is kept


def test_what_no_client_may_see_is_not_kept() -> None:
    """A server of several says 421 to the one that has passed a request on. The request is done
    when it comes again. An error of the client's own is kept.
    """
    answers = Responses(ResponsesConfig())
    for status, kept in ((421, False), (404, True)):
        entry = answers.begin("k", b"d", 0.0)
        entry.response.begin(status, ())
        entry.response.add(b"{}", last=True)
        answers.end("k")
        assert (answers.find("k", b"d", 1.0) is not None) == kept
