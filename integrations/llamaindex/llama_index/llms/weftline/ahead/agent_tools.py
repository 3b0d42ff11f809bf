"""Starts read-only tools while the model still writes, for LlamaIndex's agents."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from llama_index.core.base.llms.types import ChatResponse, ChatResponseAsyncGen
from llama_index.core.tools import FunctionTool

from weftline.kit.early_tools import EarlyTurn, StartedTools

log = logging.getLogger(__name__)

# Seconds for which a result is kept after the model's turn. An agent calls its tools soon, at most
# four at a time. A call that comes later runs the tool again.
KEEP_S = 60.0


def early(tools: Sequence[FunctionTool]) -> list[FunctionTool]:
    """The tools. A `Weftline` starts each as soon as its call is complete, before the turn ends.

        agent = FunctionAgent(tools=[*early([search]), write], llm=Weftline())

    Pass only tools without effects, which may run without a person's approval. A tool with the
    workflow's context as a parameter is not started early.
    """
    return [tool if tool.requires_context else EarlyTool(tool) for tool in tools]


class EarlyTool(FunctionTool):
    """A function tool that may start early. A call with equal arguments gets the early result."""

    def __init__(self, tool: FunctionTool) -> None:
        self.__dict__.update(tool.__dict__)
        self._plain = tool.async_fn
        self._async_fn = self._result
        self._started: list[tuple[dict[str, Any], asyncio.Task[Any]]] = []

    def begin(self, arguments: dict[str, Any]) -> asyncio.Task[Any]:
        """Start the tool now. The result is kept for its call."""
        given = {**self._field_defaults, **self.partial_params, **arguments}
        task = asyncio.get_running_loop().create_task(self._run(given))
        self._started.append((given, task))
        task.add_done_callback(_read_error)
        return task

    async def _run(self, arguments: dict[str, Any]) -> Any:
        return await self._plain(**arguments)

    def drop(self, task: asyncio.Task[Any]) -> None:
        """Forget a result that no call has used, and cancel its run."""
        for index, (_, started) in enumerate(self._started):
            if started is task:
                del self._started[index]
                task.cancel()
                return

    async def _result(self, *args: Any, **kwargs: Any) -> Any:
        loop = asyncio.get_running_loop()
        for index, (arguments, task) in enumerate(self._started):
            if not args and arguments == kwargs and task.get_loop() is loop:
                del self._started[index]
                return await task
        return await self._plain(*args, **kwargs)


def watched(responses: ChatResponseAsyncGen, tools: Sequence[Any]) -> ChatResponseAsyncGen:
    """The responses as they arrive. When a response completes a call, the call's tool starts."""
    known = {tool.metadata.get_name(): tool for tool in tools if isinstance(tool, EarlyTool)}
    return _watched(responses, known) if known else responses


async def _watched(
    responses: ChatResponseAsyncGen, tools: dict[str, EarlyTool]
) -> AsyncGenerator[ChatResponse, None]:
    begun: list[tuple[EarlyTool, asyncio.Task[Any]]] = []

    def start(name: str, arguments: dict[str, Any]) -> None:
        if (tool := tools.get(name)) is not None:
            begun.append((tool, tool.begin(arguments)))

    turn: EarlyTurn[Any] = EarlyTurn(start, StartedTools())
    is_whole = False
    try:
        async with aclosing(responses):
            async for response in responses:
                _see(turn, response)
                yield response
        is_whole = True
    finally:
        for tool, task in begun:
            if is_whole:
                asyncio.get_running_loop().call_later(KEEP_S, tool.drop, task)
            else:
                tool.drop(task)


def _see(turn: EarlyTurn[Any], response: ChatResponse) -> None:
    chunk = response.raw if isinstance(response.raw, dict) else {}
    for choice in chunk.get("choices") or ():
        for part in (choice.get("delta") or {}).get("tool_calls") or ():
            said = part.get("function") or {}
            index = part.get("index") or 0
            turn.see(index, part.get("id"), said.get("name"), said.get("arguments"))


def _read_error(task: asyncio.Task[Any]) -> None:
    """Log the task's error. Its call raises it, but a turn that breaks off makes no such call."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.debug("a tool that started early has failed", exc_info=error)
