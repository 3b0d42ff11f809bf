"""Runs an agent: sends its request, computes the calls of its tools, and reads its stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol, TypeVar

from weftline.contract.protocol import SetVariable
from weftline.sdk.agent import ROUTE, Agent, AgentResult, DueCall, observation_of
from weftline.sdk.connection import AsyncConnection
from weftline.sdk.own_functions import Compute
from weftline.sdk.step_tasks import send

T = TypeVar("T")


class AsyncAgentSession(Protocol):
    """What a run asks of its session."""

    @property
    def id(self) -> str:
        """The server's name for the session."""

    async def flush(self) -> None:
        """Send the calls that were added before the run."""


class AsyncAgentRun:
    """One run of an agent. Iterate over `stream` for its text, or `await` it for its result."""

    def __init__(
        self,
        session: AsyncAgentSession,
        connection: AsyncConnection,
        agent: Agent,
        compute: Compute,
    ) -> None:
        self._session = session
        self._connection = connection
        self._agent = agent
        self._run = compute
        self._texts: AsyncGenerator[str, None] | None = None

    def __await__(self) -> Generator[Any, None, AgentResult]:
        return self.get().__await__()

    def stream(self) -> AsyncGenerator[str, None]:
        """The model's text in all its turns, in parts, as it is generated."""
        if self._texts is None:
            self._texts = self._read()
        return self._texts

    async def get(self) -> AgentResult:
        """Wait for the end of the run, and return its result."""
        async for _ in self.stream():
            pass
        return self._agent.result

    async def _read(self) -> AsyncGenerator[str, None]:
        await self._session.flush()
        running: set[asyncio.Task[None]] = set()
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            events = self._connection.events(ROUTE, self._agent.request)
            async with aclosing(events), aclosing(_until(lost, events)) as read:
                async for event in read:
                    said = self._agent.hear(event.data)
                    if isinstance(said, str):
                        yield said
                    elif said is not None:
                        task = asyncio.create_task(self._compute(said, lost))
                        running.add(task)
                        task.add_done_callback(running.discard)
        finally:  # cancel the tools when the reader leaves the run
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _compute(self, call: DueCall, lost: asyncio.Future[None]) -> None:
        spec = call.tool.spec
        try:
            function = partial(call.tool.function, **call.bound())
            work = self._run(spec.function.name, function)
            done = await asyncio.wait_for(work, spec.timeout_s)
            made = observation_of(done.value) if done.error is None else call.failed(done.error)
        except TimeoutError:
            made = SetVariable(value=call.timed_out)
        except ValueError as error:  # the arguments
            made = call.failed(error)
        try:
            await send(self._session.id, self._connection, call.variable, made)
        except Exception as error:  # the run raises it: the server would wait for the result
            if not lost.done():
                lost.set_exception(error)


async def _until(lost: asyncio.Future[None], events: AsyncGenerator[T]) -> AsyncGenerator[T]:
    """The events. Raises the error of `lost` as soon as it has one."""
    while True:
        coming = asyncio.ensure_future(_next(events))
        try:
            await asyncio.wait((coming, lost), return_when=asyncio.FIRST_COMPLETED)
            if lost.done():
                lost.result()
            found = await coming
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        if found is None:
            return
        yield found


async def _next(events: AsyncGenerator[T]) -> T | None:
    return await anext(events, None)
