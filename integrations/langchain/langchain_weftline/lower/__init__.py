"""Lowering: turns a LangChain chain into calls of the server, before their values exist."""

from __future__ import annotations
