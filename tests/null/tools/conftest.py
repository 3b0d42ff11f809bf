"""A tool engine that the tests share, and calls of it."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from weftline_engine import api
from weftline_engine.services.tools.config import Limits, ToolsConfig
from weftline_engine.services.tools.engine import ToolEngine
from weftline_engine.services.tools.tool_calls import BegunCalls

FOLDER = Path(__file__).parent


def config(**more: Any) -> ToolsConfig:
    limits = Limits(memory_mb=1024, processes=20)
    made: dict[str, Any] = {"module": "some_tools", "path": FOLDER, "limits": limits, **more}
    return ToolsConfig(name="some", **made)


class Calls:
    """An engine that runs, and the values of its ops."""

    def __init__(self, engine: api.Engine, description: api.Description) -> None:
        self.engine = engine
        self.description = description
        self.ended: dict[str, asyncio.Future[api.Event]] = {}
        self._numbers = itertools.count()
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for events in self.engine.events():
                for event in events:
                    if isinstance(event, api.Finished | api.Failed):
                        self.ended[event.op].set_result(event)
        except api.EngineDied:
            for future in self.ended.values():
                future.cancel()

    def begin(self, name: str, arguments: Any = None, *, id: str = "", attempt: int = 0) -> str:
        """Submit a call, or the open op of one without arguments."""
        id = id or f"s/{next(self._numbers)}"
        self.ended[id] = asyncio.get_running_loop().create_future()
        text = None if arguments is None else json.dumps(arguments)
        op = api.Op(id=id, kind="tool", context=id, inputs={"tool": name})
        self.engine.submit(replace(op, attempt=attempt, text=text, open=text is None))
        return id

    async def value(self, id: str) -> dict[str, Any]:
        event = await self.ended[id]
        assert isinstance(event, api.Finished), event
        assert isinstance(event.value, dict)
        return event.value

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        return await self.value(self.begin(name, arguments))

    async def result(self, name: str, **arguments: Any) -> Any:
        value = await self.call(name, **arguments)
        assert not value["is_error"], value
        return json.loads(value["content"])

    async def error(self, name: str, **arguments: Any) -> str:
        value = await self.call(name, **arguments)
        assert value["is_error"] and not value["rejected"], value
        return str(value["content"])


async def running(begun: BegunCalls | None = None, **more: Any) -> Calls:
    engine = ToolEngine(config(**more), begun or BegunCalls())
    return Calls(engine, await engine.start())


@pytest.fixture
async def calls() -> AsyncIterator[Calls]:
    made = await running()
    yield made
    await made.engine.close()
    await made.reading
