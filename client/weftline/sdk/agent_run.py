"""Runs an agent: sends its step, computes the calls of its tools, and reads its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing
from functools import partial
from typing import Any

from weftline.contract.protocol import SetVariable, SubmitBody
from weftline.sdk.agent_state import Agent, AgentResult, DueCall, observation_of
from weftline.sdk.connection import AsyncConnection
from weftline.sdk.control_verbs import SessionState
from weftline.sdk.own_functions import Compute
from weftline.sdk.step_tasks import send
from weftline.sdk.watch_events import event_of


class AsyncAgentRun:
    """One run of an agent. Iterate over `stream` for its text, or `await` it for its result."""

    def __init__(
        self,
        session: SessionState,
        flush: Callable[[], Awaitable[None]],
        connection: AsyncConnection,
        agent: Agent,
        compute: Compute,
    ) -> None:
        self._session = session
        self._flush = flush  # sends what was added to the session before the run
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
        await self._flush()
        said: asyncio.Queue[str | Exception | None] = asyncio.Queue()
        tasks: set[asyncio.Task[None]] = set()
        tasks.add(asyncio.create_task(self._watch(said, tasks)))
        try:
            while (one := await said.get()) is not None:
                if isinstance(one, Exception):
                    raise one
                yield one
        finally:  # cancel the tools when the reader leaves the run
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(
        self, said: asyncio.Queue[str | Exception | None], tasks: set[asyncio.Task[None]]
    ) -> None:
        step = self._agent.step
        assert step.out is not None, "the SDK names every output"
        submit = SubmitBody(
            session_id=self._session.id, steps=(step,), watch=(step.out,), parts=True
        )
        try:
            async with aclosing(self._connection.events("/v1/submit", submit)) as events:
                async for event in events:
                    heard = event_of(event)
                    found = None if heard is None else self._agent.hear(heard)
                    if isinstance(found, str):
                        said.put_nowait(found)
                    elif found is not None:
                        tasks.add(asyncio.create_task(self._compute(found, said)))
            said.put_nowait(None)
        except Exception as error:
            said.put_nowait(error)

    async def _compute(self, call: DueCall, said: asyncio.Queue[str | Exception | None]) -> None:
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
            said.put_nowait(error)
