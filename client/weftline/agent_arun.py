"""Runs an agent for the asynchronous client. Its tools run on the event loop, or in threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from weftline.agent import ROUTE, Agent, AgentResult, DueCall, failure_of, observation_of
from weftline.protocol import SetVariable
from weftline.step_tasks import send

if TYPE_CHECKING:
    from weftline.aclient import AsyncSession


class AsyncAgentRun:
    """One run of an agent. Iterate over `stream` for its text, or `await` it for its result."""

    def __init__(self, session: AsyncSession, agent: Agent) -> None:
        self._session = session
        self._agent = agent
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
        try:
            events = self._session._client._events(ROUTE, self._agent.request)
            async with aclosing(events):
                async for event in events:
                    said = self._agent.hear(event.data)
                    if isinstance(said, str):
                        yield said
                    elif said is not None:
                        task = asyncio.create_task(self._compute(said))
                        running.add(task)
                        task.add_done_callback(running.discard)
        finally:  # cancel the tools when the reader leaves the run
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _compute(self, call: DueCall) -> None:
        function, timeout_s = call.tool.function, call.tool.spec.timeout_s
        try:
            given = call.bound()
            work = function(**given) if call.tool.is_async else asyncio.to_thread(function, **given)
            made = observation_of(await asyncio.wait_for(work, timeout_s))
        except TimeoutError:
            made = SetVariable(value=call.timed_out)
        except Exception as error:
            made = failure_of(error)
        await send(self._session, call.variable, made)
