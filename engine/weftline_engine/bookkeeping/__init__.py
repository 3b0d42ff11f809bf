"""An engine's records of its ops, contexts and KV blocks, which decide what steps compute."""

from __future__ import annotations
