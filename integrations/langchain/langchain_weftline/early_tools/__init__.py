"""Tools that start while the model still writes the rest of its answer."""

from __future__ import annotations
