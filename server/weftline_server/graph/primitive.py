"""Primitives: the nodes of the graph, and what engines execute."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrimitiveId:
    """Output number `index` of a call of a session."""

    session: str
    call: str
    index: int

    def __str__(self) -> str:
        return f"{self.session}/{self.call}/{self.index}"
