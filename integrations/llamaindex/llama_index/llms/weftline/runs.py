"""One run of an application, such as a query: its session at the server, and its answers so far.

A session costs no request to open, and at most one to close: its name travels with the run's calls,
and the names of runs that are over with the next call, or soon after in the background.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

from llama_index.llms.weftline.ahead import OnGraph, Server
from llama_index.llms.weftline.structure import Piece, Pieces

from weftline.background import BACKGROUND
from weftline.errors import WeftlineError

log = logging.getLogger(__name__)

# Templates list labels, and models answer with them: a shorter answer is found where it never was.
MIN_ANSWER = 12
MAX_ANSWERS = 256
MAX_CLOSED = 64  # as many as the server takes with one request
FLUSH_S = 0.5


@dataclass(eq=False)
class Run:
    """What one run has at one server. Threads share it."""

    closer: Closer
    on_graph: OnGraph | None = None
    alias: str = field(default_factory=lambda: f"r_{secrets.token_hex(16)}")
    id: str | None = None  # the server's name for it, once an answer has told
    is_over: bool = False
    under_way: int = 0
    answers: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=MAX_ANSWERS))
    lock: Lock = field(default_factory=Lock)

    def begin(self) -> None:
        """A request is about to be sent."""
        with self.lock:
            self.under_way += 1

    def end(self, said: Mapping[str, str] | None, text: str) -> None:
        """A request is over; `said` names its session and variable, if it was answered."""
        with self.lock:
            self.under_way -= 1
            if said is not None:
                self.id = said["session_id"]
                self.answers.append((said["semantic_var_id"], text))
        self._close_if_done()

    def finish(self) -> None:
        """The run is over; its session ends with its last request."""
        with self.lock:
            self.is_over = True
        self._close_if_done()

    def _close_if_done(self) -> None:
        with self.lock:
            if not self.is_over or self.under_way or self.id is None:
                return
            id, self.id = self.id, None
        if self.on_graph is None:
            self.closer.add(id)
        else:
            BACKGROUND.start(self.closer.show(id, self.on_graph))

    def trace(self, pieces: Pieces) -> Pieces:
        """`pieces`, cut where earlier answers of the run stand in them."""
        with self.lock:
            answers = [(v, text) for v, text in self.answers if len(text) >= MIN_ANSWER]
        answers.sort(key=lambda answer: -len(answer[1]))
        return tuple(part for piece in pieces for part in _split(piece, answers))


def _split(piece: Piece, answers: list[tuple[str, str]]) -> Iterator[Piece]:
    for variable, text in answers:
        before, found, after = piece.text.partition(text)
        if found:
            if before:
                yield from _split(replace(piece, text=before), answers)
            yield Piece(text, piece.name, variable)
            if after:
                yield from _split(replace(piece, text=after), answers)
            return
    yield piece


class Closer:
    """Ends the sessions of one server; one that it cannot reach expires by itself."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._due: deque[str] = deque()
        self._is_waiting = False
        self._lock = Lock()

    def add(self, id: str) -> None:
        """This session is over."""
        with self._lock:
            self._due.append(id)
            if self._is_waiting:
                return
            self._is_waiting = True
        BACKGROUND.start(self._flush())

    async def show(self, id: str, on_graph: OnGraph) -> None:
        """This session is over; `on_graph` is given its graph before it is closed."""
        try:
            client = await BACKGROUND.client(self._server.base_url, self._server.api_key)
            session = client.session()
            session.id = id
            on_graph(await session.graph())
        except Exception as error:  # the run has its answers, and nobody waits for this
            log.warning("the graph of a run cannot be shown: %s", error)
        self.add(id)

    def take(self) -> list[str]:
        """Sessions to end along with a request that is about to be sent."""
        with self._lock:
            return [self._due.popleft() for _ in range(min(MAX_CLOSED, len(self._due)))]

    def give_back(self, ids: Iterable[str]) -> None:
        """The request that should have ended these was not answered."""
        for id in ids:
            self.add(id)

    async def _flush(self) -> None:
        await asyncio.sleep(FLUSH_S)
        with self._lock:
            self._is_waiting = False
        for id in self.take():
            try:
                client = await BACKGROUND.client(self._server.base_url, self._server.api_key)
                session = client.session()
                session.id = id
                await session.close()
            except WeftlineError as error:
                log.debug("session %s was left to expire: %s", id, error)


@dataclass
class Said:
    """What one request says beside its prompt."""

    body: dict[str, Any]
    run: Run | None = None

    def begin(self) -> None:
        """It is about to be sent."""
        if self.run is not None:
            self.run.begin()
            if closed := self.run.closer.take():
                self.body["close"] = closed

    def end(self, told: Mapping[str, str] | None, text: str) -> None:
        """It is over; `told` is what the server said of it, None if it said nothing."""
        if self.run is not None:
            if told is None:
                self.run.closer.give_back(self.body.get("close", ()))
            self.run.end(told, text)
