"""Requests about sessions of other servers: their owners answer them.

A request is handled here first. Where its session is not here, the route has said so before it sent
anything. Then the request is passed to the owner, or handled again once its session is here.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, Response

from weftline.contract.errors import EngineUnavailable, KeyReused, WeftlineError
from weftline_server.cluster.peer_client import (
    ELSEWHERE,
    LOOK,
    Addressee,
    Passing,
    PeerClient,
    after,
    moving,
)
from weftline_server.cluster.relay_attempt import MISS, RelayAttempt
from weftline_server.cluster.route import Route, key_route, route
from weftline_server.http.idempotency import KEY
from weftline_server.http.json_bodies import error_response
from weftline_server.http.state import GRACE
from weftline_server.journal.fence import SessionMoved
from weftline_server.journal.journal import Key
from weftline_server.runtime.service import Draining, NotHere

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from weftline_server.cluster.cluster_member import ClusterMember

OURS = "s_"  # how the ids begin that a server has chosen
POLL_S = 0.05  # between two looks for a session that moves


class SessionRelay:
    """ASGI middleware, inside that of idempotency keys."""

    def __init__(self, app: ASGIApp, member: ClusterMember, peers: PeerClient) -> None:
        self._app = app
        self._member = member
        self._peers = peers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        self._peers.under_way += 1
        try:
            await self._handle(scope, receive, send)
        except KeyReused:
            raise  # it is no response that would be kept for the key
        except WeftlineError as error:
            await error_response(error, scope["path"])(scope, receive, send)
        finally:
            self._peers.under_way -= 1

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._member.assure()
        attempt, until = RelayAttempt(), time.monotonic() + self._member.patience_s
        to = self._peers.passed_to(scope)
        is_passed = to is not None
        if is_passed and to != self._member.number:
            await JSONResponse(moving().to_body(), ELSEWHERE)(scope, receive, send)
            return
        if is_passed and scope["path"] == LOOK:
            await self._member.look()
            await Response()(scope, receive, send)
            return
        request = Passing(scope, receive, send, attempt.messages)
        key = scope.get(KEY)
        if isinstance(key, Key) and await self._by_key(key, request, until, is_passed):
            return
        while True:
            await self._here(attempt, request, is_passed)
            if attempt.missed is None:
                return
            if is_passed:
                response = JSONResponse(attempt.missed.to_body(), ELSEWHERE)
                await response(scope, receive, send)
                return
            if isinstance(attempt.missed, Draining):
                await self._to_any(attempt.missed, request)
                return
            if await self._by_session(_missing(attempt.missed, request), attempt, request):
                return
            _check(until)

    async def _here(self, attempt: RelayAttempt, request: Passing, is_passed: bool) -> None:
        """Handle the request at this server. The metrics have the first scope, and see its route
        there.
        """
        attempt.missed = None
        first, again = request.scope, {**request.scope, MISS: attempt}
        if is_passed:  # the server between may die, and the client comes back
            again[GRACE] = self._member.patience_s

        async def labelled(message: Message) -> None:
            first["route"] = again.get("route")
            await request.send(message)

        await self._app(again, after(attempt.messages, request.receive), labelled)
        first["route"] = again.get("route")

    async def _to_any(self, error: Draining, request: Passing) -> None:
        """Pass new work to a server that goes on. Raises the error where none takes it."""
        for looks in (False, True):  # another server may have joined a moment ago
            if looks:
                await self._member.look()
            heirs = self._member.heirs
            random.shuffle(heirs)
            for peer in heirs:
                if await self._passed(peer.number, peer.card.address, request):
                    return
        raise error

    async def _by_key(self, key: Key, request: Passing, until: float, is_passed: bool) -> bool:
        """Whether the request was passed to the server that has its key, or sent back to the one
        that has passed it. False is to handle it here.
        """
        while True:
            found = await self._member.claim_key(key)
            place = None
            if found is not None and found.is_fenced and found.session is not None:
                place = await self._member.place(key.tenant, found.session, is_alias=False)
            if found is not None and found.digest != key.digest:
                raise KeyReused(
                    f"Idempotency-Key {key.key[:64]!r} was sent with another request: use a new "
                    "key for each request",
                    param="Idempotency-Key",
                )
            is_known = self._member.knows(key)
            match key_route(self._member.number, found, place, is_known=is_known):
                case Route.UNKNOWN:
                    return False
                case Route.VIEW:
                    assert place is not None
                    await self._member.view(place.stored)
                    return False
                case Route.PASS if is_passed:
                    assert found is not None
                    if found.session is None:
                        return False  # that server has claimed it, and its session is here
                    response = JSONResponse(moving().to_body(), ELSEWHERE)
                    await response(request.scope, request.receive, request.send)
                    return True
                case Route.PASS:
                    assert found is not None
                    if place is None:
                        owner, address = found.server, found.address
                    else:
                        owner, address = place.owner, place.address
                    if await self._passed(owner, address, request):
                        return True
                case Route.RESTS:
                    raise _rests(key.key)
            await asyncio.sleep(POLL_S)
            _check(until)

    async def _by_session(self, missed: NotHere, attempt: RelayAttempt, request: Passing) -> bool:
        """Whether the request was passed to the owner of its session. False is to try again here.

        Raises the error of the route where there is no such session.
        """
        tenant, id, member = missed.tenant, missed.id, self._member
        if "\0" in id or not (missed.by_alias or id.startswith(OURS)):
            raise missed  # no store has a NUL in an id, and not every route takes a client's id
        place = await member.place(tenant, id, is_alias=not id.startswith(OURS))
        owner, address = (0, None) if place is None else (place.owner, place.address)
        went = route(member.number, place, may_open=missed.may_open, was_viewed=attempt.was_viewed)
        if went is Route.OPEN and member.is_retired:
            await self._to_any(Draining(), request)
            return True
        if went is Route.OPEN:
            found = await member.claim_alias(tenant, id)
            if found is None:
                return False
            went = Route.WAIT if found.is_fenced else Route.PASS
            owner, address = found.server, found.address
        match went:
            case Route.UNKNOWN:
                raise missed
            case Route.RESTS:
                raise _rests(id)
            case Route.VIEW:
                assert place is not None
                await member.view(place.stored)
                attempt.was_viewed = True
                return False
            case Route.PASS:
                if await self._passed(owner, address, request):
                    return True
        await asyncio.sleep(POLL_S)
        return False

    async def _passed(self, owner: int, address: str | None, request: Passing) -> bool:
        assert address is not None, f"server {owner} is not fenced, so it has a row"
        _name_route(request.scope)
        to = Addressee(owner, address, self._member.fenced(owner))
        return await self._peers.passed(to, request)


def _name_route(scope: Scope) -> None:
    """Say for the metrics which route a request is for that is passed on before it has one here."""
    if "route" not in scope:
        routes = scope["app"].router.routes
        found = (one for one in routes if getattr(one, "path", None) == scope["path"])
        if (route := next(found, None)) is not None:
            scope["route"] = route


def _missing(error: NotHere | SessionMoved, request: Passing) -> NotHere:
    """The session that a request misses. Raises the error where the request may have been handled
    before its session moved, and may not be handled twice.
    """
    if isinstance(error, NotHere):
        return error
    if error.session is None or not request.may_be_sent_again:
        raise error
    return NotHere(error.session.tenant, error.session.id)


def _check(until: float) -> None:
    if time.monotonic() > until:
        raise moving()


def _rests(id: str) -> EngineUnavailable:
    return EngineUnavailable(
        f"session {id[:64]!r} rests, since servers died while they restored it: open another, and "
        "tell the operator",
        param="session_id",
    )
