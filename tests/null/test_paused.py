"""A generate that stops for a tool ends paused: its call has its value, and its context
lives on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from weftline.contract.protocol import Call, InOut, Message, Placeholder, Segment, SubmitBody
from weftline.contract.tools import Function, Tool
from weftline_engine import api
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.runtime.driver import Driver
from weftline_server.runtime.registry import Registry, RegistryConfig
from weftline_server.schedule.dispatcher import Dispatcher

ASKED = '<tool_call>\n{"name": "look", "arguments": {"at": "loom"}}\n</tool_call>'


class Asking:
    """An engine whose model always calls a tool. It pauses when the op allows it."""

    def __init__(self) -> None:
        self.ops: list[api.Op] = []
        self.verbs: list[tuple[Any, ...]] = []
        self._out: asyncio.Queue[list[api.Event]] = asyncio.Queue()

    async def start(self) -> api.Description:
        return api.Description(model="m", takes_messages=True)

    def submit(self, op: api.Op) -> None:
        self.ops.append(op)
        assert op.sampling is not None
        usage = api.Usage(
            prompt_tokens=9, cached_tokens=0, output_tokens=5, started=0.0, filled=0.0
        )
        head: dict[str, Any] = {"op": op.id, "attempt": op.attempt, "time": 0.0}
        text = api.Part(**head, sequence=1, offset=0, tokens=(), text=ASKED)
        end: api.Event = api.Finished(**head, sequence=2, reason=api.FinishReason.STOP, usage=usage)
        if op.sampling.pause_on:
            end = api.Paused(**head, sequence=2, reason=op.sampling.pause_on[0], usage=usage)
        self._out.put_nowait([text, end])

    async def events(self) -> AsyncIterator[list[api.Event]]:
        while True:
            yield await self._out.get()

    def feed(self, op: str, offset: int, part: api.Fed, last: bool) -> None: ...
    def update(self, op: str, hints: api.Hints) -> None:
        self.verbs.append(("update", op))

    def cancel(self, op: str) -> None: ...
    def retain(self, context: str, retention: api.Retention) -> None:
        self.verbs.append(("retain", context, retention))

    def free(self, context: str) -> None:
        self.verbs.append(("free", context))

    async def close(self) -> None: ...


def asking(tools: tuple[Tool, ...]) -> Call:
    """A chat with one output, which may call a tool."""
    prompt = (
        Message(role="user", content=(Segment(text="What is there?"),)),
        Message(role="assistant", content=(Segment(output="out"),)),
    )
    out = Placeholder(name="out", in_out=InOut.OUT, semantic_var_id="x")
    return Call(name="ask", prompt=prompt, placeholders=(out,), tools=tools)


LOOK = Tool(function=Function(name="look", parameters={"type": "object"}))


@pytest.mark.parametrize(
    ("tools", "stays", "pause_on"),
    [((LOOK,), True, ("<tool_call>",)), ((LOOK,), False, ()), ((), True, ())],
    ids=["agent", "one request", "no tools"],
)
async def test_a_call_pauses_where_its_session_may_go_on(
    tools: tuple[Tool, ...], stays: bool, pause_on: tuple[str, ...]
) -> None:
    """The client gets the same message in either case."""
    engine = Asking()
    dispatcher = Dispatcher({"m": lambda: engine}, "app")
    driver = Driver(Registry(RegistryConfig()), dispatcher)
    await dispatcher.start(driver.reports)
    try:
        session = driver.open("t", stays=stays)
        await driver.submit(session, SubmitBody(calls=(asking(tools),)))
        value = (await driver.readers.get(session, "x")).value
        [op] = engine.ops
        assert op.sampling is not None and op.sampling.pause_on == pause_on
        producer = PrimitiveId(session.id, session.graph.producer["x"])
        called = driver.reports.outlook.called_tools(producer)
        assert called == (("look",) if tools else None)
        if not tools:
            assert value == ASKED
            return
        [message] = value["tool_calls"]
        assert message["function"] == {"name": "look", "arguments": '{"at": "loom"}'}
        step = session.primitives[producer.primitive].step
        assert step is not None and step.reason is api.FinishReason.STOP
    finally:
        await driver.shut_down()
        await dispatcher.close()
