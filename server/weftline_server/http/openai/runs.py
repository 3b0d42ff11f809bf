"""Sessions that requests open and share by an id which the client chose for its run."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from weakref import WeakKeyDictionary, WeakValueDictionary

from weftline.contract.errors import UnknownSession
from weftline_server.runtime.service import NotHere, Service
from weftline_server.session.session import ServerSession


@dataclass
class _Guests:
    """The requests under way in a session that a request opened.

    `told` says that a client has had a response, and so knows the session's id.
    """

    requests: int = 0
    told: bool = False


class Runs:
    """Finds sessions by the ids that clients chose for their runs; it keeps no session alive."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._sessions: WeakValueDictionary[tuple[str, str], ServerSession] = WeakValueDictionary()
        self._guests: WeakKeyDictionary[ServerSession, _Guests] = WeakKeyDictionary()

    def adopt(self) -> None:
        """Find the sessions of an earlier run of the server by the ids that clients chose."""
        journal = self._service.registry.journal
        for (tenant, alias), id in () if journal is None else journal.aliases.items():
            with suppress(UnknownSession):  # it could not be restored
                self._sessions[tenant, alias] = self._service.registry.find(tenant, id)

    def enter(self, tenant: str, id: str, *, opens: bool, beats: bool = False) -> ServerSession:
        """The session for one request, which must `leave` it. Opens one if the request may. With
        `beats` the client promises heartbeats of it.

        Raises UnknownSession, or Overloaded where no session can be opened.
        """
        try:
            session = self.find(tenant, id)
        except UnknownSession as missed:
            if not opens:
                raise
            if isinstance(missed, NotHere) and not self._may_open(tenant, id):
                missed.may_open = True
                raise
            session = self._service.open(tenant, alias=id)
            self._sessions[tenant, id] = session
            self._guests[session] = _Guests()
        session.beats |= beats
        if (guests := self._guests.get(session)) is not None:
            guests.requests += 1
        self._service.lifecycle.holds.add(session)
        return session

    def _may_open(self, tenant: str, id: str) -> bool:
        """Whether no other server has a session with this id of a client."""
        member = self._service.lifecycle.member
        return member is None or (not member.is_retired and (tenant, id) in member.chosen)

    def responded(self, session: ServerSession) -> None:
        """Note that the client knows the session's id, so that it can close the session."""
        if (guests := self._guests.get(session)) is not None:
            guests.told = True

    def leave(self, session: ServerSession) -> None:
        """End one request. Its session is closed with the last one if no client knows its id."""
        self._service.lifecycle.holds.remove(session)
        guests = self._guests.get(session)
        if guests is None:
            return
        guests.requests -= 1
        if not guests.requests and not guests.told and session.ended is None:
            self._service.close(session)

    def close(self, tenant: str, ids: Iterable[str]) -> None:
        """Close the sessions that a client no longer needs. Unknown ids are no error."""
        for id in ids:
            with suppress(UnknownSession):
                self._service.close(self.find(tenant, id))

    def find(self, tenant: str, id: str) -> ServerSession:
        """The open session with an id of ours, or with one that a client chose.

        Raises UnknownSession or ServerRestarted.
        """
        session = self._sessions.get((tenant, id))
        if session is not None and session.ended is None:
            return session
        try:
            return self._service.registry.find(tenant, self._adopted(tenant, id))
        except NotHere as missed:
            missed.by_alias = True
            raise

    def _adopted(self, tenant: str, id: str) -> str:
        """The own id of a session that came from another server while this one runs."""
        journal = self._service.registry.journal
        if journal is None or not journal.is_shared:
            return id
        return journal.aliases.get((tenant, id), id)

    def look(self, tenant: str, id: str) -> ServerSession:
        """The session to show, open or closed a short time ago, by either of its ids.

        Raises UnknownSession or ServerRestarted.
        """
        chosen = self._sessions.get((tenant, id))
        own = self._adopted(tenant, id) if chosen is None else chosen.id
        try:
            return self._service.registry.look(tenant, own)
        except NotHere as missed:
            missed.by_alias = True
            raise
