"""The lease of work that a client computes: how long the client may have no request open."""

from __future__ import annotations

from weftline.contract.errors import InvalidRequest

MAX_LEASE_S = 3600  # after a longer absence of the client, its session has expired too


def check_lease(lease_s: float, param: str) -> None:
    """Raise InvalidRequest unless `lease_s` is above 0 and at most an hour. `param` names it."""
    if not 0 < lease_s <= MAX_LEASE_S:
        raise InvalidRequest(f"lease_s must be above 0 and at most {MAX_LEASE_S:,}", param=param)
