"""What the other servers of a store answer to a request that this one answers, too."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from weftline_server.http.peer_client import Addressee
from weftline_server.http.state import state_of


async def other_answers(request: Request) -> list[dict[str, Any]]:
    """The answers of the other servers to a GET, without those that do not answer in time. A
    request that another server has passed on is for this one alone.
    """
    state = state_of(request.app)
    peers, member = state.peers, state.service.lifecycle.member
    if peers is None or member is None or peers.passed_to(request.scope) is not None:
        return []
    others = [
        Addressee(one.number, one.card.address, member.fenced(one.number)) for one in member.others
    ]
    return await peers.answers(request.scope, others)
