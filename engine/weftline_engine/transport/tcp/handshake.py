"""The handshake by which a server and an engine's host prove that they hold the same key.

    server → Hello(nonce, server)   host → Prove(name, nonce, proof)   server → Welcome(proof)
    host → Describe(engine, tokenizer, process)       server → Admitted | Refused

The key itself is never sent. A proof is an HMAC, so an eavesdropper can only try keys one by one.
The messages after the handshake are not encrypted. Use a tunnel on a network that others share.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from dataclasses import dataclass
from typing import TypeVar

from weftline_engine.transport import wire

LEAST_KEY = 16  # characters
HANDSHAKE_S = 10.0  # seconds that the whole handshake may take
MOST_UNPROVEN = 4096  # bytes of a frame before the proof: a name and hexadecimal digits
HEARTBEAT_S = 1.0  # seconds between two heartbeats
LOST_S = 5.0  # seconds without a heartbeat after which a connection counts as lost

T = TypeVar("T", wire.Hello, wire.Prove, wire.Welcome)


class Rejected(Exception):
    """The handshake failed, or one side refused the other. The message is one sentence."""


@dataclass(slots=True)
class FrameConnection:
    """A TCP connection that carries frames of `wire`."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, *messages: wire.Message) -> None:
        if not self.writer.is_closing():
            self.writer.write(wire.encode(messages))

    async def receive(self, most: int = wire.MOST_BYTES) -> list[wire.Message]:
        """Return the messages of the next frame, or an empty list at the end of the connection.

        Raises WireError for a frame that is not valid, or longer than `most` bytes.
        """
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
    """Raise ValueError if `key` is too short to be a secret."""
    if len(key) < LEAST_KEY:
        raise ValueError(f"the key that engines join with needs at least {LEAST_KEY} characters")


async def challenge(connection: FrameConnection, key: str, server: str) -> str:
    """Do the part of the server of this name up to Welcome, and return the host's name. Raises
    Rejected.
    """
    nonce = secrets.token_hex(16)
    connection.send(wire.Hello(nonce, server))
    proof = await _expect(connection, wire.Prove, MOST_UNPROVEN)
    if not hmac.compare_digest(proof.proof, _proof(key, "host", nonce, proof.nonce, proof.name)):
        raise Rejected("the key is wrong: use the server's")
    mine = _proof(key, "server", nonce, proof.nonce, proof.name)
    connection.send(wire.Welcome(mine))
    return proof.name


async def respond(connection: FrameConnection, key: str, name: str) -> str:
    """Do the host's part up to the server's Welcome, and return the server's name. Raises
    Rejected.
    """
    hello = await _expect(connection, wire.Hello, MOST_UNPROVEN)
    nonce = secrets.token_hex(16)
    connection.send(wire.Prove(name, nonce, _proof(key, "host", hello.nonce, nonce, name)))
    welcome = await _expect(connection, wire.Welcome, MOST_UNPROVEN)
    if not hmac.compare_digest(welcome.proof, _proof(key, "server", hello.nonce, nonce, name)):
        raise Rejected("the server does not know the key")
    return hello.server


def _proof(key: str, side: str, *parts: str) -> str:
    # The lengths keep ("ab", "c") and ("a", "bc") apart.
    text = "".join(f"{len(part)}:{part}" for part in (side, *parts))
    return hmac.digest(key.encode(), text.encode(), "sha256").hex()


async def _expect(connection: FrameConnection, kind: type[T], most: int) -> T:
    messages = await connection.receive(most)
    match messages:
        case [wire.Refused(message)]:
            raise Rejected(message)
        case [one] if isinstance(one, kind):
            return one
    came = "another message" if messages else "nothing"
    raise Rejected(f"expected {kind.__name__}, got {came}")
