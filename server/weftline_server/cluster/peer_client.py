"""The connections to the other servers of a store: a request goes on, and its answer comes back."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import aiohttp

from weftline.contract.errors import EngineUnavailable

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from weftline_server.cluster.card import Peer

log = logging.getLogger("weftline.cluster")

# The header of a passed request: the secret of the servers, and the number of the one that it is
# for. A server that was stopped reads it late, under a new number, when another has handled it.
PASSED = b"weftline-passed"
ELSEWHERE = HTTPStatus.MISDIRECTED_REQUEST  # the answer of a server that is not the owner
CONNECT_S = 1.0
POKE_S = 0.5  # to answer a poke
ANSWER_S = 2.0  # to answer one of several servers that are asked the same
KEEP_S = 30.0  # an idle connection
# Headers that are about one connection, or that each server adds.
_HOP = frozenset(
    (b"connection", b"host", b"keep-alive", b"te", b"transfer-encoding", b"upgrade", PASSED)
)
_OURS = frozenset((*_HOP, b"date", b"server", b"x-request-id"))
# What changes nothing the second time. A submit may be sent again if it has a key.
_REPEATED = frozenset(("GET", "PUT", "DELETE"))
_GETS = "/v1/get"
LOOK = "/v1/servers/look"  # where one server tells another that what the database says has changed


@dataclass(frozen=True, slots=True)
class Addressee:
    """A server that gets a request. `fenced` is set when it loses its lease: a server that is
    stopped takes requests, and never answers.
    """

    number: int
    address: str
    fenced: asyncio.Event


@dataclass(frozen=True, slots=True)
class Passing:
    """A request that may be passed. `messages` are those of its body that have come."""

    scope: Scope
    receive: Receive
    send: Send
    messages: list[Message]

    async def read(self) -> bytes:
        again = after(self.messages, self.receive)
        parts = []
        while True:
            message = await again()
            if message["type"] != "http.request":
                break
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                break
        return b"".join(parts)

    @property
    def path(self) -> str:
        path = self.scope["raw_path"].decode("latin-1")
        query = self.scope["query_string"].decode("latin-1")
        return f"{path}?{query}" if query else path

    @property
    def may_be_sent_again(self) -> bool:
        """Whether a server that may have handled it already does no harm."""
        if self.scope["method"] in _REPEATED or self.scope["path"] == _GETS:
            return True
        return any(name == b"idempotency-key" for name, _ in self.scope["headers"])


class PeerClient:
    """Passes requests to other servers, each with the secret that the servers share."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self._http: aiohttp.ClientSession | None = None
        self.under_way = 0  # requests that are handled here, or passed on

    def passed_to(self, scope: Scope) -> int | None:
        """The number of the server to which another one has passed this request; None for a
        client's own request.
        """
        given = next((value for name, value in scope["headers"] if name == PASSED), b"")
        secret, _, number = given.partition(b" ")
        return int(number) if hmac.compare_digest(secret, self._secret) else None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def passed(self, to: Addressee, request: Passing) -> bool:
        """Pass the request on, and its answer back. False where that server is gone, or is not the
        owner: nothing was sent to the client then.

        Raises EngineUnavailable where nobody knows whether that server has handled the request.
        """
        body = await request.read()
        asking = asyncio.create_task(self._ask(to, request, body))
        gone = asyncio.create_task(_gone(request.receive))
        lost = asyncio.create_task(to.fenced.wait())
        ends: set[asyncio.Task[Any]] = {gone, lost}
        try:
            await asyncio.wait({asking, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                return True  # nobody reads the answer
            try:
                answer = asking.result() if asking.done() else None
            except aiohttp.ClientConnectorError:
                return False
            except aiohttp.ClientError as error:
                log.info("a server has not answered: %s", error)
                answer = None
            if answer is None:
                if request.may_be_sent_again:
                    return False
                raise moving()
            async with answer:
                if answer.status == ELSEWHERE:
                    return False
                await _pass_back(answer, request.send, ends)
            return True
        finally:
            for task in (asking, *ends):
                task.cancel()
            await asyncio.gather(asking, *ends, return_exceptions=True)

    async def answers(self, scope: Scope, others: Iterable[Addressee]) -> list[dict[str, Any]]:
        """What other servers answer to a GET that this one handles, too. Those that do not answer
        in time are left out.
        """
        request = Passing(scope, _nothing, _nowhere, [])
        asked = [asyncio.create_task(self._read(to, request)) for to in others]
        found = await asyncio.gather(*asked)
        return [one for one in found if one is not None]

    async def poke(self, peers: Sequence[Peer]) -> None:
        """Tell these servers to look at the database. One that does not hear it looks later."""
        await asyncio.gather(*(self._poke(peer) for peer in peers))

    async def _poke(self, peer: Peer) -> None:
        headers = {PASSED.decode(): f"{self._secret.decode()} {peer.number}"}
        limit = aiohttp.ClientTimeout(total=POKE_S)
        try:
            url = peer.card.address + LOOK
            async with self._client().post(url, headers=headers, timeout=limit):
                pass
        except (aiohttp.ClientError, TimeoutError) as error:
            log.info("the server at %s looks later: %s", peer.card.address, error)

    async def _read(self, to: Addressee, request: Passing) -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(ANSWER_S), await self._ask(to, request, b"") as answer:
                read: dict[str, Any] = await answer.json()
                return read if answer.status == HTTPStatus.OK else None
        except (aiohttp.ClientError, TimeoutError) as error:
            log.warning("the server at %s does not answer: %s", to.address, error)
            return None

    async def _ask(self, to: Addressee, request: Passing, body: bytes) -> aiohttp.ClientResponse:
        headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in request.scope["headers"]
            if name not in _HOP and name != b"content-length"
        ]
        headers.append((PASSED.decode(), f"{self._secret.decode()} {to.number}"))
        return await self._client().request(
            request.scope["method"],
            to.address + request.path,
            data=body or None,
            headers=headers,
            allow_redirects=False,
        )

    def _client(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_S),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                auto_decompress=False,
                skip_auto_headers=("user-agent", "accept", "accept-encoding", "content-type"),
            )
        return self._http


