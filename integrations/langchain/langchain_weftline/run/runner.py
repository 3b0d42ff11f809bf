"""Runs a compiled chain, from a thread or from a coroutine.

Both ways do the same: run the client's steps, submit the known calls when nothing else can
continue, and wait for the next message.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing, closing
from types import MappingProxyType, TracebackType
from typing import Any, Self

from langchain_core.messages import AIMessageChunk
from langchain_core.runnables import Runnable, RunnableConfig

from langchain_weftline.lower.graph import Lowered, Variable
from langchain_weftline.lower.lowering import Lowering
from langchain_weftline.lower.program import Lost, Outcome, Program, settle
from langchain_weftline.lower.steps import Step
from langchain_weftline.model.answers import chunk_fields
from langchain_weftline.model.failures import own_failures
from langchain_weftline.run.callbacks import Telling
from langchain_weftline.run.submits import Message, OnMessage, Submits
from langchain_weftline.run.workers import Tasks, Threads
from weftline.adapters import Result, awaited
from weftline.sdk.http import OnGraph

# Seconds for which known calls wait while steps of the client still run, so that one request can
# submit several calls.
GATHER_S = 0.01

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})

Settled = Callable[[], Outcome | None]


class Execution:
    """One run of a compiled chain. Leaving the block cancels the calls that still run.

    `name` is the user's name of the run, which the server's list of sessions shows.
    """

    def __init__(
        self,
        chain: Runnable[Any, Any],
        input: Any,
        config: RunnableConfig,
        on_graph: OnGraph | None,
        options: Mapping[str, Any] = NO_OPTIONS,
        *,
        streams: bool = False,
        name: str = "",
    ) -> None:
        self._config = config
        self._on_graph = on_graph
        lowering = Lowering(decides=not streams)  # a branch of the server has its value at once
        self._program = Program(lowering.step(Step(chain, config, (), options), input))
        self._telling = Telling()
        self._submits = Submits(
            lowering, self._program, self._telling, graph=on_graph is not None, name=name
        )
        self._gathered = False  # the wait for more calls is over

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._submits.feed is not None:
            self._submits.feed.close()

    def run(self) -> Any:
        """The chain's result."""
        inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        try:
            with Threads(self._config, inbox.put) as threads:
                return self._wait(self._drive(inbox, threads), inbox, threads)
        except BaseException as error:
            for end in self._telling.left(error):
                self._telling.tell(end)
            raise

    def stream(self) -> Generator[Any, None, None]:
        """The chain's result: as it is generated, if it is one text, and otherwise at once."""
        inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        with Threads(self._config, inbox.put) as threads:
            lowered = self._drive(inbox, threads)
            result = self._submits.streamed(lowered, inbox.put)
            if result is None:
                yield _whole(lowered, self._wait(lowered, inbox, threads, streamed=True))
                return
            self._serve(inbox, threads, lambda: self._steps_over(lowered)).get()
            with (
                own_failures(lowered.result, lowered.calls, streamed=True),
                closing(result.text.read()) as texts,
            ):
                for text in texts:
                    yield _shown(lowered, text)
            self._serve(inbox, threads, lambda: self._settled(lowered, True)).get()
        if (end := _end(lowered, result)) is not None:
            yield end
        self._show_graph()

    async def arun(self) -> Any:
        """The chain's result."""
        inbox = _AsyncInbox()
        try:
            with Tasks(self._config, inbox.put) as tasks:
                return await self._await(await self._adrive(inbox, tasks), inbox, tasks)
        except BaseException as error:
            for end in self._telling.left(error):
                await self._telling.atell(end)
            raise

    async def astream(self) -> AsyncGenerator[Any, None]:
        """The chain's result: as it is generated, if it is one text, and otherwise at once."""
        inbox = _AsyncInbox()
        with Tasks(self._config, inbox.put) as tasks:
            lowered = await self._adrive(inbox, tasks)
            result = self._submits.streamed(lowered, inbox.put)
            if result is None:
                yield _whole(lowered, await self._await(lowered, inbox, tasks, streamed=True))
                return
            (await self._aserve(inbox, tasks, lambda: self._steps_over(lowered))).get()
            with own_failures(lowered.result, lowered.calls, streamed=True):
                async with aclosing(result.text.aread()) as texts:
                    async for text in texts:
                        yield _shown(lowered, text)
            (await self._aserve(inbox, tasks, lambda: self._settled(lowered, True))).get()
        if (end := _end(lowered, result)) is not None:
            yield end
        await self._ashow_graph()

    def _drive(self, inbox: queue.SimpleQueue[Message], threads: Threads) -> Lowered:
        """Run the client's steps, and submit the calls that they need. Returns the other calls."""
        program = self._program
        while True:
            threads.start(program.advance(), program)
            self._submits.keep(inbox.put)
            if program.can_go_on:
                continue
            if program.outcome is not None:
                return self._submits.rest(program.outcome)
            self._telling.tell_due(program.known)
            try:
                self._take(inbox.get(timeout=self._patience(inbox.put)))
            except queue.Empty:
                self._gathered = True
            self._telling.tell_due(program.known)

    async def _adrive(self, inbox: _AsyncInbox, tasks: Tasks) -> Lowered:
        """Run the client's steps, and submit the calls that they need. Returns the other calls."""
        program = self._program
        while True:
            await tasks.start(program.advance(), program)
            self._submits.keep(inbox.put)
            if program.can_go_on:
                continue
            if program.outcome is not None:
                return self._submits.rest(program.outcome)
            await self._telling.atell_due(program.known)
            try:
                self._take(await inbox.get(self._patience(inbox.put)))
            except TimeoutError:
                self._gathered = True
            await self._telling.atell_due(program.known)

    def _take(self, message: Message) -> None:
        if isinstance(message, tuple):
            self._program.ran(*message)
        else:
            self._program.told(message)

    def _patience(self, tell: OnMessage) -> float | None:
        """Seconds to wait for a message: None waits forever, and 0 does not wait.

        If no message can come, the parts that wait for steps of the client continue with promises.
        If there are no such parts, the calls are submitted.
        """
        program = self._program
        if not self._submits.is_due:
            return None
        if program.running and not self._gathered:
            return GATHER_S
        if program.promise():
            return 0
        self._gathered = False
        self._submits.submit(tell)
        return None

    def _wait(
        self,
        lowered: Lowered,
        inbox: queue.SimpleQueue[Message],
        threads: Threads,
        *,
        streamed: bool = False,
    ) -> Any:
        self._submits.last(lowered, inbox.put)
        made = self._serve(inbox, threads, lambda: self._settled(lowered, streamed)).get()
        self._show_graph()
        return made

    def _serve(
        self, inbox: queue.SimpleQueue[Message], threads: Threads, settled: Settled
    ) -> Outcome:
        """Run the remaining steps, when their values arrive, until the run has an outcome."""
        program = self._program
        while True:
            threads.start(program.advance(), program)
            self._submits.keep(inbox.put)
            self._telling.tell_due(program.known)
            if program.can_go_on:
                continue
            if (outcome := self._over(settled)) is not None:
                return outcome
            self._take(inbox.get())

    async def _await(
        self, lowered: Lowered, inbox: _AsyncInbox, tasks: Tasks, *, streamed: bool = False
    ) -> Any:
        self._submits.last(lowered, inbox.put)
        outcome = await self._aserve(inbox, tasks, lambda: self._settled(lowered, streamed))
        made = outcome.get()
        await self._ashow_graph()
        return made

    async def _aserve(self, inbox: _AsyncInbox, tasks: Tasks, settled: Settled) -> Outcome:
        """Run the remaining steps, when their values arrive, until the run has an outcome."""
        program = self._program
        while True:
            await tasks.start(program.advance(), program)
            self._submits.keep(inbox.put)
            await self._telling.atell_due(program.known)
            if program.can_go_on:
                continue
            if (outcome := self._over(settled)) is not None:
                return outcome
            self._take(await inbox.get(None))

    def _over(self, settled: Settled) -> Outcome | None:
        """The run's outcome. The run fails if a step fails, also if nothing reads the step."""
        program, outcome = self._program, settled()
        if outcome is None:
            return None
        if outcome.error is None:
            return program.lost or (outcome if program.is_served() else None)
        return program.lost if program.raised(outcome.error) else outcome

    def _steps_over(self, lowered: Lowered) -> Outcome | None:
        """The outcome so far of a streamed run, when all steps of the client have run.

        The form of the streamed answer itself is checked at its end.
        """
        name = _final(lowered).var
        event = self._program.known.get(name)
        if isinstance(event, Lost):
            return Outcome(error=event.error)
        return Outcome() if self._program.is_served(but=name) else self._program.lost

    def _show_graph(self) -> None:
        if self._on_graph is not None and self._submits.feed is not None:
            self._on_graph(self._submits.feed.fetch_graph().result())

    async def _ashow_graph(self) -> None:
        if self._on_graph is not None and self._submits.feed is not None:
            self._on_graph(await awaited(self._submits.feed.fetch_graph()))

    def _settled(self, lowered: Lowered, streamed: bool) -> Outcome | None:
        known, readers = self._program.known, self._program.readers
        return settle(lowered.result, known, lowered.calls, streamed=streamed, readers=readers)


