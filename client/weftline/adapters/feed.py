"""The feed of a run: submits its calls, and follows their values as the server pushes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from weftline.aclient import AsyncSession
from weftline.adapters.background import BACKGROUND, Chain, awaited
from weftline.adapters.server import Server
from weftline.errors import Cancelled, Timeout, WeftlineError
from weftline.http import MAX_RETRIES, OnGraph
from weftline.protocol import Call, Submit
from weftline.watching import Event, Failed, Graph, Part, Submitted, Value

OnSettled = Callable[[Value | Failed], None]
"""Called on the background loop when a variable becomes ready or fails, before its readers know."""


class Result:
    """The result of one variable: its value, and the parts of its text as they are generated.

    Any number of readers, on any thread or loop, can wait for it.
    """

    def __init__(self) -> None:
        self.value: Future[Value] = Future()
        self.text: Chain[str] = Chain()
        self._has_parts = False

    def add(self, text: str) -> None:
        """Append a part of the text."""
        self.text.add(text)
        self._has_parts = True

    def settle(self, event: Value | Failed) -> None:
        """Set the value, or the error of the call that failed."""
        if isinstance(event, Failed):
            self.text.end(event.error)
            self.value.set_exception(event.error)
            return
        if not self._has_parts and isinstance(event.value, str):
            self.add(event.value)
        self.text.end()
        self.value.set_result(event)


NO_LIMITS: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _Terms:
    """The terms of one submit; `within` has seconds by variable."""

    follows: bool
    is_last: bool
    max_retries: int
    within: Mapping[str, float]


class _Limit:
    """A timer that calls a function, unless it is restarted or stopped before."""

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
    """The submits of one run to one session, and the results of their variables.

    Its methods may be called from any thread. `results` holds the result of each watched variable.
    A feed that `joins` a session, by the id that the run chose for it, does not end it.
    """

    def __init__(
        self, server: Server, on_settled: OnSettled | None = None, joins: str | None = None
    ) -> None:
        self._server = server
        self._on_settled = on_settled
        self._joins = joins
        self._session: Future[str] = Future()
        self._is_last = False
        self._is_overdue = False
        self._work: list[Future[None]] = []
        self.results: dict[str, Result] = {}
        self.graph: Future[dict[str, Any]] = Future()

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
        """Submit `calls` and follow the variables of `watch`.

        `parts` asks for texts as they are generated, and `graph` for the session's graph at the
        end. A submit with `close` is the run's last one: the server then closes the session.
        A variable of `within` fails with Timeout when its value, or the next part of its text,
        takes longer than that many seconds.
        """
        assert not self._is_last, "nothing follows the last submit"
        assert not (close and self._joins), "the run ends its session"
        follows = bool(self._work)
        for variable in watch:
            self.results[variable] = Result()
        self._is_last = close

        def submit(session: str | None) -> Submit:
            return Submit(
                session_id=self._joins or session,
                open=self._joins is not None,
                calls=tuple(calls),
                watch=tuple(watch),
                parts=parts,
                graph=graph,
                close=close,
            )

        terms = _Terms(follows, close, max_retries, within)
        self._work.append(BACKGROUND.start(self._follow(submit, tuple(watch), terms)))

    def fetch_graph(self) -> Future[dict[str, Any]]:
        """The session's graph: the one that the last submit brings, or else the present one."""
        return self.graph if self._is_last else BACKGROUND.start(self._fetch_graph())

    def show_graph(self, on_graph: OnGraph) -> None:
        """Call `on_graph` when the last submit brings the graph; never, if the run ends before."""
        self.graph.add_done_callback(partial(_pass_on, on_graph))

    def when_opened(self, then: Callable[[str], None]) -> None:
        """Call `then` with the server's id of the session, once the server has named it."""
        self._session.add_done_callback(
            lambda named: then(named.result()) if named.exception() is None else None
        )

    def when_over(self, then: Callable[[], None]) -> None:
        """Call `then` when the last submit so far has been answered in full, or was cancelled."""
        self._work[-1].add_done_callback(lambda _: then())

    def close(self) -> None:
        """End the session, or this feed's part of it. The server cancels what still runs."""
        if not self._work:
            return
        done = all(result.value.done() for result in self.results.values())
        ends = self._is_last or self._joins is not None
        if ends and done and not self._is_overdue:
            return  # it ends by itself, and its connection can be used again
        if not ends:
            BACKGROUND.start(self._end())
        else:
            for work in self._work:
                work.cancel()  # the connection closes, and with it the session or its readers

    async def _follow(
        self,
        submit: Callable[[str | None], Submit],
        watch: Sequence[str],
        terms: _Terms,
    ) -> None:
        limits = {variable: _Limit(terms.within[variable]) for variable in terms.within}
        for variable, limit in limits.items():
            limit.start(partial(self._expire, variable))
        try:
            session = None
            if terms.follows and self._joins is None:
                session = await awaited(self._session)
            client = await BACKGROUND.client(self._server)
            pushed = client.watch(submit(session), max_retries=terms.max_retries)
            async with aclosing(pushed) as events:
                async for event in events:
                    if isinstance(event, Part) and event.variable in limits:
                        limits[event.variable].start(partial(self._expire, event.variable))
                    self._take(event)
        except WeftlineError as error:
            self._fail(watch, error)
        finally:
            for limit in limits.values():
                limit.stop()
            # The stream was cancelled or ended early: no reader may wait forever.
            ended = Cancelled("the answer ended before this value")
            self._fail(watch, ended)
            if terms.is_last and not self.graph.done():
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
                if not self.results[variable].value.done():  # a part may come after its limit
                    self.results[variable].add(text)
            case Value() | Failed():
                self._settle(event)
            case Graph(graph):
                self.graph.set_result(dict(graph))

    def _settle(self, event: Value | Failed) -> None:
        result = self.results[event.variable]
        if not result.value.done():
            if self._on_settled is not None:
                self._on_settled(event)
            result.settle(event)

    def _fail(self, variables: Sequence[str], error: WeftlineError) -> None:
        if not self._session.done():
            self._session.set_exception(error)
        for variable in variables:
            self._settle(Failed(variable, error))

    async def _session_client(self) -> AsyncSession:
        session = (await BACKGROUND.client(self._server)).session()
        session.id = await awaited(self._session)
        return session

    async def _fetch_graph(self) -> dict[str, Any]:
        return await (await self._session_client()).graph()

    async def _end(self) -> None:
        with suppress(WeftlineError):  # the session was never opened, or it expires by itself
            await (await self._session_client()).close()


def _pass_on(on_graph: OnGraph, graph: Future[dict[str, Any]]) -> None:
    if graph.exception() is None:
        on_graph(graph.result())
