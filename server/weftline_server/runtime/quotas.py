"""How much each tenant may have: sessions, calls that wait for an engine, and bytes of values."""

from __future__ import annotations

from collections.abc import Mapping

from weftline.contract.errors import Overloaded
from weftline_server.runtime.tenant_tally import NO_TALLY, TenantTally
from weftline_server.session.session import ServerSession


class Quotas:
    """Counts the bytes of the values of open sessions, and refuses what goes beyond a limit.

    While `max_queued` primitives wait for engines, or `max_queued_of_tenant` of one tenant, no more
    calls are accepted from every tenant, or from this one. `max_bytes` bounds the values of all
    sessions of a tenant together, and `max_sessions` their number.

    Where servers share a store, what a tenant has `elsewhere` counts as it has here. It is what the
    others said up to two renewals ago. So each server may exceed a limit by what it accepts in that
    time.
    """

    def __init__(
        self, max_queued: int, max_queued_of_tenant: int, max_bytes: int, max_sessions: int
    ) -> None:
        self.elsewhere: Mapping[str, TenantTally] = {}  # at the other servers of the store
        self._max_sessions = max_sessions
        self._max_queued = max_queued
        self._max_queued_of_tenant = max_queued_of_tenant
        self._max_bytes = max_bytes
        self._bytes: dict[str, int] = {}  # of the values of a tenant's sessions, as last charged
        self._charged: dict[str, int] = {}  # of each session

    def admit(self, tenant: str, queued: int, of_tenant: int, more: int = 0) -> None:
        """Raise Overloaded when this many primitives wait, or would with the `more` of a submit, or
        the tenant's values have reached their limit.
        """
        elsewhere = self.elsewhere.get(tenant, NO_TALLY)
        of_tenant += elsewhere.queued
        if _is_full(of_tenant, more, self._max_queued_of_tenant):
            raise Overloaded(
                f"{of_tenant} calls of yours wait for an engine already: try again later",
                retry_after_s=1.0,
            )
        if _is_full(queued, more, self._max_queued):
            raise Overloaded(
                "too many calls wait for an engine already: try again later", retry_after_s=1.0
            )
        if self.bytes_of(tenant) + elsewhere.value_bytes >= self._max_bytes:
            raise Overloaded(
                f"your sessions hold {self._max_bytes:,} bytes of values: close some",
                retry_after_s=1.0,
            )

    def admit_session(self, tenant: str, opened: int) -> None:
        """Raise Overloaded when the tenant has its most sessions, `opened` of them here."""
        if opened + self.elsewhere.get(tenant, NO_TALLY).sessions >= self._max_sessions:
            raise Overloaded(
                f"{self._max_sessions} sessions are open: close some, or wait until idle ones "
                "expire",
                retry_after_s=1.0,
            )

    def bytes_of(self, tenant: str) -> int:
        """The bytes of the values of the tenant's sessions here."""
        return self._bytes.get(tenant, 0)

    def charge(self, session: ServerSession) -> None:
        """Record how many bytes the values of an open session take now."""
        if session.ended is not None:
            return
        now, before = session.spent.value_bytes, self._charged.get(session.id, 0)
        self._charged[session.id] = now
        self._bytes[session.tenant] = self._bytes.get(session.tenant, 0) + now - before

    def release(self, session: ServerSession) -> None:
        self._bytes[session.tenant] = self._bytes.get(session.tenant, 0) - self._charged.pop(
            session.id, 0
        )


def _is_full(waiting: int, more: int, most: int) -> bool:
    """Whether there is no room for `more` calls. A submit that is larger than the limit is taken
    where nothing waits: not all of its calls need wait at the same time.
    """
    return waiting >= most or (waiting > 0 and waiting + more > most)
