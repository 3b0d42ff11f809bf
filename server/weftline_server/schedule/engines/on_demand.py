"""An engine that starts when it is first used, and what it says of itself before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weftline_engine import api


@dataclass(frozen=True, slots=True)
class OnDemand:
    """Makes an engine that starts when a submit first names it.

    `says` is what it will say of itself. Only what is measured at its start may be missing there.
    """

    make: Callable[[], api.Engine]
    says: api.Description

    def __call__(self) -> api.Engine:
        return self.make()
