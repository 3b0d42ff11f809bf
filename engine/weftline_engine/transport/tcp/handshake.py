"""How a server and an engine's host prove to each other that they hold the same key.

    server → Hello(nonce)      host → Prove(name, nonce, proof)      server → Welcome(proof)
    host → Describe(description, tokenizer)                          server → Admitted | Refused

Neither sends the key, nor anything that helps to guess it faster than trying keys one by one. What
follows is not encrypted: where others share the network, use a tunnel.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from dataclasses import dataclass
from typing import TypeVar

from weftline_engine.transport import wire

LEAST_KEY = 16  # characters
HANDSHAKE_S = 10.0
# Until the other side has proved itself, a frame holds a name and some hexadecimals.
MOST_UNPROVEN = 4096
HEARTBEAT_S = 1.0
LOST_S = 5.0  # without a heartbeat, the other side hangs, or the network between is gone


T = TypeVar("T", wire.Hello, wire.Prove, wire.Welcome)


class Rejected(Exception):
    """The other side does not take us, or we do not take it; one sentence says why."""


@dataclass(slots=True)
class Line:
    """A connection that speaks frames of `wire`."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, *messages: wire.Message) -> None:
        if not self.writer.is_closing():
            self.writer.write(wire.encode(messages))

    async def receive(self, most: int = wire.MOST_BYTES) -> list[wire.Message]:
        """The messages of the next frame; none at the end of the connection. Raises WireError."""
        try:
            size = wire.length(await self.reader.readexactly(wire.HEADER_BYTES))
            if size > most:
                raise wire.WireError(f"a frame of {size} bytes exceeds {most}")
            return wire.decode(await self.reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            return []

    async def close(self) -> None:
        self.writer.close()


def check_key(key: str) -> None:
    """Raises ValueError for a key that is no secret."""
    if len(key) < LEAST_KEY:
        raise ValueError(f"the key that engines join with needs at least {LEAST_KEY} characters")


async def challenge(line: Line, key: str) -> str:
    """The server's side, up to its Welcome: the host's name. Raises Rejected."""
    nonce = secrets.token_hex(16)
    line.send(wire.Hello(nonce))
    proof = await _expect(line, wire.Prove, MOST_UNPROVEN)
    if not hmac.compare_digest(proof.proof, _proof(key, "host", nonce, proof.nonce, proof.name)):
        raise Rejected("the key is wrong")
    mine = _proof(key, "server", nonce, proof.nonce, proof.name)
    line.send(wire.Welcome(mine))
    return proof.name


async def respond(line: Line, key: str, name: str) -> None:
    """The host's side, up to the server's Welcome. Raises Rejected."""
    hello = await _expect(line, wire.Hello, MOST_UNPROVEN)
    nonce = secrets.token_hex(16)
    line.send(wire.Prove(name, nonce, _proof(key, "host", hello.nonce, nonce, name)))
    welcome = await _expect(line, wire.Welcome, MOST_UNPROVEN)
    if not hmac.compare_digest(welcome.proof, _proof(key, "server", hello.nonce, nonce, name)):
        raise Rejected("the server does not know the key")


def _proof(key: str, side: str, *parts: str) -> str:
    # Lengths part what would else run together.
    text = "".join(f"{len(part)}:{part}" for part in (side, *parts))
    return hmac.digest(key.encode(), text.encode(), "sha256").hex()


async def _expect(line: Line, kind: type[T], most: int) -> T:
    messages = await line.receive(most)
    match messages:
        case [wire.Refused(message)]:
            raise Rejected(message)
        case [one] if isinstance(one, kind):
            return one
    came = "another word" if messages else "nothing"
    raise Rejected(f"instead of {kind.__name__} came {came}")
