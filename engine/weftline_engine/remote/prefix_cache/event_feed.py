"""Listens to vLLM's KV events over ZeroMQ, and asks for those that it has missed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import zmq
import zmq.asyncio

from weftline_engine.remote.prefix_cache.kv_events import BlocksCleared, KVEvent, kv_events

log = logging.getLogger("weftline.vllm")

MOST_BYTES = 16 << 20  # of one message: a step's blocks with their tokens take some 100 KiB
MOST_UNREAD = 10_000  # messages that ZeroMQ holds for us; it drops later ones
# Seconds to wait for a missed message. Without it the blocks in it stay unknown, which costs a
# worse placement only.
REPLAY_S = 2.0
_END = (-1).to_bytes(8, "big", signed=True)


@dataclass(frozen=True, slots=True)
class EventAddresses:
    """Where vLLM publishes its events, and where it sends missed ones again (None: nowhere).

    The addresses are ZeroMQ's, such as tcp://gpu1:5557 or ipc:///run/events. Raises ValueError for
    others.
    """

    events: str
    replay: str | None = None

    def __post_init__(self) -> None:
        for address in (self.events, self.replay):
            if address is not None and not address.startswith(("tcp://", "ipc://")):
                raise ValueError(f"{address!r} is not a tcp:// or ipc:// address")

    def of_rank(self, rank: int) -> EventAddresses:
        """Return the addresses of a data-parallel rank of a vLLM that was started with these.

        Each rank has the ports behind those of the rank before it. Raises ValueError for other than
        tcp://.
        """
        replay = None if self.replay is None else _port_behind(self.replay, rank)
        return EventAddresses(_port_behind(self.events, rank), replay)

    @staticmethod
    def of(text: str) -> EventAddresses:
        """Read `EVENTS` or `EVENTS,REPLAY`. Raises ValueError."""
        events, _, replay = text.partition(",")
        return EventAddresses(events.strip(), replay.strip() or None)


def _port_behind(address: str, places: int) -> str:
    place, _, port = address.rpartition(":")
    if not address.startswith("tcp://") or not port.isdecimal():
        raise ValueError(f"{address!r} has no port for each data-parallel rank")
    return f"{place}:{int(port) + places}"


class EventFeed:
    """Passes the events on in their order. Create it inside a running loop."""

    def __init__(self, addresses: EventAddresses, heard: Callable[[list[KVEvent]], None]) -> None:
        self._addresses = addresses
        self._heard = heard
        self._expected = 0  # the number of the next message
        self._context = zmq.asyncio.Context()
        self._socket = self._open(zmq.SUB, addresses.events)
        self._socket.subscribe(b"")
        self._task = asyncio.create_task(self._listen())

    def close(self) -> None:
        """Stop listening."""
        self._task.cancel()
        self._context.destroy(linger=0)

    async def _listen(self) -> None:
        while True:
            message = await self._socket.recv_multipart()
            if len(message) != 3 or len(message[1]) != 8:
                self._refuse("it is not vLLM's: it has not three parts")
                continue
            number = int.from_bytes(message[1], "big")
            if number < self._expected:  # vLLM has started again, with an empty cache
                self._heard([BlocksCleared()])
                self._expected = 0
            if number > self._expected:
                await self._catch_up(number)
            self._take(number, message[2])

    def _take(self, number: int, payload: bytes) -> None:
        self._expected = number + 1
        try:
            events = kv_events(payload)
        except ValueError as error:
            self._refuse(str(error))
            return
        self._heard(events)

    def _refuse(self, why: str) -> None:
        log.warning("a message at %s is ignored: %s", self._addresses.events, why)

    async def _catch_up(self, until: int) -> None:
        """Take the missed messages before the number `until`, as far as vLLM still has them."""
        if self._addresses.replay is None:
            return
        socket = self._open(zmq.DEALER, self._addresses.replay)
        try:
            async with asyncio.timeout(REPLAY_S):
                await socket.send_multipart((b"", self._expected.to_bytes(8, "big")))
                while True:
                    message = await socket.recv_multipart()
                    if len(message) < 3 or message[-2] == _END:
                        return
                    number = int.from_bytes(message[-2], "big")
                    if number >= until:
                        return
                    if number >= self._expected:
                        self._take(number, message[-1])
        except TimeoutError:
            log.warning("%s does not send missed KV events", self._addresses.replay)
        finally:
            socket.close(linger=0)

    def _open(self, kind: int, address: str) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.RCVHWM, MOST_UNREAD)
        socket.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(address)
        return socket
