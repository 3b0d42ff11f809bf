"""The openai engine with faulty endpoints: bounded reads, typed errors, retries and the breaker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.null.asgi import call
from tests.null.endpoints import Behaviour, Endpoint, refuses, streams
from tests.waits import WAIT_S
from weftline_engine import api
from weftline_engine.remote.openai.breaker import Breaker, BreakerConfig, BreakerState
from weftline_engine.remote.openai.endpoint import MOST_EVENT, EndpointConfig
from weftline_engine.remote.openai.endpoint_settings import Dialect
from weftline_engine.remote.openai.engine import OpenAIConfig, OpenAIEngine
from weftline_engine.remote.openai.remote import RemoteEngine
from weftline_server.app import create_app
from weftline_server.config import ServerConfig


def config(socket: str, **options: Any) -> OpenAIConfig:
    endpoint = {"idle_s": 0.2, "first_s": 0.5, "key": "secret", **options.pop("endpoint", {})}
    return OpenAIConfig(
        endpoint=EndpointConfig(url="http://e/v1", socket=socket, **endpoint),
        breaker=BreakerConfig(failures=3, pause_s=options.pop("pause_s", 0.05), longest_s=1.0),
        **options,
    )


def chat(name: str = "op", attempt: int = 0, **sampling: Any) -> api.Op:
    return api.Op(
        id=name,
        attempt=attempt,
        kind=api.Kind.GENERATE,
        context=name,
        chat=api.Chat(messages=({"role": "user", "content": "hi"},)),
        sampling=api.SamplingParams(**{"max_tokens": 9, "temperature": 0.0, **sampling}),
    )


@asynccontextmanager
async def started(
    path: Path, *behaviours: Behaviour, **options: Any
) -> AsyncIterator[tuple[OpenAIEngine, Endpoint]]:
    endpoint = Endpoint(*behaviours)
    async with endpoint.on(path / "e") as socket:
        engine = OpenAIEngine(config(socket, **options))
        await engine.start()
        yield engine, endpoint
        await engine.close()


async def ending(engine: RemoteEngine, op: api.Op) -> tuple[str, api.Failed | api.Finished]:
    """Submit `op`, and return its text and its last event."""
    engine.submit(op)
    text = ""
    async for events in engine.events():
        for event in events:
            if isinstance(event, api.Part):
                text += event.text
            if isinstance(event, (api.Failed, api.Finished)) and event.op == op.id:
                return text, event
    raise AssertionError("the engine closed")


async def test_a_good_answer(tmp_path: Path) -> None:
    """The request has only parameters that OpenAI documents. The endpoint counts the tokens."""
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}
    async with started(tmp_path, streams("a", "b", usage)) as (engine, endpoint):
        text, end = await ending(engine, chat(stop=("x",), seed=3, top_k=5))
        assert text == "ab" and isinstance(end, api.Finished)
        assert (end.usage.prompt_tokens, end.usage.output_tokens) == (7, 2)
        assert endpoint.requests == [
            {
                "model": "m",
                "stream": True,
                "stream_options": {"include_usage": True},
                "max_tokens": 9,
                "temperature": 0.0,
                "top_p": 1.0,
                "stop": ["x"],
                "seed": 3,
                "messages": [{"role": "user", "content": "hi"}],
            }
        ]
        assert endpoint.keys == ["bearer secret"]


async def test_an_answer_does_not_wait_for_the_end_of_its_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy endpoint sends the end after [DONE] late: every answer waited for it, up to 50 ms.

    The end is still read, so that the next request takes the same connection.
    """
    monkeypatch.setattr("weftline_engine.remote.openai.endpoint.END_S", 60.0)
    ends, connections = asyncio.Event(), []

    async def late(writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
        connections.append(writer)
        delta = {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}
        events = f"data: {json.dumps(delta)}\n\ndata: [DONE]\n\n"
        head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(f"{head}{len(events):x}\r\n{events}\r\n".encode())
        await ends.wait()
        writer.write(b"0\r\n\r\n")

    async with started(tmp_path, late) as (engine, _), asyncio.timeout(WAIT_S):
        assert (await ending(engine, chat()))[0] == "a"
        assert engine._endpoint is not None
        ends.set()
        await asyncio.gather(*engine._endpoint._ending)
        assert (await ending(engine, chat("again")))[0] == "a"
        assert connections[0] is connections[1]


@pytest.mark.parametrize(
    ("behaviour", "error", "retryable", "says"),
    [
        (refuses(500, "boom"), "EngineFailed", True, "answered 500: boom"),
        (refuses(400, "bad top_p"), "InvalidRequest", False, "bad top_p"),
        (refuses(400, "maximum context length is 9"), "ContextTooLong", False, "context length"),
        (refuses(401, "key secret is wrong"), "EngineFailed", False, "refuses weftline's key"),
        (refuses(404, "no model m"), "EngineFailed", False, "does not know the model"),
        (refuses(429, "slow down"), "Overloaded", True, "slow down"),
        (refuses(429, "x", "retry-after: 3600"), "Overloaded", False, "429"),
        (refuses(302), "EngineFailed", False, "answered 302"),
        (streams(cut=True), "EngineFailed", True, "before the answer was complete"),
        (streams(b"data: {nonsense\n\n"), "EngineFailed", True, "not JSON"),
        (streams(b"data: []\n\n"), "EngineFailed", True, "not an object"),
        (streams({"error": {"message": "oom"}}), "EngineFailed", True, "oom"),
        (streams(b"x" * (MOST_EVENT + 1)), "EngineFailed", True, "more than"),
        (streams(*[b":"] * 20, pause_s=0.05), "EngineFailed", True, "silent for too long"),
        (streams(*[b": ping\n\n"] * 20, pause_s=0.05), "EngineFailed", True, "silent"),
    ],
)
async def test_each_way_to_fail_has_a_type(
    tmp_path: Path, behaviour: Behaviour, error: str, retryable: bool, says: str
) -> None:
    """Nothing was delivered, and no message contains the key."""
    async with started(tmp_path, behaviour) as (engine, _):
        text, end = await ending(engine, chat())
        assert isinstance(end, api.Failed) and text == ""
        assert (end.error, end.retryable) == (error, retryable)
        assert says in end.message and "secret" not in end.message.replace("key secret", "")


@pytest.mark.parametrize("last", [{"cut": True}, {"pause_s": 0.3}])
async def test_a_partly_delivered_text_is_not_requested_again(
    tmp_path: Path, last: dict[str, Any]
) -> None:
    """The stream is cut off, or stalls, after the first part. The engine leaves it to the server,
    which knows whether anybody has had the part.
    """
    async with started(tmp_path, streams("a", **last)) as (engine, endpoint):
        text, end = await ending(engine, chat())
        assert text == "a" and isinstance(end, api.Failed) and end.retryable
        assert "had been delivered" in end.message and len(endpoint.requests) == 1


async def test_retry_after_is_waited_for(tmp_path: Path) -> None:
    """The engine waits twice, and then gets the answer."""
    wait = refuses(429, "later", "retry-after: 0.01")
    async with started(tmp_path, wait, wait, streams("yes")) as (engine, endpoint):
        text, end = await ending(engine, chat())
        assert text == "yes" and isinstance(end, api.Finished) and len(endpoint.requests) == 3


async def test_cancel_closes_the_request(tmp_path: Path) -> None:
    """The endpoint's connection is closed, and the op ends as cancelled."""
    gone = asyncio.Event()

    async def notices(writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
        try:
            await streams(*"abcdefgh" * 100, pause_s=0.01)(writer, request)
        except ConnectionError:
            gone.set()
            raise

    async with started(tmp_path, notices) as (engine, _):
        engine.submit(chat())
        events = engine.events()
        await anext(events)
        engine.cancel("op")
        async with asyncio.timeout(WAIT_S):
            await gone.wait()
        said = await anext(events)
        while isinstance(said[0], api.Part):
            said = await anext(events)
        assert isinstance(said[0], api.Failed) and said[0].error == "Cancelled"


async def test_the_server_reports_the_endpoints_fault(tmp_path: Path) -> None:
    """Three failures open the breaker. Health names the reason. A success closes it again."""
    endpoint = Endpoint(*[refuses(502, "gpu on fire")] * 3, streams("fine"))
    async with endpoint.on(tmp_path / "e") as socket:
        app = create_app(ServerConfig(), {"far": lambda: OpenAIEngine(config(socket, pause_s=0.5))})
        async with app.router.lifespan_context(app):
            transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
            async with httpx2.AsyncClient(transport=transport, base_url="http://t") as http:
                calls = [call("c", "say {{output:x}}", x="v")]
                failed = await http.post("/v1/submit", json={"calls": calls, "get": ["v"]})
                assert failed.status_code == 502 and "gpu on fire" in failed.text
                health = await http.get("/health/ready")
                assert health.status_code == 503
                assert health.json()["engines"] == {"far": "suspended"}
                assert "gpu on fire" in health.json()["reasons"]["far"]
                # This one waits until the pause is over, and is the trial.
                done = await http.post(
                    "/v1/submit", json={"calls": calls, "get": ["v"], "graph": True}
                )
                assert done.status_code == 200, done.text
                (engine,) = done.json()["graph"]["engines"]
                assert engine["name"] == "far" and any("contexts" in one for one in engine["lacks"])
                assert (await http.get("/health/ready")).status_code == 200


async def test_a_wrong_model_or_a_missing_endpoint_fails_at_start(tmp_path: Path) -> None:
    """`start` raises EngineDied with the reason."""
    async with Endpoint(streams()).on(tmp_path / "e") as socket:
        engine = OpenAIEngine(config(socket, model="gpt"))
        with pytest.raises(api.EngineDied, match="no model 'gpt': it has m"):
            await engine.start()
        await engine.close()
    engine = OpenAIEngine(config(str(tmp_path / "nobody")))
    with pytest.raises(api.EngineDied, match="cannot be reached"):
        await engine.start()
    await engine.close()


async def test_prompts_go_to_the_dialect_that_takes_them(tmp_path: Path) -> None:
    """Text becomes one user message for a chat endpoint, and a completion for others."""
    text = api.Op(
        id="t",
        kind=api.Kind.GENERATE,
        context="t",
        text="once",
        sampling=api.SamplingParams(max_tokens=1),
    )
    async with started(tmp_path, streams("a"), dialect=Dialect.CHAT) as (engine, endpoint):
        await ending(engine, text)
        assert endpoint.requests[0]["messages"] == [{"role": "user", "content": "once"}]
    async with started(tmp_path, streams("a"), extras=True) as (engine, endpoint):
        await ending(engine, text)
        assert endpoint.requests[0]["prompt"] == "once" and "top_k" not in endpoint.requests[0]


async def test_thoughts_go_to_an_endpoint_with_extras(tmp_path: Path) -> None:
    """OpenAI's own refuses a message with fields that it does not know."""
    said = {"role": "assistant", "content": "So.", "reasoning_content": "PLAN"}
    messages = ({"role": "user", "content": "Hi"}, said)
    for extras in (True, False):
        async with started(tmp_path, streams("a"), extras=extras) as (engine, endpoint):
            await ending(engine, replace(chat(), chat=api.Chat(messages=messages)))
            [sent] = endpoint.requests
        assert sent["messages"][1].get("reasoning_content") == ("PLAN" if extras else None)


async def test_constraints(tmp_path: Path) -> None:
    """A JSON schema is sent as response_format. OpenAI has no regex, so one is refused."""
    async with started(tmp_path, streams("{}")) as (engine, endpoint):
        _, end = await ending(engine, chat(constraint='{"json_schema": {"type": "object"}}'))
        assert isinstance(end, api.Finished)
        wished = endpoint.requests[0]["response_format"]["json_schema"]
        assert wished == {"name": "output", "schema": {"type": "object"}, "strict": True}
        _, end = await ending(engine, chat("b", constraint='{"regex": "a+"}'))
        assert isinstance(end, api.Failed) and end.error == "InvalidRequest"


async def test_a_forced_tool_is_a_json_schema(tmp_path: Path) -> None:
    """The endpoint makes the arguments, and the engine the fixed text around them."""
    tag = {
        "type": "tag",
        "begin": '<call>{"name": "f", "arguments": ',
        "content": {"type": "json_schema", "json_schema": {"type": "object"}},
        "end": "}",
    }
    alone = {"type": "tags_with_separator", "separator": "\n", "at_least_one": True}
    forced = json.dumps({"structural_tag": {**alone, "tags": [tag], "stop_after_first": True}})
    async with started(tmp_path, streams('{"a"', ": 1}")) as (engine, endpoint):
        text, end = await ending(engine, chat(constraint=forced))
        assert isinstance(end, api.Finished)
        assert text == '<call>{"name": "f", "arguments": {"a": 1}}'
        wished = endpoint.requests[0]["response_format"]["json_schema"]
        assert wished["schema"] == {"type": "object"}
        free = {"type": "triggered_tags", "triggers": ["<call>"], "tags": [tag]}
        for others in ({**alone, "tags": [tag, tag]}, free):
            several = json.dumps({"structural_tag": others})
            _, end = await ending(engine, chat(str(len(others)), constraint=several))
            assert isinstance(end, api.Failed) and "force one tool" in end.message


async def test_one_bad_prompt_leaves_the_engine_to_others(tmp_path: Path) -> None:
    """A prompt that the endpoint answers with 500 fails as often as it is sent, and it alone.

    Three prompts that fail one after the other open the breaker.
    """

    def about(text: str, name: str) -> api.Op:
        return replace(chat(name), chat=api.Chat(messages=({"role": "user", "content": text},)))

    async with started(tmp_path, refuses(500, "boom"), pause_s=1.0) as (engine, endpoint):
        for number in range(4):
            _, end = await ending(engine, about("bad", f"bad{number}"))
            assert isinstance(end, api.Failed) and "answered 500: boom" in end.message
        endpoint.behaviours = [streams("fine"), refuses(500)]
        assert (await ending(engine, about("good", "good")))[0] == "fine"
        assert engine._breaker.state is BreakerState.CLOSED
        for number in range(3):
            await ending(engine, about(str(number), f"other{number}"))
        assert engine._breaker.state is BreakerState.OPEN


def test_the_breaker() -> None:
    """Three consecutive failures open it. A success resets the count. A failed trial doubles the
    pause."""
    breaker = Breaker(BreakerConfig(failures=3, pause_s=1.0, longest_s=3.0))
    assert [breaker.failed(0), breaker.failed(0), breaker.succeeded()] == [False] * 3
    assert [breaker.failed(1), breaker.failed(1), breaker.failed(1)] == [False, False, True]
    assert breaker.state is BreakerState.OPEN and breaker.until == 2.0
    assert not breaker.failed(1.5) and not breaker.succeeded()  # requests that began earlier
    assert not breaker.try_again(1.9) and breaker.try_again(2.0)
    assert breaker.failed(2.0) and breaker.until == 4.0
    assert breaker.try_again(4.0) and breaker.failed(4.0) and breaker.until == 7.0
    assert breaker.try_again(7.0) and breaker.succeeded()
    assert breaker.state is BreakerState.CLOSED
    assert [breaker.failed(8), breaker.failed(8), breaker.failed(8)] == [False, False, True]
    assert breaker.until == 9.0


async def test_a_large_prompt_arrives_whole(tmp_path: Path) -> None:
    """It has two million characters. aiohttp warns of bodies that it must send at once. The first
    byte of the answer is awaited from the beginning, and a busy machine may send for long.
    """
    long = "word " * 400_000
    patient = {"first_s": WAIT_S}
    async with started(tmp_path, streams("a"), endpoint=patient) as (engine, endpoint):
        text, end = await ending(
            engine, replace(chat(), chat=api.Chat(messages=({"role": "user", "content": long},)))
        )
        assert text == "a" and isinstance(end, api.Finished)
        assert endpoint.requests[0]["messages"] == [{"role": "user", "content": long}]


class Broken(OpenAIEngine):
    """An engine with a bug in its requests."""

    async def _answer(self, op: api.Op, answer: Any) -> None:
        raise ZeroDivisionError("a bug")


async def test_a_bug_ends_its_op(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The op fails, so that its session does not wait for ever."""
    async with Endpoint(streams("a")).on(tmp_path / "e") as socket:
        engine = Broken(config(socket))
        await engine.start()
        _, end = await ending(engine, chat())
        assert isinstance(end, api.Failed)
        assert (end.error, end.message) == (
            "EngineFailed",
            "the request failed (ZeroDivisionError)",
        )
        assert "a request of op op failed" in caplog.text
        await engine.close()


async def test_one_tenants_refusals_leave_the_engine_to_others(tmp_path: Path) -> None:
    """Two tenants use the endpoint. It answers five different prompts of one of them with 500:
    these count as one failure, and the breaker stays closed.
    """

    def of(salt: str, number: int) -> api.Op:
        text = f"{salt} {number}"
        return replace(
            chat(text), chat=api.Chat(messages=({"role": "user", "content": text},)), salt=salt
        )

    behaviours = [streams("fine"), *(refuses(500, "boom") for _ in range(5)), streams("fine")]
    async with started(tmp_path, *behaviours, pause_s=1.0) as (engine, _):
        assert (await ending(engine, of("good", 0)))[0] == "fine"
        for number in range(5):
            _, end = await ending(engine, of("bad", number))
            assert isinstance(end, api.Failed)
        assert engine._breaker.state is BreakerState.CLOSED
        assert (await ending(engine, of("good", 1)))[0] == "fine"
