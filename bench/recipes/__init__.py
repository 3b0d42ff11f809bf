"""Programs around retrieval in both frameworks, each run on the plain LLM and on weftline."""

from __future__ import annotations
