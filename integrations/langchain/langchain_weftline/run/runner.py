"""Runs a compiled chain, from a thread or from a coroutine.

Thread and coroutine do the same: run the client's steps, submit the known calls when nothing else
can continue, and wait for the next message.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing, closing
from types import MappingProxyType
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
from langchain_weftline.run.workers import Tasks, Threads, Workers, at_once
from weftline.adapters import Result
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

    def __exit__(self, *error: object) -> None:
        if self._submits.feed is not None:
            self._submits.feed.close()

    def run(self) -> Any:
        return at_once(self._run(Threads(self._config)))

    async def arun(self) -> Any:
        return await self._run(Tasks(self._config))

    async def _run(self, workers: Workers) -> Any:
        try:
            with workers:
                return await self._result(await self._drive(workers), workers)
        except BaseException as error:
            for end in self._telling.left(error):
                await workers.tell(self._telling, end)
            raise

    def stream(self) -> Generator[Any, None, None]:
        """The chain's result: as it is generated, if it is one text, and otherwise at once."""
        with Threads(self._config) as threads:
            lowered = at_once(self._drive(threads))
            result = self._submits.streamed(lowered, threads.put)
            if result is None:
                yield _whole(lowered, at_once(self._result(lowered, threads, streamed=True)))
                return
            at_once(self._serve(threads, lambda: self._steps_over(lowered))).get()
            with (
                own_failures(lowered.result, lowered.calls, streamed=True),
                closing(result.text.read()) as texts,
            ):
                for text in texts:
                    yield _shown(lowered, text)
            at_once(self._serve(threads, lambda: self._settled(lowered, True))).get()
        if (end := _end(lowered, result)) is not None:
            yield end
        at_once(self._show_graph(threads))

    async def astream(self) -> AsyncGenerator[Any, None]:
        """The chain's result: as it is generated, if it is one text, and otherwise at once."""
        with Tasks(self._config) as tasks:
            lowered = await self._drive(tasks)
            result = self._submits.streamed(lowered, tasks.put)
            if result is None:
                yield _whole(lowered, await self._result(lowered, tasks, streamed=True))
                return
            (await self._serve(tasks, lambda: self._steps_over(lowered))).get()
            with own_failures(lowered.result, lowered.calls, streamed=True):
                async with aclosing(result.text.aread()) as texts:
                    async for text in texts:
                        yield _shown(lowered, text)
            (await self._serve(tasks, lambda: self._settled(lowered, True))).get()
        if (end := _end(lowered, result)) is not None:
            yield end
        await self._show_graph(tasks)

    async def _drive(self, workers: Workers) -> Lowered:
        """Run the client's steps, and submit the calls that they need. Returns the other calls."""
        program = self._program
        while True:
            await workers.start(program.advance(), program)
            self._submits.keep(workers.put)
            if program.can_go_on:
                continue
            if program.outcome is not None:
                return self._submits.rest(program.outcome)
            await self._tell_due(workers)
            try:
                self._take(await workers.get(self._patience(workers.put)))
            except TimeoutError:
                self._gathered = True
            await self._tell_due(workers)

    async def _tell_due(self, workers: Workers) -> None:
        """Tell callbacks what has happened."""
        for event in self._telling.due(self._program.known):
            await workers.tell(self._telling, event)

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

    async def _result(self, lowered: Lowered, workers: Workers, *, streamed: bool = False) -> Any:
        self._submits.last(lowered, workers.put)
        made = (await self._serve(workers, lambda: self._settled(lowered, streamed))).get()
        await self._show_graph(workers)
        return made

    async def _serve(self, workers: Workers, settled: Settled) -> Outcome:
        """Run the remaining steps, when their values arrive, until the run has an outcome."""
        program = self._program
        while True:
            await workers.start(program.advance(), program)
            self._submits.keep(workers.put)
            await self._tell_due(workers)
            if program.can_go_on:
                continue
            if (outcome := self._over(settled)) is not None:
                return outcome
            self._take(await workers.get())

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

    async def _show_graph(self, workers: Workers) -> None:
        if self._on_graph is not None and self._submits.feed is not None:
            self._on_graph(await workers.wait(self._submits.feed.fetch_graph()))

    def _settled(self, lowered: Lowered, streamed: bool) -> Outcome | None:
        known, readers = self._program.known, self._program.readers
        return settle(lowered.result, known, lowered.calls, streamed=streamed, readers=readers)


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
