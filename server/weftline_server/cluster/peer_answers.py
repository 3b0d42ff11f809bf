"""What the other servers of a store answer to a request that this one answers, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Request

from weftline_server.cluster.peer_client import Addressee, PeerClient

if TYPE_CHECKING:  # it needs the driver of PostgreSQL, which an extra has
    from weftline_server.cluster.cluster_member import ClusterMember


class PeerAnswers:
    """The other servers of the store, as this server's routes and its end see them."""

    def __init__(self, member: ClusterMember, peers: PeerClient) -> None:
        self._member, self._peers = member, peers

    @property
    def under_way(self) -> int:
        """Requests that are handled here, or passed on."""
        return self._peers.under_way

    async def answers(self, request: Request) -> list[dict[str, Any]]:
        """The answers of the other servers to a GET, without those that do not answer in time. A
        request that another server has passed on is for this one alone.
        """
        if self._peers.passed_to(request.scope) is not None:
            return []
        others = [
            Addressee(one.number, one.card.address, self._member.fenced(one.number))
            for one in self._member.others
        ]
        return await self._peers.answers(request.scope, others)

    async def close(self) -> None:
        """End the connections to the other servers."""
        await self._peers.close()
