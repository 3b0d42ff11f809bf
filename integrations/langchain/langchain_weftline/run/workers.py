"""Runs the client's steps of a compiled chain, on threads or as tasks of an event loop.

Both also take the messages to the run, and tell callbacks. The methods of `Threads` are coroutines
that block their thread and never wait for an event loop, so that a run is written once: `at_once`
runs them.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Coroutine, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from typing import Any, Self, TypeVar

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import get_executor_for_config

from langchain_weftline.lower.program import Job, Outcome, Program
from langchain_weftline.run.callbacks import End, Start, Telling
from langchain_weftline.run.compression import beginning
from langchain_weftline.run.submits import Message
from weftline.adapters import awaited

T = TypeVar("T")


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for no event loop."""
    try:
        work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise AssertionError("it waits for an event loop")


def _runs_here(job: Job, jobs: Sequence[Job], program: Program) -> bool:
    """Whether a step runs in this thread, because it is short or nothing else is running."""
    return job.run.is_quick or (len(jobs) == 1 and program.is_alone)


class Threads:
    """Steps on LangChain's threads. Leaving the block waits for them."""

    def __init__(self, config: RunnableConfig) -> None:
        self._config = config
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.put = self._inbox.put
        self._stack = ExitStack()
        self._pool: Executor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    async def start(self, jobs: Sequence[Job], program: Program) -> None:
        """Start the steps. A short step runs before this returns."""
        for job in jobs:
            if _runs_here(job, jobs, program):
                program.ran(job, _perform(job))
                continue
            if self._pool is None:
                self._pool = self._stack.enter_context(get_executor_for_config(self._config))
            self._pool.submit(self._work, job)

    def _work(self, job: Job) -> None:
        self.put((job, _perform(job)))

    async def get(self, timeout: float | None = None) -> Message:
        """The next message to the run. Raises TimeoutError."""
        try:
            return self._inbox.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError from None

    async def tell(self, telling: Telling, event: Start | End) -> None:
        """Tell callbacks."""
        telling.tell(event)

    async def wait(self, future: Future[T]) -> T:
        """The result of work on another thread."""
        return future.result()


class Tasks:
    """Steps as tasks. Leaving the block cancels those that still run."""

    def __init__(self, config: RunnableConfig) -> None:
        self._loop = asyncio.get_running_loop()
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._room = asyncio.Semaphore(config.get("max_concurrency") or 2**31)
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()

    async def start(self, jobs: Sequence[Job], program: Program) -> None:
        """Start the steps. A short step runs before this returns."""
        for job in jobs:
            if _runs_here(job, jobs, program):
                program.ran(job, await _aperform(job))
                continue
            task = asyncio.create_task(self._work(job))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self, job: Job) -> None:
        async with self._room:
            self.put((job, await _aperform(job)))

    def put(self, message: Message) -> None:
        """Send a message to the run, from any thread."""
        if not self._loop.is_closed():  # a closed loop has no reader
            self._loop.call_soon_threadsafe(self._inbox.put_nowait, message)

    async def get(self, timeout: float | None = None) -> Message:
        """The next message to the run. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            return await self._inbox.get()

    async def tell(self, telling: Telling, event: Start | End) -> None:
        """Tell callbacks."""
        await telling.atell(event)

    async def wait(self, future: Future[T]) -> T:
        """The result of work on another thread."""
        return await awaited(future)


Workers = Threads | Tasks


def _perform(job: Job) -> Outcome:
    run = job.run
    try:
        config = beginning(run.step, run.config)
        return Outcome(run.step.invoke(run.value, config, **run.options))
    except BaseException as error:  # the part that asked for the step raises it
        return Outcome(error=error)


async def _aperform(job: Job) -> Outcome:
    run = job.run
    try:
        config = beginning(run.step, run.config)
        return Outcome(await run.step.ainvoke(run.value, config, **run.options))
    except Exception as error:
        return Outcome(error=error)
