"""The public name of the predicates, which are conditions as data."""

from __future__ import annotations

from weftline.contract.predicates import (
    MAX_DEPTH,
    OPS,
    Predicate,
    check,
    holds,
)

__all__ = [
    "MAX_DEPTH",
    "OPS",
    "Predicate",
    "check",
    "holds",
]
