"""What a tenant has at a server and has got from it, as the servers of a store tell each other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TenantTally:
    """Open sessions, calls that wait for an engine, bytes of values, and the tokens of all calls
    that were sent to engines since the server has started.
    """

    sessions: int = 0
    queued: int = 0
    value_bytes: int = 0
    served: int = 0


NO_TALLY = TenantTally()
