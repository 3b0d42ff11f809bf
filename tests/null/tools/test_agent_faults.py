"""What goes wrong around a client's tools and steps: the user sees the cause, and nothing waits."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import httpx2
import pytest

from tests.null.steps.conftest import Listen, Socket, listen  # noqa: F401 - a fixture
from tests.null.steps.test_client_steps import answer, draft
from tests.null.tools.test_agent import served  # noqa: F401 - a fixture
from weftline.contract.protocol import Call, InOut, Placeholder, Segment
from weftline.errors import ClientStepFailed
from weftline.sdk.aclient import AsyncClient
from weftline.sdk.client import Client
from weftline.sdk.client_steps import SentSteps, client_step
from weftline.sdk.own_functions import on_the_loop
from weftline.sdk.step_tasks import StepTasks
from weftline.toolkit import tool

OUT = Placeholder(name="out", in_out=InOut.OUT, semantic_var_id="v")
CALL = Call(name="one", prompt=(Segment(output="out"),), placeholders=(OUT,))


@tool(effects="none")
def length(river: str) -> str:
    """The length of a river."""
    return "1230 km"


def breaks_on_put(monkeypatch: pytest.MonkeyPatch) -> None:
    """An instrumentation that fails for the requests with which a client sends results."""
    send = httpx2.AsyncClient.send

    async def wrong(self: Any, request: httpx2.Request, **options: Any) -> Any:
        if request.method == "PUT":
            raise TypeError("the hook knows no PUT")
        return await send(self, request, **options)

    monkeypatch.setattr(httpx2.AsyncClient, "send", wrong)


async def test_a_result_that_cannot_be_sent_ends_the_run(
    served: Socket,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server would wait for the tool's result. Each client raises what hindered the sending."""
    breaks_on_put(monkeypatch)
    async with served.aclient() as client, client.session() as session:
        with pytest.raises(TypeError, match="the hook knows no PUT"):
            await session.agent("#early", tools=[length])

    def run() -> None:
        with served.client() as client, client.session() as session:
            session.agent("#early", tools=[length]).get()

    with pytest.raises(TypeError, match="the hook knows no PUT"):
        await asyncio.to_thread(run)


async def test_the_error_of_a_tool_is_in_the_log(
    served: Socket,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The model reads its text. The traceback, which shows where, is in the user's log."""

    @tool(effects="none")
    def length(river: str) -> str:
        raise LookupError("no such river")

    async with served.aclient() as client, client.session() as session:
        with caplog.at_level(logging.WARNING, "weftline.agent"):
            made = await session.agent("#lost", tools=[length])
    assert made.text == "There is none."
    [record] = [one for one in caplog.records if one.name == "weftline.agent"]
    assert record.exc_info is not None and type(record.exc_info[1]) is LookupError


async def test_a_step_that_exits_fails(listen: Listen) -> None:  # noqa: F811
    """Python drops a SystemExit of a thread without a word. The step fails with it."""

    @client_step
    def leave(text: str) -> str:
        sys.exit("not today")

    socket = await listen()

    def program() -> None:
        with socket.client() as made, made.session():
            answer(leave(draft("tea"))).get()

    with pytest.raises(ClientStepFailed, match="not today") as caught:
        await asyncio.to_thread(program)
    assert type(caught.value.__cause__) is SystemExit


async def test_the_cause_of_lost_values_is_shown(listen: Listen) -> None:  # noqa: F811
    """What reads the values of a step breaks. The step's error has that as its cause."""
    socket = await listen()

    class Broken(StepTasks):
        async def _watch(self, submit: Any, waiting: SentSteps, accepted: Any) -> None:
            waiting.take_ready = cut
            await super()._watch(submit, waiting, accepted)

    def cut() -> Any:
        raise KeyError("a fault of the reader")

    async with socket.aclient() as made, made.session() as session:
        session._steps = Broken(session.state, made.connection, on_the_loop)
        with pytest.raises(ClientStepFailed) as caught:
            await answer(client_step(str.upper)(session.variable())).get()
        assert type(caught.value.__cause__) is KeyError


@pytest.mark.parametrize("way", ["get", "run", "stream"])
async def test_the_sdk_raises_an_exception_as_it_is(
    way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No error of weftline stands before it: the user wrote the code that the client calls."""

    async def wrong(self: Any, request: httpx2.Request, **options: Any) -> Any:
        raise TypeError("the hook is broken")

    monkeypatch.setattr(httpx2.AsyncClient, "send", wrong)
    with pytest.raises(TypeError, match="the hook is broken"):
        await _acall(AsyncClient("http://t"), way)
    with pytest.raises(TypeError, match="the hook is broken"):
        _call(Client("http://t"), way)


async def _acall(client: AsyncClient, way: str) -> None:
    async with client:
        if way == "get":
            await client.models()
        elif way == "run":
            await client.run((CALL,), ("v",))
        else:
            _ = [text async for text in client.stream((CALL,), "v")]


def _call(client: Client, way: str) -> None:
    with client:
        if way == "get":
            client.models()
        elif way == "run":
            client.run((CALL,), ("v",))
        else:
            list(client.stream((CALL,), "v"))
