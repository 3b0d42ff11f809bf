"""Transforms: the work of an output parser or a template, as data that the server can run.

A spec is a JSON object such as `{"op": "path", "keys": ["title"]}`. `parse` checks one. `read`
checks one without compiling its patterns. `run` applies a list of them in order. The server's
session imports this package, so it needs only the standard library.
"""

from __future__ import annotations

from weftline.contract.transforms.base import Transform, ValueFlow
from weftline.contract.transforms.items import closed_items, gives_items, joined_items, joins_items
from weftline.contract.transforms.specs import MAX_SPECS, OPS, parse, read, run

__all__ = [
    "MAX_SPECS",
    "OPS",
    "Transform",
    "ValueFlow",
    "closed_items",
    "gives_items",
    "joined_items",
    "joins_items",
    "parse",
    "read",
    "run",
]
