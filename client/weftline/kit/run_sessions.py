"""The server's session for one run of an application: its id, its answers, and its end.

Opening a session needs no request of its own, because the run's calls carry the session's id.
Closing one needs at most one request: the next request carries the ids of ended sessions. If no
request follows soon, a thread closes them.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from abc import abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock, Thread
from time import sleep
from typing import Any, ClassVar, Generic, Self, TypeVar

from weftline.kit.feed import RunFeed
from weftline.kit.pieces import Piece, Pieces, to_wire
from weftline.sdk.heartbeat import HEARTBEATS, Beating

log = logging.getLogger(__name__)

OURS = "weftline"
"""The field of OpenAI's requests and answers that holds ours."""

MAX_NAME = 128  # characters of a call's name
MAX_CLOSED = 64  # the server closes at most this many sessions with one request
FLUSH_S = 0.5

OfSession = Callable[[str], Any]


def _unheard(session: str) -> None:
    """A heartbeat of a session that sends none."""


class Closer:
    """Closes the ended sessions of one server, with the next request or soon in its own thread.

    No user waits for this. A session that cannot be closed expires in the server.
    """

    def __init__(self, delete: OfSession, beat: OfSession = _unheard) -> None:
        """`delete` closes a session by its id, and `beat` sends a heartbeat of it. Their exceptions
        are logged.
        """
        self.delete = delete
        self.beat = beat
        self.is_ending = False  # the program ends, and no thread can be started any more
        self._due: deque[str] = deque()
        # A thread may take each lock of this file again: a garbage collection in it may close a
        # generator of LangChain's, and that ends a run.
        self._lock = RLock()
        self._thread: Thread | None = None

    def add(self, *ids: str) -> None:
        """Sessions to close."""
        with self._lock:
            self._due.extend(ids)
            is_alone = self._thread is None or not self._thread.is_alive()
            if ids and is_alone and not self.is_ending:
                self._thread = Thread(target=self._run, name="weftline-closer", daemon=True)
                self._thread.start()

    def drain(self) -> list[str]:
        """Sessions to close along with a request that is about to be sent."""
        with self._lock:
            return [self._due.popleft() for _ in range(min(MAX_CLOSED, len(self._due)))]

    def flush(self) -> None:
        """Close all sessions that are due, with one request each."""
        while ids := self.drain():
            for id in ids:
                try:
                    self.delete(id)
                except Exception as error:
                    # Every error is caught, because a patched HTTP client (VCR, a proxy) raises
                    # errors of its own, and no caller waits for this thread. The session expires.
                    log.debug("session %s was left to expire: %r", id, error)

    def _run(self) -> None:
        while True:
            sleep(FLUSH_S)
            self.flush()
            with self._lock:
                if not self._due:
                    self._thread = None
                    return


class Closers:
    """The closer of each server."""

    def __init__(self) -> None:
        self._by_server: dict[object, Closer] = {}
        self._lock = RLock()

    def find(self, server: object, delete: OfSession, beat: OfSession) -> Closer:
        """The closer of `server`, which uses the latest `delete` and `beat` from now on."""
        with self._lock:
            closer = self._by_server.get(server)
            if closer is None:
                closer = self._by_server[server] = Closer(delete, beat)
            # The model whose methods were used before may be closed.
            closer.delete, closer.beat = delete, beat
            return closer

    def end(self) -> None:
        """End every run, because the program ends, and close their sessions."""
        for closer in list(self._by_server.values()):
            closer.is_ending = True
        for session in list(HEARTBEATS.owners):
            if isinstance(session, RunSession):
                session.finish()
        self.flush()

    def flush(self) -> None:
        """Close all sessions that are due, for every server."""
        for closer in list(self._by_server.values()):
            closer.flush()


