"""The replay of a session: the same events in the same order give the same session."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from weftline_server.journal.records import Clock, decode
from weftline_server.session import events as ev
from weftline_server.session.session import ServerSession


@dataclass(frozen=True, slots=True)
class Opened:
    """How a session was opened. `alias` is the id that a client chose for it, or "".

    `at` is the wall clock's time. `stays` says that more calls may follow the first submit.
    """

    tenant: str
    id: str
    alias: str
    at: float
    stays: bool


class Unreadable(Exception):
    """The records do not make a session: the file is damaged, or was written by a later version."""


def replay(
    opened: Opened,
    records: Iterable[bytes],
    clock: Clock,
    make: Callable[[str, str, float, bool], ServerSession],
) -> ServerSession:
    """The session after its records. `make` takes its id, its tenant, when it was opened, and
    whether it stays. Nothing of it runs. Raises Unreadable.
    """
    session = make(opened.id, opened.tenant, clock.here(opened.at), opened.stays)
    try:
        for record in records:
            for event in decode(record, clock):
                actions = session.handle(event)
                while ev.GoOn() in actions:
                    actions = session.handle(ev.TurnCame(now=event.now))
    except Exception as error:  # whatever a damaged record leads to
        raise Unreadable(f"session {opened.id}: {type(error).__name__}: {error}") from error
    return session


def resumed(now: float, run: int) -> ev.SessionResumed:
    """The event with which run number `run` of the server goes on with a session.

    Attempts within one run count on from its number, so that no two runs have equal ones.
    """
    return ev.SessionResumed(now=now, attempt=run << 20)
