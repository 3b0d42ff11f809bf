"""The TCP transport: engines on other machines join a server that listens for them."""

from __future__ import annotations
