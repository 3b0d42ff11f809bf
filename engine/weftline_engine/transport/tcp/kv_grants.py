"""How the KV cache of an engine is shared out between the applications of its servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weftline_engine.api import Claim


@dataclass(frozen=True, slots=True)
class Grant:
    """`tokens` of the cache that the applications of a server may fill."""

    number: int
    tokens: int


@dataclass(slots=True)
class _Share:
    used: int = 0
    wanted: int = 0
    offered: list[Grant] = field(default_factory=lambda: [Grant(0, 0)])  # since the last seen one

    @property
    def last(self) -> Grant:
        return self.offered[-1]

    @property
    def reserved(self) -> int:
        """The most that the server's applications may hold by now, as it may not have heard of the
        last grant yet."""
        return max(self.used, *(one.tokens for one in self.offered))


class KvGrants:
    """Shares the cache out between the applications of the servers.

    Each server gets what it needs, up to an equal share of what the others leave. What nobody needs
    is shared out equally, so that a server may admit an application at once. A server that gets
    less than before holds the tokens until it has seen that: a grant to another one that needs them
    waits so long. So the grants are never more than the cache together, whatever is on its way.
    """

    def __init__(self, pool: int) -> None:
        self._pool = pool
        self._shares: dict[int, _Share] = {}

    def enter(self, server: int) -> None:
        self._shares[server] = _Share()
        self._share_out()

    def leave(self, server: int) -> None:
        del self._shares[server]
        self._share_out()

    def claim(self, server: int, claim: Claim) -> None:
        """A server says what its applications need, and which grant it has seen."""
        share = self._shares[server]
        share.used, share.wanted = max(0, claim.used), max(0, claim.wanted)
        share.offered = [one for one in share.offered if one.number >= claim.seen] or [share.last]
        self._share_out()

    def offer(self, server: int) -> Grant:
        """What a server may fill now."""
        return self._shares[server].last

    def _share_out(self) -> None:
        target = fair(self._pool, {s: one.used + one.wanted for s, one in self._shares.items()})
        for server, share in self._shares.items():
            if target[server] < share.last.tokens:
                share.offered.append(Grant(share.last.number + 1, target[server]))
        free = self._pool - sum(one.reserved for one in self._shares.values())
        for server, share in self._shares.items():
            reserved = share.reserved
            tokens = min(target[server], reserved + max(0, free))
            if tokens > share.last.tokens:
                share.offered.append(Grant(share.last.number + 1, tokens))
                free -= max(0, tokens - reserved)


def fair(pool: int, wants: Mapping[int, int]) -> dict[int, int]:
    """What each gets of the pool: what it wants, up to an equal share of what the others leave. The
    rest is shared out equally.
    """
    got: dict[int, int] = {}
    left = pool
    for place, one in enumerate(sorted(wants, key=wants.__getitem__)):
        got[one] = min(wants[one], left // (len(wants) - place))
        left -= got[one]
    return {one: tokens + left // len(wants) for one, tokens in got.items()}
