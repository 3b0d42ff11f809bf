"""Runs a compiled chain, from a thread or from a coroutine.

Both ways do the same: run the client's steps, submit the known calls when nothing else can go on,
and wait for the next message.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, aclosing, closing
from types import MappingProxyType, TracebackType
from typing import Any, Self

from langchain_core.messages import AIMessageChunk
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import get_executor_for_config

from langchain_weftline.lower.lowered import Draft, Lowered, Variable, finish, raw_calls
from langchain_weftline.lower.lowering import Lowering
from langchain_weftline.lower.program import Job, Outcome, Program, settle
from langchain_weftline.lower.steps import Step
from langchain_weftline.model.answers import chunk_fields
from langchain_weftline.model.failures import own_failures
from langchain_weftline.model.patience import Deadlines
from langchain_weftline.run.telling import Telling
from weftline.adapters import Feed, Result, awaited
from weftline.http import MAX_RETRIES, OnGraph
from weftline.protocol import Call
from weftline.watching import Failed, Value

# While steps of the client still run, the calls of other parts wait this long, so that one request
# can submit several.
GATHER_S = 0.01

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})

Message = Value | Failed | tuple[Job, Outcome]
OnMessage = Callable[[Message], None]


class Execution:
    """One run of a compiled chain. Leaving the block cancels the calls that still run."""

    def __init__(
        self,
        chain: Runnable[Any, Any],
        input: Any,
        config: RunnableConfig,
        on_graph: OnGraph | None,
        options: Mapping[str, Any] = NO_OPTIONS,
    ) -> None:
        self._config = config
        self._on_graph = on_graph
        self._lowering = Lowering()
        self._program = Program(self._lowering.step(Step(chain, config, (), options), input))
        self._telling = Telling()
        self._told_of: tuple[str, ...] = ()  # variables that callbacks need
        self._feed: Feed | None = None
        self._watched: set[str] = set()
        self._deadlines = Deadlines()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._feed is not None:
            self._feed.close()

    def run(self) -> Any:
        """The chain's result."""
        inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        try:
            return self._wait(self._drive(inbox), inbox)
        except BaseException as error:
            for end in self._telling.left(error):
                self._telling.tell(end)
            raise

    def stream(self) -> Generator[Any, None, None]:
        """The chain's result: as it is generated, if it is one text, and otherwise at once."""
        inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        lowered = self._drive(inbox)
        result = self._streamed(lowered, inbox.put)
        if result is None:
            yield _whole(lowered, self._wait(lowered, inbox, streamed=True))
            return
        with (
            own_failures(lowered.result, lowered.calls, streamed=True),
            closing(result.text.read()) as texts,
        ):
            for text in texts:
                yield _shown(lowered, text)
        if (end := _end(lowered, result)) is not None:
            yield end
        if self._on_graph is not None and self._feed is not None:
            self._on_graph(self._feed.fetch_graph().result())

    async def arun(self) -> Any:
        """The chain's result."""
        inbox = _AsyncInbox()
        try:
            return await self._await(await self._adrive(inbox), inbox)
        except BaseException as error:
            for end in self._telling.left(error):
                await self._telling.atell(end)
            raise

    async def astream(self) -> AsyncGenerator[Any, None]:
        """The chain's result: as it is generated, if it is one text, and otherwise at once."""
        inbox = _AsyncInbox()
        lowered = await self._adrive(inbox)
        result = self._streamed(lowered, inbox.put)
        if result is None:
            yield _whole(lowered, await self._await(lowered, inbox, streamed=True))
            return
        with own_failures(lowered.result, lowered.calls, streamed=True):
            async with aclosing(result.text.aread()) as texts:
                async for text in texts:
                    yield _shown(lowered, text)
        if (end := _end(lowered, result)) is not None:
            yield end
        if self._on_graph is not None and self._feed is not None:
            self._on_graph(await awaited(self._feed.fetch_graph()))

    def _drive(self, inbox: queue.SimpleQueue[Message]) -> Lowered:
        """Run the client's steps, and submit the calls that they need. The rest is returned."""
        program = self._program
        with ExitStack() as stack:
            threads: Executor | None = None

            def work(job: Job) -> None:
                inbox.put((job, _perform(job)))

            while True:
                jobs = program.advance()
                for job in jobs:
                    if job.run.is_quick or (len(jobs) == 1 and program.is_alone):
                        program.ran(job, _perform(job))
                        continue
                    if threads is None:
                        pool = get_executor_for_config(self._config)
                        threads = stack.enter_context(pool)
                    threads.submit(work, job)
                if program.can_go_on:
                    continue
                if program.outcome is not None:
                    return self._lowered(program.outcome)
                try:
                    patience = self._patience(inbox.put)
                    self._telling.tell_due(self._program.known)
                    self._take(inbox.get(timeout=patience))
                except queue.Empty:
                    self._submit(inbox.put)
                self._telling.tell_due(self._program.known)

    async def _adrive(self, inbox: _AsyncInbox) -> Lowered:
        """Run the client's steps, and submit the calls that they need. The rest is returned."""
        program = self._program
        room = asyncio.Semaphore(self._config.get("max_concurrency") or 2**31)
        tasks: set[asyncio.Task[None]] = set()

        async def work(job: Job) -> None:
            async with room:
                inbox.put((job, await _aperform(job)))

        try:
            while True:
                jobs = program.advance()
                for job in jobs:
                    if job.run.is_quick or (len(jobs) == 1 and program.is_alone):
                        program.ran(job, await _aperform(job))
                        continue
                    task = asyncio.create_task(work(job))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                if program.can_go_on:
                    continue
                if program.outcome is not None:
                    return self._lowered(program.outcome)
                try:
                    patience = self._patience(inbox.put)
                    await self._telling.atell_due(self._program.known)
                    self._take(await inbox.get(patience))
                except TimeoutError:
                    self._submit(inbox.put)
                await self._telling.atell_due(self._program.known)
        finally:
            for task in tasks:
                task.cancel()

    def _take(self, message: Message) -> None:
        if isinstance(message, tuple):
            self._program.ran(*message)
        else:
            self._program.told(message)

    def _patience(self, tell: OnMessage) -> float | None:
        """Seconds to wait for a message; None waits forever.

        Submits the calls first if nothing else can bring a message.
        """
        if not self._lowering.calls.drafts and self._watched >= set(self._program.wanted()):
            return None
        if self._program.running:
            return GATHER_S
        self._submit(tell)
        return None

    def _submit(self, tell: OnMessage) -> None:
        """Submit the calls found so far, and watch the variables that parts of the chain need."""
        drafts, self._lowering.calls.drafts = self._lowering.calls.drafts, []
        needed = dict.fromkeys([*self._program.wanted(), *self._heard(drafts)])
        wanted = [name for name in needed if name not in self._watched]
        if drafts and not wanted:
            wanted = [draft.var for draft in drafts]
        self._send(raw_calls(drafts), wanted, tell)

    def _heard(self, drafts: Sequence[Draft]) -> tuple[str, ...]:
        """The variables that callbacks need to hear of `drafts`, which are about to be sent."""
        heard = self._telling.add(drafts, self._lowering.calls.asked)
        self._told_of = (*heard, *self._telling.reads())
        return self._told_of

    def _lowered(self, outcome: Outcome) -> Lowered:
        calls = self._lowering.calls
        return finish(calls.drafts, outcome.get(), calls.server, self._heard)

    def _last(self, lowered: Lowered, tell: OnMessage, *, parts: bool = False) -> None:
        """Submit the remaining calls, and watch the remaining variables of the result."""
        known = self._program.known.keys() | self._watched
        needed = dict.fromkeys([*lowered.variables(), *self._told_of])
        watch = [name for name in needed if name not in known]
        if lowered.calls or watch:
            graph = self._on_graph is not None
            self._send(lowered.calls, watch, tell, parts=parts, graph=graph, close=True)

    def _send(
        self, calls: Sequence[Call], watch: Sequence[str], tell: OnMessage, **how: bool
    ) -> None:
        self._watched.update(watch)
        if self._feed is None:
            server = self._lowering.calls.server
            assert server is not None, "a variable has a call, and a call has a model"
            self._feed = Feed(server, tell)
        patience, now = self._lowering.calls.patience, time.monotonic()
        self._deadlines.submitted(calls, patience, now)
        outputs = [p.semantic_var_id for call in calls for p in call.placeholders]
        retries = [patience[name].retries for name in outputs if name in patience]
        self._feed.send(
            calls,
            watch,
            max_retries=max(retries, default=MAX_RETRIES),
            within=self._deadlines.left(watch, now),
            **how,
        )

    def _streamed(self, lowered: Lowered, tell: OnMessage) -> Result | None:
        """Submit the calls of a result that is streamed. None where it is not one text."""
        final = lowered.streamable()
        if final is None or final.var in self._program.known:
            return None
        self._last(lowered, tell, parts=True)
        assert self._feed is not None, "an unknown variable is watched"
        return self._feed.results[final.var]

    def _wait(
        self, lowered: Lowered, inbox: queue.SimpleQueue[Message], *, streamed: bool = False
    ) -> Any:
        self._last(lowered, inbox.put)
        self._telling.tell_due(self._program.known)
        while (outcome := self._settled(lowered, streamed)) is None:
            self._take(inbox.get())
            self._telling.tell_due(self._program.known)
        made = outcome.get()
        if self._on_graph is not None and self._feed is not None:
            self._on_graph(self._feed.fetch_graph().result())
        return made

    async def _await(self, lowered: Lowered, inbox: _AsyncInbox, *, streamed: bool = False) -> Any:
        self._last(lowered, inbox.put)
        await self._telling.atell_due(self._program.known)
        while (outcome := self._settled(lowered, streamed)) is None:
            self._take(await inbox.get(None))
            await self._telling.atell_due(self._program.known)
        made = outcome.get()
        if self._on_graph is not None and self._feed is not None:
            self._on_graph(await awaited(self._feed.fetch_graph()))
        return made

    def _settled(self, lowered: Lowered, streamed: bool) -> Outcome | None:
        return settle(lowered.result, self._program.known, lowered.calls, streamed=streamed)


class _AsyncInbox:
    """Messages from any thread to one coroutine."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Message] = asyncio.Queue()

    def put(self, message: Message) -> None:
        if not self._loop.is_closed():  # the reader is gone with its loop
            self._loop.call_soon_threadsafe(self._queue.put_nowait, message)

    async def get(self, timeout: float | None) -> Message:
        async with asyncio.timeout(timeout):
            return await self._queue.get()


def _perform(job: Job) -> Outcome:
    run = job.run
    try:
        return Outcome(run.step.invoke(run.value, run.config, **run.options))
    except BaseException as error:  # the part that asked for the step raises it
        return Outcome(error=error)


async def _aperform(job: Job) -> Outcome:
    run = job.run
    try:
        return Outcome(await run.step.ainvoke(run.value, run.config, **run.options))
    except Exception as error:
        return Outcome(error=error)


def _shown(lowered: Lowered, text: str) -> Any:
    """A part of the result: the text itself, or a chunk of a message."""
    return AIMessageChunk(content=text) if _final(lowered).is_message else text


def _whole(lowered: Lowered, made: Any) -> Any:
    """A result that comes at once. A message becomes its own only chunk."""
    result = lowered.result
    if not isinstance(result, Variable) or not result.is_message:
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
