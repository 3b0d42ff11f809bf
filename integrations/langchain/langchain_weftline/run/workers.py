"""Runs the client's steps of a compiled chain: on threads, or as tasks of an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import get_executor_for_config

from langchain_weftline.lower.program import Job, Outcome, Program
from langchain_weftline.run.compression import beginning

Ended = Callable[[tuple[Job, Outcome]], None]


def _runs_here(job: Job, jobs: Sequence[Job], program: Program) -> bool:
    """Whether a step runs in this thread, because it is short or nothing else is running."""
    return job.run.is_quick or (len(jobs) == 1 and program.is_alone)


class Threads:
    """Steps on LangChain's threads. Leaving the block waits for them."""

    def __init__(self, config: RunnableConfig, ended: Ended) -> None:
        self._config = config
        self._ended = ended
        self._stack = ExitStack()
        self._pool: Executor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def start(self, jobs: Sequence[Job], program: Program) -> None:
        """Start the steps. A short step runs before this returns."""
        for job in jobs:
            if _runs_here(job, jobs, program):
                program.ran(job, _perform(job))
                continue
            if self._pool is None:
                self._pool = self._stack.enter_context(get_executor_for_config(self._config))
            self._pool.submit(self._work, job)

    def _work(self, job: Job) -> None:
        self._ended((job, _perform(job)))


class Tasks:
    """Steps as tasks. Leaving the block cancels those that still run."""

    def __init__(self, config: RunnableConfig, ended: Ended) -> None:
        self._ended = ended
        self._room = asyncio.Semaphore(config.get("max_concurrency") or 2**31)
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
            self._ended((job, await _aperform(job)))


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
