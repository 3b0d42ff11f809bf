"""KV blocks: which are free, which tokens and contexts they hold, and which are evicted first."""

from __future__ import annotations
