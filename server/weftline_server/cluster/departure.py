"""The end of one server among several: it gives its sessions to the others before it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from weftline.contract.errors import WeftlineError
from weftline_server.cluster.card import Peer
from weftline_server.cluster.cluster_member import ClusterMember, SessionHost
from weftline_server.cluster.database import FAILURES, ClusterDatabase
from weftline_server.cluster.shared_journal import SharedJournal
from weftline_server.session.session import ServerSession

log = logging.getLogger("weftline.cluster")

SETTLE_S = 0.2  # in which servers that were told to stop together say so
TOGETHER = 256  # sessions that are given away in one write

Poke = Callable[[Sequence[Peer]], Awaitable[None]]


async def _unpoked(peers: Sequence[Peer]) -> None:
    """The others look at the database by themselves, each second."""


class Departure:
    """Gives sessions away while the server still answers, and passes on what comes for them.

    `poke` asks other servers to look at the database now.
    """

    def __init__(
        self, member: ClusterMember, database: ClusterDatabase, journal: SharedJournal
    ) -> None:
        self._member = member
        self._database = database
        self._journal = journal
        self.poke: Poke = _unpoked

    async def begin(self) -> bool:
        """Adopt nothing more, and tell the others. False where no other server goes on."""
        await self._member.retire()
        await self.poke(self._member.others)
        await asyncio.sleep(SETTLE_S)
        await self._member.look()
        return bool(self._member.heirs)

    def owns(self, session: ServerSession) -> bool:
        """Whether the session is stored, so that another server can go on with it."""
        return self._journal.owns(session)

    async def give(self, sessions: Sequence[ServerSession], host: SessionHost) -> None:
        """Stop these sessions here, write what they are, and let the others adopt them.

        What cannot be written now moves when the server has ended.
        """
        for at in range(0, len(sessions), TOGETHER):
            some = sessions[at : at + TOGETHER]
            numbers = [self._journal.let_go(one) for one in some]
            host.abandon()
            try:
                for one in some:
                    await self._journal.kept(one, may_have_moved=True)
                await self._database.sessions.release(self._member.number, numbers)
            except (WeftlineError, *FAILURES) as error:
                log.warning("%d sessions move when this server has ended: %s", len(some), error)
        await self.poke(self._member.heirs)
