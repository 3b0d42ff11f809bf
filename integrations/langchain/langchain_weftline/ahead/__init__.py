"""Sending the calls of a chain ahead of its run, and giving LangChain their results."""

from __future__ import annotations
