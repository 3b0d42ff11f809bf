"""What a client may say beside an OpenAI request: its run, and where its text is from.

All of it is advice. Segments count only where they add up to the message they stand beside, and an
edge only where the text lies inside the variable that it is said to come from.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary, WeakValueDictionary

from weftline.errors import InvalidRequest, UnknownSession
from weftline.protocol import InOut, Placeholder, Segment, check_id
from weftline_server.lowering.provenance import came_from
from weftline_server.runtime.driver import Driver
from weftline_server.session.session import Session

MAX_CLOSED = 64
_STRICT = {"extra": "forbid"}
UNNAMED = "text"  # the placeholder of text that has a variable and no name


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a message: constant text, a value under its template's name, or a variable's."""

    text: str
    name: str | None = None
    from_var: str | None = None

    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        if self.from_var is not None:
            check_id(self.from_var, "from_var")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The `weftline` object of a request.

    `session_id` is a session of the server, or with `open` any id that the client made up for its
    run: the first call that names it opens a session, the others join it without having to wait
    for the first one's answer. `close` names sessions that the client is done with. `messages` has
    the pieces of each message, or null for one that is plain.
    """

    session_id: str | None = None
    open: bool = False
    close: tuple[str, ...] = ()
    name: str = "chat"
    messages: tuple[tuple[Piece, ...] | None, ...] = ()

    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        if self.session_id is not None:
            check_id(self.session_id, "session_id")
        elif self.open:
            raise InvalidRequest("'open' goes with a session_id", param="open")
        if len(self.close) > MAX_CLOSED:
            raise InvalidRequest(f"close names at most {MAX_CLOSED} sessions", param="close")

    def pieces(self, index: int, text: str) -> tuple[Piece, ...]:
        """The pieces of message number `index`, if they add up to `text`; else that text."""
        given = self.messages[index] if index < len(self.messages) else None
        if given is not None and "".join(piece.text for piece in given) == text:
            return given
        return (Piece(text=text),)


@dataclass
class Inputs:
    """Gives the named pieces of one call their placeholders; equal ones share one."""

    session: Session
    taken: set[str]
    _names: dict[tuple[str, str, str | None], str] = field(default_factory=dict)
    placeholders: list[Placeholder] = field(default_factory=list)

    def segments(self, pieces: Iterable[Piece]) -> tuple[Segment, ...]:
        """`pieces` as they enter the prompt."""
        return tuple(self._segment(piece) for piece in pieces)

    def _segment(self, piece: Piece) -> Segment:
        var = piece.from_var
        if var is not None and not came_from(self.session, var, piece.text):
            var = None
        if piece.name is None and var is None:
            return Segment(text=piece.text)
        base = piece.name or UNNAMED
        key = (base, piece.text, var)
        if key not in self._names:
            number, name = 1, base
            while name in self.taken:
                number += 1
                name = f"{base}_{number}"
            self.taken.add(name)
            self._names[key] = name
            self.placeholders.append(
                Placeholder(name=name, in_out=InOut.IN, value=piece.text, from_var=var)
            )
        return Segment(input=self._names[key])


@dataclass
class _Guests:
    """The requests under way in a session that a request opened, and whether one was answered."""

    requests: int = 0
    told: bool = False


class Runs:
    """Sessions by the ids that clients made up for their runs; it keeps none of them alive."""

    def __init__(self) -> None:
        self._sessions: WeakValueDictionary[tuple[str, str], Session] = WeakValueDictionary()
        self._guests: WeakKeyDictionary[Session, _Guests] = WeakKeyDictionary()

    def enter(self, driver: Driver, tenant: str, said: Provenance) -> Session:
        """The session for one request. Raises UnknownSession, or Overloaded instead of opening."""
        assert said.session_id is not None, "a request without a session has one of its own"
        session = self._find(driver, tenant, said.session_id)
        if session is None:
            if not said.open:
                return driver.registry.find(tenant, said.session_id)
            session = driver.open(tenant)
            self._sessions[tenant, said.session_id] = session
            self._guests[session] = _Guests()
        if (guests := self._guests.get(session)) is not None:
            guests.requests += 1
        return session

    def answered(self, session: Session) -> None:
        """The client has been told the session's id, so it can close it."""
        if (guests := self._guests.get(session)) is not None:
            guests.told = True

    def leave(self, driver: Driver, session: Session) -> None:
        """One request is over. A session that no client has heard of goes with its last one."""
        guests = self._guests.get(session)
        if guests is None:
            return
        guests.requests -= 1
        if not guests.requests and not guests.told and not session.closed:
            driver.close(session)

    def close(self, driver: Driver, tenant: str, ids: Iterable[str]) -> None:
        """Close sessions that a client is done with; ones that are gone already are no error."""
        for id in ids:
            with suppress(UnknownSession):
                driver.close(driver.registry.find(tenant, id))

    def _find(self, driver: Driver, tenant: str, id: str) -> Session | None:
        session = self._sessions.get((tenant, id))
        if session is not None and not session.closed:
            return session
        with suppress(UnknownSession):
            return driver.registry.find(tenant, id)
        return None
