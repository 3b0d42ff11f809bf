"""What a server says of itself to the others, and whether it may join them."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Card:
    """`address` is the URL at which the other servers reach this one, and `host` its machine.
    `models` are those that it serves. `keys` is a digest of its clients' keys and their tenants.
    """

    address: str
    host: str
    version: str
    models: str
    keys: str


@dataclass(frozen=True, slots=True)
class Peer:
    """A server of the store. `left_s` is what is left of its lease, by the database's clock. One
    that is `ending` adopts nothing, and opens nothing.
    """

    number: int
    card: Card
    left_s: float
    ending: bool = False


def digest_of(keys: Mapping[str, str], secret: str) -> str:
    """Equal for equal keys and tenants. Nobody finds a key from it who lacks the secret."""
    text = "\n".join(sorted(f"{tenant}\0{key}" for key, tenant in keys.items()))
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()[:32]


def refusal(me: Card, others: Iterable[Peer]) -> str | None:
    """Why this server may not join the others, which hold their leases; None if it may."""
    for peer in others:
        other = peer.card
        if peer.left_s <= 0 or _is_earlier_run(me, other):
            continue
        if other.address == me.address:
            return (
                f"another server of this store, on {other.host}, has the address {me.address}: "
                "give each server an address of its own with --address"
            )
        if not _are_neighbours(me.version, other.version):
            return (
                f"this is weftline {me.version}, and the server at {other.address} is "
                f"{other.version}: upgrade one release at a time"
            )
        if me.models != other.models:
            return (
                f"this server serves {me.models or 'no model'}, and the one at {other.address} "
                f"{other.models or 'no model'}: servers of one store serve the same models"
            )
        if me.keys != other.keys:
            return (
                f"the server at {other.address} has other API keys or tenants: give all servers "
                "of a store the same"
            )
    return None


def replaced(me: Card, others: Iterable[Peer]) -> list[int]:
    """The earlier runs of this server. They have ended: this one has their address."""
    return [peer.number for peer in others if _is_earlier_run(me, peer.card)]


def _is_earlier_run(me: Card, other: Card) -> bool:
    return (me.address, me.host) == (other.address, other.host)


def _are_neighbours(one: str, other: str) -> bool:
    """Whether two releases differ by at most one in their second number."""
    (major, minor), (other_major, other_minor) = _release(one), _release(other)
    return major == other_major and abs(minor - other_minor) <= 1


def _release(version: str) -> tuple[int, int]:
    """The first two numbers of a version such as 0.3.0 or 0.4.0rc1."""
    major, minor, *_ = (*re.findall("[0-9]+", version), "0", "0")
    return int(major), int(minor)