@dataclass(eq=False)
class RunSession(Beating):
    """One run's session at one server. Several threads may use it. It gets heartbeats between two
    requests, for example while a tool runs.

    `on_over` is called with the session's id when the run is over. By default the session is
    closed.
    """

    max_answers: ClassVar[int]

    closer: Closer
    on_over: Callable[[str], Any] | None = None
    name: str = ""  # what the application calls the run
    alias: str = field(default_factory=lambda: f"r_{secrets.token_hex(16)}")
    id: str | None = None  # the server's id of the session, known after the first response
    over: bool = False
    under_way: int = 0  # requests whose response has not ended
    answers: deque[tuple[str, str]] = field(init=False)  # variable and text of each answer
    callers: OrderedDict[str, str] = field(default_factory=OrderedDict)  # variables by tool call
    lock: RLock = field(default_factory=RLock)

    def __post_init__(self) -> None:
        self.answers = deque(maxlen=self.max_answers)

    @abstractmethod
    def trace(self, pieces: Pieces) -> Pieces:
        """`pieces`, with `from_var` set on the parts that came from earlier answers of the run."""

    def begin(self) -> None:
        """Note that a request is about to be sent."""
        with self.lock:
            self.under_way += 1

    def opened(self, id: str) -> None:
        """Note the server's id of the session."""
        with self.lock:
            is_new, self.id = self.id is None, id
        if is_new and not self.over:
            HEARTBEATS.add(self)

    def quiet_session(self) -> str | None:
        """The session's id while it is open and no request is under way, which the server sees."""
        with self.lock:
            return None if self.over or self.under_way else self.id

    async def beat(self, session: str) -> None:
        """Send a heartbeat."""
        await asyncio.to_thread(self.closer.beat, session)

    def opened_by_alias(self) -> None:
        """Note that the server has opened the session, but that its id did not arrive here."""
        with self.lock:
            self.id = self.id or self.alias

    def end(self) -> None:
        """Note that a request is over, whether it was answered or failed."""
        with self.lock:
            self.under_way -= 1
        self._close_if_done()

    def finish(self) -> None:
        """Note that the run is over. The session is closed after its last request."""
        with self.lock:
            self.over = True
        self._close_if_done()

    def _close_if_done(self) -> None:
        with self.lock:
            if not self.over or self.under_way or self.id is None:
                return
            id, self.id = self.id, None
        (self.on_over or self.closer.add)(id)

    def join(self, feed: RunFeed) -> None:
        """Note that `feed` sends calls into this session, which stays open until they are over."""
        self.begin()
        feed.when_opened(self.opened)
        feed.when_over(self.end)

    def answered(self, variable: str, text: str, called: Iterable[str] = ()) -> None:
        """Note what a call of the run has generated: text, and tool calls by their ids."""
        with self.lock:
            if text:
                self.answers.append((variable, text))
            for id in called:
                self.callers[id] = variable
                if len(self.callers) > self.max_answers:
                    self.callers.popitem(last=False)

    def trace_calls(self, pieces: Pieces | None, called: Iterable[str]) -> Pieces | None:
        """`pieces` of a message with tool calls of these ids, and the variable they came from."""
        with self.lock:
            variable = next((self.callers[id] for id in called if id in self.callers), None)
        if variable is None or any(piece.from_var == variable for piece in pieces or ()):
            return pieces
        return (*(pieces or ()), Piece("", from_var=variable))


S = TypeVar("S", bound=RunSession)


class RunSessions(Generic[S]):
    """The sessions of one run of an application, one for each server. They end together."""

    def __init__(self) -> None:
        self.by_server: dict[object, S] = {}
        self._lock = RLock()
        self._over = False

    def find(self, server: object, make: Callable[[], S]) -> S:
        """The run's session at `server`, made when it is first asked for."""
        with self._lock:
            session = self.by_server.get(server)
            if session is None:
                session = self.by_server[server] = make()
                session.over = self._over
            return session

    def finish(self) -> None:
        """Note that the run is over."""
        with self._lock:
            self._over = True
            sessions = list(self.by_server.values())
        for session in sessions:
            session.finish()


class Nested:
    """A part of a running application, such as a chain. `parent` is the part that contains it."""

    __slots__ = ()

    parent: Self | None

    def ancestry(self) -> Iterator[Self]:
        """This part and the parts that contain it, the innermost first."""
        part: Self | None = self
        while part is not None:
            yield part
            part = part.parent


class Request:
    """One request of a run. Enter it before sending, and leave it when the response has ended.

    `said` is the value of the request's field `weftline`: its session, its name and the pieces of
    its messages. It is None for a request without that field.
    """

    def __init__(self, said: dict[str, Any] | None, session: RunSession | None = None) -> None:
        self.said = said
        self.session = session
        self._variable: str | None = None
        self._text = ""
        self._called: dict[str, None] = {}
        self._closed: list[str] = []

    def __enter__(self) -> Self:
        if self.session is not None and self.said is not None:
            self._closed = self.session.closer.drain()
            if self._closed:
                self.said["close"] = self._closed
            self.session.begin()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.session is not None:
            if self._variable is None:  # without a response, the server may not have read it
                self.session.closer.add(*self._closed)
                if error is not None and self.was_answered(error):
                    self.session.opened_by_alias()
            self.session.end()

    def was_answered(self, error: BaseException) -> bool:
        """Whether the server had accepted a request that ended with `error`."""
        return False

    def hear(
        self, ids: Mapping[str, str] | None, text: str, called: Iterable[str | None] = ()
    ) -> None:
        """Note a response or a chunk of one.

        `ids` names the session and the call's variable, and `called` has the ids of tool calls.
        """
        if ids is not None and self.session is not None:
            self._variable = ids["semantic_var_id"]
            self.session.opened(ids["session_id"])
        self._text += text
        self._called.update((id, None) for id in called if id)

    def finish(self) -> None:
        """Note that the answer is complete. Later prompts of the run are searched for its text."""
        if self.session is not None and self._variable is not None:
            self.session.answered(self._variable, self._text, self._called)


def said_of(session: RunSession, name: str, messages: Sequence[Pieces | None]) -> dict[str, Any]:
    """The field `weftline` of a request of `session`. `messages` has the pieces of each message."""
    said = {
        "session_id": session.alias,
        "open": True,
        "beats": True,
        "name": name,
        "messages": to_wire(messages),
    }
    return {**said, "run_name": session.name} if session.name else said
