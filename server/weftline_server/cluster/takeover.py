"""Who takes over from whom, and which sessions: decisions over what the database has told."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weftline_server.cluster.card import Peer

# Two servers may die while they restore a session. Then nobody restores it any more.
MOST_DEATHS = 2
# Sessions that are restored together. A restored session is on trial until it has run for so long.
TOGETHER = 32
TRIAL_S = 0.1
SUSPECT_TRIAL_S = 0.5


@dataclass(frozen=True, slots=True)
class Orphan:
    """An open session whose owner is fenced. `deaths` servers have died while they restored it."""

    number: int
    deaths: int = 0


@dataclass(frozen=True, slots=True)
class SessionTrial:
    """Orphans to restore together, and how long the server must live to acquit them."""

    sessions: tuple[int, ...]
    seconds: float


def to_fence(me: int, peers: Iterable[Peer], steady_s: float, lease_s: float) -> list[int]:
    """The servers whose leases this server ends.

    `steady_s` is for how long this server has renewed its own lease without a gap. After the
    database was away all leases have expired, and each server needs time to renew its own.
    """
    if steady_s < lease_s:
        return []
    return [peer.number for peer in peers if peer.number != me and peer.left_s < 0]


def heir(session: int, living: Sequence[int]) -> int:
    """The living server that adopts a session. If a server ends, only its own shares move."""
    return max(living, key=lambda server: _weight(server, session))


def _weight(server: int, session: int) -> bytes:
    return hashlib.blake2b(f"{server} {session}".encode(), digest_size=8).digest()


def share(me: int, living: Sequence[int], orphans: Iterable[Orphan]) -> list[Orphan]:
    """The orphans that this server adopts; the other living servers adopt the others."""
    return [one for one in orphans if heir(one.number, living) == me]


def next_trial(orphans: Iterable[Orphan]) -> SessionTrial | None:
    """Which orphans to restore next, together; None if none is left.

    Orphans that no server died of come first, many at once. A suspect is restored alone, so that a
    death convicts nobody else.
    """
    rest = [one for one in orphans if not is_quarantined(one.deaths)]
    calm = tuple(one.number for one in rest if not one.deaths)
    if calm:
        return SessionTrial(calm[:TOGETHER], TRIAL_S)
    return SessionTrial((rest[0].number,), SUSPECT_TRIAL_S) if rest else None


def is_quarantined(deaths: int) -> bool:
    """Whether a session has killed too many servers to be restored again."""
    return deaths >= MOST_DEATHS
