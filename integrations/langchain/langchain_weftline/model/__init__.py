"""The parts of a ChatWeftline: options, tools, connections, patience, and its errors."""

from __future__ import annotations