class _AsyncInbox:
    """Messages from any thread to one coroutine."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Message] = asyncio.Queue()

    def put(self, message: Message) -> None:
        if not self._loop.is_closed():  # a closed loop has no reader
            self._loop.call_soon_threadsafe(self._queue.put_nowait, message)

    async def get(self, timeout: float | None) -> Message:
        async with asyncio.timeout(timeout):
            return await self._queue.get()


def _shown(lowered: Lowered, text: str) -> Any:
    """A part of the result: the text itself, or a chunk of a message."""
    return AIMessageChunk(content=text) if _final(lowered).is_message else text


def _whole(lowered: Lowered, made: Any) -> Any:
    """A result that is not streamed. A message becomes a single chunk."""
    result = lowered.result
    if not isinstance(result, Variable) or not result.is_message or result.make is not None:
        return made
    said = made.model_dump(exclude={"type"})
    return AIMessageChunk(**said, chunk_position="last")


def _end(lowered: Lowered, result: Result) -> AIMessageChunk | None:
    """The last chunk of a message, with its usage. None where the result is text."""
    if not _final(lowered).is_message:
        return None
    return AIMessageChunk(content="", chunk_position="last", **chunk_fields(result.value.result()))


def _final(lowered: Lowered) -> Variable:
    final = lowered.streamable()
    assert final is not None, "only one text is streamed"
    return final
