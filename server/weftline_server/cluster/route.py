"""What becomes of a request whose session is not here: a decision over what the database says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from weftline_server.cluster.takeover import is_quarantined
from weftline_server.journal.store import Stored


@dataclass(frozen=True, slots=True)
class SessionPlace:
    """Where a session is: at the server of a number and an address, unless it is fenced."""

    stored: Stored
    deaths: int
    owner: int
    address: str | None
    is_fenced: bool


@dataclass(frozen=True, slots=True)
class KeyPlace:
    """Which server a key's request went to, and to which session, if that is stored."""

    digest: bytes
    session: str | None
    server: int
    address: str | None
    is_fenced: bool


class Route(Enum):
    """UNKNOWN: there is no such session. OPEN: the request may open it, at the server that may.
    VIEW: it is closed, and can be read from the store. WAIT: it is about to be adopted. PASS: its
    owner answers. RESTS: nobody restores it.
    """

    UNKNOWN = "unknown"
    OPEN = "open"
    VIEW = "view"
    WAIT = "wait"
    PASS = "pass"
    RESTS = "rests"


def route(me: int, place: SessionPlace | None, *, may_open: bool, was_viewed: bool) -> Route:
    """What to do with a request that found no session here.

    `may_open` says that it may open one with the id that it names, and `was_viewed` that the
    records of the closed session have been read for this request: it wants an open one.
    """
    is_closed = place is not None and place.stored.closed is not None
    if may_open and (place is None or is_closed):
        return Route.OPEN
    if place is None or was_viewed:
        return Route.UNKNOWN
    if is_closed:
        return Route.VIEW
    if is_quarantined(place.deaths):
        return Route.RESTS
    return Route.WAIT if place.is_fenced or place.owner == me else Route.PASS


def key_route(
    me: int, key: KeyPlace | None, place: SessionPlace | None, *, is_known: bool
) -> Route:
    """What to do with a request whose key another server may have: UNKNOWN is to handle it here.

    `place` is that of the session which the key's request went to, if it is stored. `is_known` says
    that this server has restored that session, and knows what the request added to it. Until then
    it would add the same once more.
    """
    if key is None or key.server == me or (key.is_fenced and is_known):
        return Route.UNKNOWN
    if not key.is_fenced:
        return Route.PASS
    found = route(me, place, may_open=False, was_viewed=False)
    return Route.WAIT if found is Route.UNKNOWN else found
