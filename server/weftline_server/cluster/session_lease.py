"""The lease of a server on its sessions, as far as the server's own clock knows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from weftline.contract.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseConfig:
    """How other servers reach this one, and how soon they take over when it is silent.

    `address` is a URL such as http://10.0.0.7:8600; "" is made of the host and the port. A server
    that does not renew its lease for `lease_s` seconds loses its sessions to the others.
    """

    address: str = ""
    lease_s: float = 5.0

    def __post_init__(self) -> None:
        if not 0.5 <= self.lease_s <= 60:
            raise InvalidRequest("lease_s must be between 0.5 and 60", param="cluster.lease_s")
        if self.address and not self.address.startswith(("http://", "https://")):
            raise InvalidRequest(
                f"the address is a URL such as http://10.0.0.7:8600, not {self.address[:80]!r}",
                param="cluster.address",
            )


class LeaseState(Enum):
    """HELD: no other server can have taken over. DOUBTFUL: one may have. LOST: one has."""

    HELD = "held"
    DOUBTFUL = "doubtful"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Lease:
    """The database ends a lease `lease_s` after it has handled a renewal, by its own clock.

    The database handles a renewal after the renewal was sent. So until `sent` + `lease_s` by a
    monotonic clock of this machine the lease is held, whatever the time of day is here or there.
    """

    number: int
    lease_s: float
    sent: float
    is_fenced: bool = False

    def state(self, now: float) -> LeaseState:
        if self.is_fenced:
            return LeaseState.LOST
        return LeaseState.HELD if now < self.sent + self.lease_s else LeaseState.DOUBTFUL

    def renewed(self, sent: float) -> Lease:
        """The lease after an answer to a renewal that was sent then. Answers may overtake."""
        return replace(self, sent=max(sent, self.sent))

    def fenced(self) -> Lease:
        """The lease after the database has refused it. It is never held again."""
        return replace(self, is_fenced=True)
