"""How many freed contexts return: a later prompt begins with theirs. It is pure.

Clients that name no session send the next turn of a conversation as a new one, after the context of
the last turn was freed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weftline_engine.api import Return

# The shares before anything is known. They are worth so many observations: a map-reduce of 20 calls
# shows that its contexts do not return.
USUAL_SHARES = {Return.NEVER: 0.0, Return.SELDOM: 0.25, Return.OFTEN: 0.75}
USUAL_COUNT = 4


@dataclass(slots=True)
class ReturnCount:
    """The freed contexts of a kind that have returned, and those that have gone without."""

    usual: float
    returned: int = 0
    gone: int = 0

    @property
    def share(self) -> float:
        """The share that returns."""
        all = self.returned + self.gone + USUAL_COUNT
        return (self.returned + self.usual * USUAL_COUNT) / all


def return_counts() -> Mapping[Return, ReturnCount]:
    """A count for each kind."""
    return {kind: ReturnCount(share) for kind, share in USUAL_SHARES.items()}
