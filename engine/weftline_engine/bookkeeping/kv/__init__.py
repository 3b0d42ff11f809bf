"""KV blocks: which are free, which hold which tokens, which contexts they make up, and which are
evicted first."""

from __future__ import annotations