async def _pass_back(
    answer: aiohttp.ClientResponse, send: Send, ends: set[asyncio.Task[Any]]
) -> None:
    """Send the answer's parts as they come. A broken answer ends without its last part, so that the
    client sees that it broke off.
    """
    headers = [(n.lower(), value) for n, value in answer.raw_headers if n.lower() not in _OURS]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    parts = answer.content.iter_any()
    while True:
        part = asyncio.ensure_future(anext(parts, None))
        await asyncio.wait({part, *ends}, return_when=asyncio.FIRST_COMPLETED)
        if not part.done():
            part.cancel()
            await asyncio.gather(part, return_exceptions=True)
            return
        try:
            found = part.result()
        except aiohttp.ClientError as error:
            log.info("the owner of a session went away in the middle of an answer: %s", error)
            return
        body = {"type": "http.response.body", "body": found or b"", "more_body": found is not None}
        await send(body)
        if found is None:
            return


def after(messages: list[Message], receive: Receive) -> Receive:
    """A `receive` that gives these messages of a body again, and adds those that come to them."""
    waiting = iter(tuple(messages))

    async def next_message() -> Message:
        found = next(waiting, None)
        if found is not None:
            return found
        message = await receive()
        if message["type"] == "http.request":
            messages.append(message)
        return message

    return next_message


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _nowhere(message: Message) -> None:
    """A request to several servers passes no answer back by itself."""


async def _gone(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


def moving() -> EngineUnavailable:
    """The error of a request whose session moves for too long."""
    return EngineUnavailable(
        "the session moves to another server: ask again", retry_after_s=1.0, param="session_id"
    )
