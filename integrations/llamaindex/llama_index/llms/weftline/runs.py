"""The session of one run, such as a query, and how its prompts are traced back to its answers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from weftline.aclient import AsyncSession
from weftline.adapters import BACKGROUND, Closer, Closers, Piece, Pieces, RunSession, Server
from weftline.http import OnGraph

log = logging.getLogger(__name__)

# A shorter answer also occurs by chance: templates list labels, and models answer with labels.
MIN_ANSWER = 12

_CLOSERS = Closers()


@dataclass(eq=False)
class Run(RunSession):
    """One run's session at one server."""

    max_answers: ClassVar[int] = 256

    def trace(self, pieces: Pieces) -> Pieces:
        """`pieces`, cut around the earlier answers of the run that occur in them."""
        with self.lock:
            answers = [(v, text) for v, text in self.answers if len(text) >= MIN_ANSWER]
        answers.sort(key=lambda answer: -len(answer[1]))
        return tuple(part for piece in pieces for part in _split(piece, answers))


def _split(piece: Piece, answers: list[tuple[str, str]]) -> Iterator[Piece]:
    for variable, text in answers:
        before, found, after = piece.text.partition(text)
        if found:
            if before:
                yield from _split(piece._replace(text=before), answers)
            yield Piece(text, piece.name, variable)
            if after:
                yield from _split(piece._replace(text=after), answers)
            return
    yield piece


def begin_run(server: Server, on_graph: OnGraph | None) -> Run:
    """A run at `server`. `on_graph` is given the session's graph when the run is over."""
    closer = _CLOSERS.find(server, partial(_close, server))
    return Run(closer, None if on_graph is None else partial(_show, server, closer, on_graph))


def _close(server: Server, id: str) -> None:
    async def close() -> None:
        await (await _session(server, id)).close()

    BACKGROUND.run(close())


def _show(server: Server, closer: Closer, on_graph: OnGraph, id: str) -> None:
    """Give the graph of an ended session to `on_graph`, then close the session."""

    async def show() -> None:
        try:
            on_graph(await (await _session(server, id)).graph())
        except Exception as error:  # the run has its answers, and nobody waits for the graph
            log.warning("the graph of a run cannot be shown: %s", error)
        closer.add(id)

    BACKGROUND.start(show())


async def _session(server: Server, id: str) -> AsyncSession:
    session = (await BACKGROUND.client(server)).session()
    session.id = id
    return session
