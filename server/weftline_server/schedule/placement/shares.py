"""Fair shares between tenants: each has got the same work when all of them wait.

An order that knows only calls serves the tenant with the shortest ones, or with the lowest numbers
of priority, and the others wait. So the calls of each tenant keep their own order (see
`waiting_lines`), and the next call is one of the tenant that has got least (Sheng et al., "Fairness
in serving LLMs", 2024).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class Served:
    """The work that each tenant has got, in tokens, from this server and from others."""

    def __init__(self) -> None:
        self.given: dict[str, int] = {}  # what this server has placed
        self._elsewhere: Mapping[str, int] | None = None  # what the others have, as last heard
        self._got: dict[str, float] = {}
        self._waited: set[str] = set()  # in the last round

    def begin(self, waiting: Iterable[str]) -> Mapping[str, float]:
        """Return the counts at the beginning of a round.

        A tenant that waits again after a pause begins with no less than the others have: it saves
        up no turns.
        """
        present = set(waiting)
        stayed = present & self._waited
        least = min((self._got[tenant] for tenant in stayed), default=0.0)
        for tenant in present - stayed:
            self._got[tenant] = max(self._got.get(tenant, 0.0), least)
        self._waited = present
        if len(self._got) > MOST_KNOWN:
            self._got = {tenant: self._got[tenant] for tenant in present}
        return self._got

    def got(self, tenant: str, tokens: int) -> None:
        self._got[tenant] = self._got.get(tenant, 0.0) + tokens
        self.given[tenant] = self.given.get(tenant, 0) + tokens

    def hear(self, elsewhere: Mapping[str, int]) -> None:
        """What the other servers have placed so far. A sum falls where a server has ended."""
        if (before := self._elsewhere) is not None:
            for tenant, tokens in elsewhere.items():
                more = max(0, tokens - before.get(tenant, 0))
                self._got[tenant] = self._got.get(tenant, 0.0) + more
        self._elsewhere = dict(elsewhere)


MOST_KNOWN = 10_000  # tenants whose counts are kept
