"""The values of one run's variables as the server pushes them, for any thread or loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from langchain_weftline.background import BACKGROUND
from langchain_weftline.lowered import Server
from weftline.aclient import AsyncSession
from weftline.errors import Cancelled, Timeout, WeftlineError
from weftline.http import MAX_RETRIES
from weftline.protocol import Call, Submit
from weftline.watching import Event, Failed, Graph, Part, Submitted, Value

T = TypeVar("T")


async def awaited(future: Future[T], timeout_s: float | None = None) -> T:
    """The result of `future`, which others may wait for too: being cancelled leaves it as it is."""
    inner = asyncio.wrap_future(future)
    # Once this is cancelled nobody asks for an error that comes later, which asyncio would log.
    inner.add_done_callback(lambda done: done.cancelled() or done.exception())
    async with asyncio.timeout(timeout_s):
        return await asyncio.shield(inner)


Told = Callable[[Value | Failed], None]
"""Called on the background loop for each variable that settles."""


class Result:
    """One variable to be: its value, and its text as a chain of futures."""

    def __init__(self) -> None:
        self.value: Future[Value] = Future()
        self._first: Future[_Link | None] = Future()
        self._last = self._first
        self._has_parts = False

    def add(self, text: str) -> None:
        """More of its text."""
        link = _Link(text)
        self._last.set_result(link)
        self._last, self._has_parts = link.next, True

    def settle(self, event: Value | Failed) -> None:
        """Its end."""
        if isinstance(event, Failed):
            self._last.set_exception(event.error)
            self.value.set_exception(event.error)
            return
        if not self._has_parts and isinstance(event.value, str):
            self.add(event.value)
        self._last.set_result(None)
        self.value.set_result(event)

    def parts(self, timeout_s: float | None = None) -> Generator[str, None, None]:
        """Its text as it comes; raises the error that ended it, or TimeoutError."""
        link = self._first.result(timeout_s)
        while link is not None:
            yield link.text
            link = link.next.result(timeout_s)

    async def aparts(self, timeout_s: float | None = None) -> AsyncGenerator[str, None]:
        """Its text as it comes; raises the error that ended it, or TimeoutError."""
        link = await awaited(self._first, timeout_s)
        while link is not None:
            yield link.text
            link = await awaited(link.next, timeout_s)


@dataclass(slots=True)
class _Link:
    text: str
    next: Future[_Link | None] = field(default_factory=Future)


NO_LIMITS: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _How:
    """Which submit of its session one is, and how long it is waited for."""

    follows: bool
    is_last: bool
    max_retries: int
    within: Mapping[str, float]


class _Limit:
    """A time after which something happens, unless it is started again or stopped."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._handle: asyncio.TimerHandle | None = None

    def start(self, then: Callable[[], None]) -> None:
        self.stop()
        self._handle = asyncio.get_running_loop().call_later(self._seconds, then)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


class Feed:
    """A session of one run: what it has submitted, and what came back."""

    def __init__(self, server: Server, told: Told | None = None) -> None:
        self._server = server
        self._told = told
        self._session: Future[str] = Future()
        self._is_last = False
        self._is_overdue = False
        self._work: list[Future[None]] = []
        self.results: dict[str, Result] = {}
        self.graph: Future[dict[str, Any]] = Future()

    @property
    def is_open(self) -> bool:
        """Whether calls were submitted to a session that goes on."""
        return bool(self._work) and not self._is_last

    def send(
        self,
        calls: Sequence[Call],
        watch: Sequence[str],
        *,
        parts: bool = False,
        graph: bool = False,
        close: bool = False,
        max_retries: int = MAX_RETRIES,
        within: Mapping[str, float] = NO_LIMITS,
    ) -> None:
        """Submit `calls` and follow the variables of `watch`; one with `close` is the last.

        A variable of `within` fails with Timeout when it, or the next part of it, has not come
        after so many seconds.
        """
        assert not self._is_last, "nothing follows the last submit"
        follows = bool(self._work)
        for variable in watch:
            self.results[variable] = Result()
        self._is_last = close

        def submit(session: str | None) -> Submit:
            return Submit(
                session_id=session,
                calls=tuple(calls),
                watch=tuple(watch),
                parts=parts,
                graph=graph,
                close=close,
            )

        how = _How(follows, close, max_retries, within)
        self._work.append(BACKGROUND.start(self._follow(submit, tuple(watch), how)))

    def fetch_graph(self) -> Future[dict[str, Any]]:
        """The graph of the session as it is now; the last submit may bring it by itself."""
        return self.graph if self._is_last else BACKGROUND.start(self._graph())

    def close(self) -> None:
        """Leave what is still awaited, which the server cancels, and end the session."""
        if not self._work:
            return
        done = all(result.value.done() for result in self.results.values())
        if self._is_last and done and not self._is_overdue:
            return  # it ends by itself, and its connection can be used again
        if not self._is_last:
            BACKGROUND.start(self._end())
        else:
            for work in self._work:
                work.cancel()  # the connection closes, and with it the session

    async def _follow(
        self,
        submit: Callable[[str | None], Submit],
        watch: Sequence[str],
        how: _How,
    ) -> None:
        limits = {variable: _Limit(how.within[variable]) for variable in how.within}
        for variable, limit in limits.items():
            limit.start(partial(self._expire, variable))
        try:
            session = None
            if how.follows:
                session = await awaited(self._session)
            client = await BACKGROUND.client(self._server)
            made = client.watch(submit(session), max_retries=how.max_retries)
            async with aclosing(made) as events:
                async for event in events:
                    if isinstance(event, Part) and event.variable in limits:
                        limits[event.variable].start(partial(self._expire, event.variable))
                    self._take(event)
        except WeftlineError as error:
            self._fail(watch, error)
        finally:
            for limit in limits.values():
                limit.stop()
            # Cancelled, or an end that came too soon: nobody may wait for ever.
            ended = Cancelled("the answer ended before this value")
            self._fail(watch, ended)
            if how.is_last and not self.graph.done():
                self.graph.set_exception(ended)

    def _expire(self, variable: str) -> None:
        if not self.results[variable].value.done():
            self._is_overdue = True
            self._settle(Failed(variable, Timeout("the answer did not come in time")))

    def _take(self, event: Event) -> None:
        match event:
            case Submitted(session):
                if not self._session.done():
                    self._session.set_result(session)
            case Part(variable, text):
                if not self.results[variable].value.done():  # else it is overdue
                    self.results[variable].add(text)
            case Value() | Failed():
                self._settle(event)
            case Graph(graph):
                self.graph.set_result(dict(graph))

    def _settle(self, event: Value | Failed) -> None:
        result = self.results[event.variable]
        if not result.value.done():
            result.settle(event)
            if self._told is not None:
                self._told(event)

    def _fail(self, variables: Sequence[str], error: WeftlineError) -> None:
        if not self._session.done():
            self._session.set_exception(error)
        for variable in variables:
            self._settle(Failed(variable, error))

    async def _session_client(self) -> AsyncSession:
        session = (await BACKGROUND.client(self._server)).session()
        session.id = await awaited(self._session)
        return session

    async def _graph(self) -> dict[str, Any]:
        return await (await self._session_client()).graph()

    async def _end(self) -> None:
        """Delete the session, which cancels what it runs."""
        with suppress(WeftlineError):  # it never was, or it expires by itself
            await (await self._session_client()).close()
