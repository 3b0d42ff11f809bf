"""How a client runs functions of its program: on the event loop, or in threads."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass
from threading import Thread
from typing import Any, TypeAlias

MOST_AT_ONCE = 32  # threads of a session; more would compete for Python's lock

Function: TypeAlias = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Computed:
    """What a function returned, or the exception that it raised.

    The exception is data, because a future cannot raise a StopIteration.
    """

    value: Any = None
    error: BaseException | None = None


# Runs a function, whose name is for people.
Compute: TypeAlias = Callable[[str, Function], Awaitable[Computed]]


async def on_the_loop(name: str, function: Function) -> Computed:
    """Run a coroutine function here, and any other function in a thread."""
    if not inspect.iscoroutinefunction(function):
        return await asyncio.to_thread(_computed, function)
    try:
        return Computed(await function())
    except Exception as error:
        return Computed(error=error)


class OwnThreads:
    """Runs each function in a thread of its own, where it may block and wait for other calls.

    The threads are daemons, so that a program can end before its functions. A function whose caller
    is cancelled runs on, because Python cannot end a thread.
    """

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(MOST_AT_ONCE)

    async def __call__(self, name: str, function: Function) -> Computed:
        made: Future[Computed] = Future()

        def work() -> None:
            made.set_running_or_notify_cancel()
            made.set_result(_computed(function))

        context = copy_context()
        async with self._places:
            thread = Thread(target=context.run, args=(work,), name=f"weftline-{name}", daemon=True)
            thread.start()
            return await asyncio.wrap_future(made)


def _computed(function: Function) -> Computed:
    try:
        value = function()
        return Computed(asyncio.run(value) if inspect.iscoroutine(value) else value)
    except BaseException as error:  # an exit too: it would end the thread without a word
        return Computed(error=error)
