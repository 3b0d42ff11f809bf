"""Running chains: compiled into graphs of the server, or with their calls sent ahead."""

from __future__ import annotations
