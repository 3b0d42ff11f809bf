"""Transforms: what an output parser or a template does to a value, as data that the server can run.

A spec is a JSON object such as `{"op": "path", "keys": ["title"]}`. `parse` checks one, and `run`
applies a list of them in order. `read` checks one without compiling its patterns. The server's
session imports this package where only the standard library is installed.
"""

from __future__ import annotations

from weftline.transforms.base import Flow, Transform
from weftline.transforms.items import closed_items, gives_items, joined_items, joins_items
from weftline.transforms.specs import MAX_SPECS, OPS, parse, read, run

__all__ = [
    "MAX_SPECS",
    "OPS",
    "Flow",
    "Transform",
    "closed_items",
    "gives_items",
    "joined_items",
    "joins_items",
    "parse",
    "read",
    "run",
]
