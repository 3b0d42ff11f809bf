"""The session of one run of an application at one server: its name, its answers, and its end.

A session costs no request of its own to open, and one at most to close: its name travels with the
run's calls, and with the next run's calls the names of the sessions that are over.
"""

from __future__ import annotations

import atexit
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from threading import Lock, Thread
from time import sleep
from typing import Any

import openai

from langchain_weftline.pieces import MAX_SEARCHES, MIN_DISTINCT, Piece, Pieces

log = logging.getLogger(__name__)

# Text of no name (an f-string's, a template's own) is an answer's only if it is as long as this:
# templates list labels, and models answer with them.
MIN_UNNAMED = 24
MAX_ANSWERS = 1024
MAX_SEEN = 4096
MAX_CLOSED = 64  # as many as the server takes with one request
FLUSH_S = 0.5

Delete = Callable[[str], Any]


@dataclass(eq=False)
class RunSession:
    """What one run has at one server. Threads share it."""

    closer: Closer
    alias: str = field(default_factory=lambda: f"r_{secrets.token_hex(16)}")
    id: str | None = None  # the server's name for it, once an answer has told
    over: bool = False
    under_way: int = 0
    answers: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=MAX_ANSWERS))
    seen: dict[str, None] = field(default_factory=dict)  # values that are no answer of the run's
    lock: Lock = field(default_factory=Lock)

    def begin(self) -> None:
        """A request is about to be sent."""
        with self.lock:
            self.under_way += 1

    def opened(self, id: str) -> None:
        with self.lock:
            self.id = id

    def end(self) -> None:
        """A request is over, however it went."""
        with self.lock:
            self.under_way -= 1
        self._close_if_done()

    def finish(self) -> None:
        """The run is over; the session ends with its last request."""
        with self.lock:
            self.over = True
        self._close_if_done()

    def _close_if_done(self) -> None:
        with self.lock:
            if not self.over or self.under_way or self.id is None:
                return
            id, self.id = self.id, None
        self.closer.add(id)

    def answered(self, variable: str, text: str) -> None:
        """A call of the run has made `text`."""
        with self.lock:
            self.answers.append((variable, text))

    def see(self, values: Iterable[str]) -> None:
        """Values that were there before any answer that happens to hold them too."""
        with self.lock:
            for value in values:
                if len(self.seen) < MAX_SEEN:
                    self.seen[value] = None

    def trace(self, pieces: Pieces) -> Pieces:
        """`pieces`, those that came from earlier answers of the run marked with their variables."""
        with self.lock:
            answers = list(self.answers)
            if not answers:
                return pieces
            return tuple(part for piece in pieces for part in self._trace(piece, answers))

    def _trace(self, piece: Piece, answers: list[tuple[str, str]]) -> Iterator[Piece]:
        text, name = piece.text, piece.name
        shortest = MIN_UNNAMED if name is None else MIN_DISTINCT
        if text in self.seen:
            yield piece
            return
        whole = next((var for var, answer in reversed(answers) if answer == text), None)
        if whole is not None and (name is not None or len(text) >= shortest):
            yield Piece(text, name, whole)
            return
        if len(text) < shortest or len(text) * len(answers) > MAX_SEARCHES:
            yield piece
            return
        inside = [(v, a) for v, a in answers if len(a) >= shortest and a in text]
        if inside:
            yield from _split(piece, inside)
            return
        around = (var for var, answer in reversed(answers) if name is not None and text in answer)
        yield Piece(text, name, next(around, None))


def _split(piece: Piece, answers: list[tuple[str, str]]) -> Iterator[Piece]:
    """`piece` cut around the answers that stand in it, the longest first."""
    if not piece.text:
        return
    here = [(v, a) for v, a in answers if a in piece.text]
    if not here:
        # What joins two answers is no value of anybody's.
        is_value = any(char.isalnum() for char in piece.text)
        yield piece if is_value else Piece(piece.text)
        return
    chosen = max(here, key=lambda item: len(item[1]))
    variable, answer = chosen
    before, _, after = piece.text.partition(answer)
    others = [item for item in here if item is not chosen]
    if any(text == answer for _, text in others):
        here = others  # two calls said the same: each is read once
    yield from _split(Piece(before, piece.name), here)
    yield Piece(answer, piece.name, variable)
    yield from _split(Piece(after, piece.name), here)


class Closer:
    """Ends the sessions of one server: with the next request, else soon, in a thread of its own.

    It never makes the user wait, and a session that it cannot close expires by itself.
    """

    def __init__(self, delete: Delete) -> None:
        self.delete = delete
        self._due: deque[str] = deque()
        self._lock = Lock()
        self._thread: Thread | None = None
        atexit.register(self.flush)

    def add(self, *ids: str) -> None:
        with self._lock:
            self._due.extend(ids)
            if ids and (self._thread is None or not self._thread.is_alive()):
                self._thread = Thread(target=self._run, name="weftline-closer", daemon=True)
                self._thread.start()

    def take(self) -> list[str]:
        """Sessions to end along with a request that is about to be sent."""
        with self._lock:
            return [self._due.popleft() for _ in range(min(MAX_CLOSED, len(self._due)))]

    def flush(self) -> None:
        """End what is due, one request each."""
        while ids := self.take():
            for id in ids:
                try:
                    self.delete(id)
                except openai.OpenAIError as error:
                    log.debug("session %s was left to expire: %s", id, error)

    def _run(self) -> None:
        while True:
            sleep(FLUSH_S)
            self.flush()
            with self._lock:
                if not self._due:
                    self._thread = None
                    return
