"""Readers of variables: each counts until it leaves, and is woken by every change of
its variable.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from weftline.contract.errors import Timeout
from weftline.contract.protocol import Criterion
from weftline_server.prompt.answer import deltas_of
from weftline_server.prompt.tool_parser import Delta
from weftline_server.session import events as ev
from weftline_server.session.client_values import client_step
from weftline_server.session.session import ServerSession
from weftline_server.session.task import UNDER_WAY
from weftline_server.session.variable import SessionVariable

MOST_CHUNK = 1 << 16  # characters, so that many readers of a long text hold little each


@dataclass(frozen=True, slots=True)
class TextChunk:
    """Text of a variable from character `offset` on; `end` is the offset after it."""

    offset: int
    text: str

    @property
    def end(self) -> int:
        return self.offset + len(self.text)


class Readers:
    """The open gets and streams of every session; `apply` tells a session of those that come and
    go, at the time of `clock`. A value is given once it is `kept`, so that no later run of the
    server can make another one."""

    def __init__(
        self,
        apply: Callable[[ServerSession, ev.SessionEvent], None],
        clock: Callable[[], float],
        kept: Callable[[ServerSession], Awaitable[None]],
    ) -> None:
        self._kept = kept
        self._apply = apply
        self._now = clock
        self._signals: defaultdict[tuple[str, str], set[Callable[[], None]]] = defaultdict(set)

    def wake(self, session: ServerSession, variable: str) -> None:
        """Wake the readers: there is a new part, a value, an error, or a client's step is due."""
        for signal in self._signals.get((session.id, variable), ()):
            signal()

    @contextmanager
    def watching(
        self, session: ServerSession, variable: str, changed: Callable[[], None]
    ) -> Iterator[None]:
        """Call `changed` at every change of the variable, without counting as its reader.

        The change is being performed then: `changed` must only note it.
        """
        signals = self._signals[session.id, variable]
        signals.add(changed)
        try:
            yield
        finally:
            signals.discard(changed)
            if not signals:
                self._signals.pop((session.id, variable), None)

    def read(self, session: ServerSession, variable: str) -> SessionVariable:
        """The variable in its present state. Raises UnknownVariable."""
        found = session.variable(variable)
        self._apply(session, ev.VariableRead(now=self._now(), variable=variable))
        return found

    async def get(
        self,
        session: ServerSession,
        variable: str,
        *,
        criteria: Criterion | None = None,
        timeout_s: float | None = None,
        wait: bool = False,
        grace_s: float = 0.0,
    ) -> SessionVariable:
        """The variable once it is ready. Raises its error if it fails, Timeout, NoProducer.

        A reader that goes away counts for `grace_s` more seconds, in which it can come back.
        """
        reading = self._reading(session, variable, criteria, wait, grace_s)
        try:
            async with reading as (found, signal):
                # Inside the block: a get that times out leaves the work running.
                async with asyncio.timeout(timeout_s):
                    while not found.settled:
                        await signal.wait()
                        signal.clear()
        except TimeoutError:
            raise Timeout(
                f"variable {variable!r} was not ready after {timeout_s} s; it may be ready later",
                param=variable,
            ) from None
        await self._ended(session, found)
        self._apply(session, ev.VariableRead(now=self._now(), variable=variable))
        return found

    async def due(self, session: ServerSession, variable: str) -> bool:
        """Wait until the client's step that makes `variable` may be computed; False if it has
        ended instead."""
        signal = asyncio.Event()
        run, found = client_step(session.execution, variable), session.variable(variable)
        assert run is not None, f"no client computes {variable!r}"
        with self.watching(session, variable, signal.set):
            while not (found.settled or run.state in UNDER_WAY):
                await signal.wait()
                signal.clear()
        await self._kept(session)
        return not found.settled

    async def stream(
        self,
        session: ServerSession,
        variable: str,
        *,
        offset: int = 0,
        criteria: Criterion | None = None,
        wait: bool = False,
        grace_s: float = 0.0,
    ) -> AsyncIterator[TextChunk]:
        """The variable's text from character `offset` on, as it comes; raises its error.

        A reader that goes away counts for `grace_s` more seconds, in which it can come back.
        """
        reading = self._reading(session, variable, criteria, wait, grace_s, streams=True)
        async with reading as (found, signal):
            self._apply(session, ev.VariableRead(now=self._now(), variable=variable))
            while True:
                if text := found.text[offset : offset + MOST_CHUNK]:
                    self.shown(session, variable)
                    yield TextChunk(offset, text)
                    offset += len(text)
                elif found.settled:
                    break
                else:
                    await signal.wait()
                    signal.clear()
        await self._ended(session, found)

    async def answer(
        self, session: ServerSession, variable: str, shows: Callable[[Sequence[Delta]], bool]
    ) -> AsyncGenerator[Sequence[Delta], None]:
        """What is read of an answer that may call tools, as it is generated; raises its error.

        A new part may complete nothing. A part that the client `shows` may not change any more.
        """
        async with self._reading(session, variable, None, False, streams=True) as (found, signal):
            self._apply(session, ev.VariableRead(now=self._now(), variable=variable))
            heard: Sequence[Delta] = found.deltas
            if found.settled:
                heard = () if found.error is not None else tuple(deltas_of(found.value))
            count = chars = 0
            while True:
                if heard is not found.deltas and not found.settled:
                    heard, count, chars = found.deltas, 0, 0  # it is generated again
                if len(heard) > count or found.streamed > chars:
                    fresh = heard[count:]
                    if shows(fresh):
                        self.shown(session, variable)
                    count, chars = count + len(fresh), found.streamed
                    yield fresh
                elif found.settled:
                    break
                else:
                    await signal.wait()
                    signal.clear()
        await self._ended(session, found)

    async def _ended(self, session: ServerSession, found: SessionVariable) -> None:
        """Wait until the end of a variable is on disk. Raises the variable's error."""
        await self._kept(session)
        if found.error is not None:
            raise found.error

    def shown(self, session: ServerSession, variable: str) -> None:
        """A client has something that follows from the text of the variable so far."""
        found = session.variable(variable)
        if not (found.taken or found.settled):
            self._apply(session, ev.TextTaken(now=self._now(), variable=variable))

    @asynccontextmanager
    async def _reading(
        self,
        session: ServerSession,
        variable: str,
        criteria: Criterion | None,
        wait: bool,
        grace_s: float = 0.0,
        streams: bool = False,
    ) -> AsyncIterator[tuple[SessionVariable, asyncio.Event]]:
        """Count as a reader of `variable` until the end of the block, by an exception too."""
        self._apply(
            session,
            ev.ReaderOpened(
                now=self._now(), variable=variable, criteria=criteria, wait=wait, streams=streams
            ),
        )
        found = session.variable(variable)
        signal = asyncio.Event()
        served = True
        try:
            with self.watching(session, variable, signal.set):
                yield found, signal
        except (asyncio.CancelledError, GeneratorExit):
            served = found.settled
            raise
        finally:
            if served or not grace_s:
                self._leave(session, variable, served)
            else:
                loop = asyncio.get_running_loop()
                loop.call_later(grace_s, self._leave, session, variable, served)

    def _leave(self, session: ServerSession, variable: str, served: bool) -> None:
        closed = ev.ReaderClosed(now=self._now(), variable=variable, served=served)
        self._apply(session, closed)
