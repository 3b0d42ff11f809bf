"""What the servers of a store tell each other about tenants: what each has here, and elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

from weftline_server.runtime.registry import Registry
from weftline_server.runtime.tenant_tally import TenantTally
from weftline_server.schedule.dispatcher import Dispatcher


class TenantExchange:
    """Reads the counts of this server, and takes note of those of the others."""

    def __init__(self, registry: Registry, dispatcher: Dispatcher) -> None:
        self._registry = registry
        self._dispatcher = dispatcher

    def tallies(self) -> dict[str, TenantTally]:
        """What each tenant has here, and has got."""
        registry, dispatcher = self._registry, self._dispatcher
        found = {}
        for tenant, opened in registry.opened.items():
            salt = registry.salts[tenant]
            found[tenant] = TenantTally(
                sessions=opened,
                queued=dispatcher.queued_of(salt),
                value_bytes=registry.quotas.bytes_of(tenant),
                served=dispatcher.served.given.get(salt, 0),
            )
        return found

    def hear(self, elsewhere: Mapping[str, TenantTally]) -> None:
        """Take note of what each tenant has at the other servers, and has got there."""
        registry = self._registry
        registry.quotas.elsewhere = elsewhere
        served = {registry.salts[tenant]: one.served for tenant, one in elsewhere.items()}
        self._dispatcher.served.hear(served)
